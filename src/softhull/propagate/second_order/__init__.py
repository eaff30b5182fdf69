"""Second-order propagation: all products of a specification in one quadratic form of the input noise, bounded once."""

"""Studies of the bounds themselves, all of them generated from the table of bounds."""

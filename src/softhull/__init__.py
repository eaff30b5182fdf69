"""softhull: certified statements about softmax."""

__version__ = "0.1.0.dev0"

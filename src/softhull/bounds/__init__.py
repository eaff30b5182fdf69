"""Bounds on the softmax function, one family per file, in pure array code."""

"""Files in, plain data out."""

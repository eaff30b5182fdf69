"""What a network is: a list of operators on named values, independent of any file format."""

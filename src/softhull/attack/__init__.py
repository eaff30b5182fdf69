"""Projected gradient attacks: the other side of every bracket."""

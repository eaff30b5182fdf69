"""How bounds move through a graph."""

"""Convex programs over networks that end in a softmax: three methods for one relaxation."""

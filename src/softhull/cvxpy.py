"""Softmax constraints for people who model by hand in CVXPY."""

from __future__ import annotations

from .solve.encodings import softmax_constraints as softmax_constraints

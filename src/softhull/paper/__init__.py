"""The tables and figures of Wei et al. 2023, as data and calls of the public API."""

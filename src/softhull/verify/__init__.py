"""The questions users ask: robustness of a class, uncertainty of an ensemble."""

"""Benchmarks: peers side by side in one run, reported as ratios. Run all with ``make bench``."""

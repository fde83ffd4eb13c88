"""Comparisons with peers; ``python -m benchmarks`` prints the tables."""

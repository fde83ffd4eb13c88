"""Comparisons with other runtimes; ``python -m benchmarks`` prints the tables."""

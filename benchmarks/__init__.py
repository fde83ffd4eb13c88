"""Benchmarks beside the peers; ``python -m benchmarks`` prints the tables."""

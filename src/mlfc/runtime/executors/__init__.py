"""Executors of models: compiled ahead of time, operator by operator from a graph, or dynamic."""

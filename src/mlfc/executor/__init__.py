"""Executors: the code or data that calls a compiled module's operators in order."""

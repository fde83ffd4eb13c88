"""Main functions of dynamic models."""

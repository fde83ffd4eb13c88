"""Placeholder of a helper."""

"""Comparison of two archives."""

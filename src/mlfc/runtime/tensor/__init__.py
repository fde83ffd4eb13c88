"""Callers' arrays, device tensors, and the C structures that describe both."""

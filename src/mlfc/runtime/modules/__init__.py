"""Modules: their interface, the loaders of their stored bytes, and the kinds that are not host code."""

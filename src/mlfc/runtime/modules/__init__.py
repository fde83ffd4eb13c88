"""Modules: what they can do, how stored bytes become one, and the kinds that are not host code."""

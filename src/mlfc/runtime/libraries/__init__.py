"""Shared libraries as modules, and the module trees in them."""

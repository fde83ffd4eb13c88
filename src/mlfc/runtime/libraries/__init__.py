"""Shared libraries as modules, and the import trees in them."""

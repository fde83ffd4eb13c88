"""Firmware projects: their contents, and the templates that generate them."""

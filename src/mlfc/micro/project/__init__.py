"""Firmware projects: what goes into them, and the templates that they are made from."""

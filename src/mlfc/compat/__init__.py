"""Packages with the names of other tools, for programs that change only their imports."""

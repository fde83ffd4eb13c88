"""The version of mlfc, which archives record."""

__version__ = "0.1.0"

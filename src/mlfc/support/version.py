"""The version of mlfc, which archives name."""

__version__ = "0.1.0"

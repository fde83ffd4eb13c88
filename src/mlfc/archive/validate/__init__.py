"""Validation of archives, reporting every fault."""

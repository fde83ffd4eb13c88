"""JSON Schemas of what mlfc writes, as data files."""

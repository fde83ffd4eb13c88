"""JSON Schemas of what mlforge writes, as data files."""

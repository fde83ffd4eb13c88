"""JSON Schemas of files that mlfc writes, as package data."""

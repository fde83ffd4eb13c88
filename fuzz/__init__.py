"""Fuzzing of everything that reads untrusted files."""

"""Fuzzing of everything that reads files which nobody has checked."""

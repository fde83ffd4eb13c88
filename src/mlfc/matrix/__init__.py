"""Compilation of sets of models, targets and options into one folder or archive, with an index."""

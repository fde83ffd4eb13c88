"""Boards and options that fit a model."""

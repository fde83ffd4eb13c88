"""Readers and writers of object files, libraries and static archives in all formats."""

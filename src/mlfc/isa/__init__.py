"""Instruction sets, one folder or file a family: all that is written for processors which have it."""

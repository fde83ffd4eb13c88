"""Boards, their cores and memory, and the programs that a build needs."""

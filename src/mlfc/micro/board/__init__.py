"""Boards, their cores and memory, and the programs required for builds."""

"""Sums of four products of bytes: VNNI of x86, the dot products of AArch64."""

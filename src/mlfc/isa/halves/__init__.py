"""Vectors of float16 in memory that are converted to float32 in registers: F16C, AVX-512 and NEON."""

"""Vectors of float16 in memory that are float32 in registers: F16C, AVX-512 and NEON."""

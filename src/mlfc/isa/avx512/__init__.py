"""Fixed-point arithmetic in vectors of 64 bytes (AVX-512); its processors are in `mlfc.isa.x86`."""

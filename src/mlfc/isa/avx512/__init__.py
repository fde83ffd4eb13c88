"""Fixed-point arithmetic in vectors of 64 bytes (AVX-512), as C has it; its processors are in `mlfc.isa.x86`."""

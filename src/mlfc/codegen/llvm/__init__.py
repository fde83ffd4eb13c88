"""LLVM IR and objects from loop-level code."""

"""The virtual machine: bytecode whose kernels are native code, run in Python or by the C interpreter in the library."""

"""The virtual machine's side of a model: bytecode, and native code that it calls."""

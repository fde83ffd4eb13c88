"""The files of firmware: C, linker scripts, makefiles."""

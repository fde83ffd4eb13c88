"""Instruction sets, one file or folder per family: all code that is specific to processors with that instruction set.

The modules of this package are discovered, not listed: registries of lower layers (`mlfc.registry.Registry`) import
them before they are first read. A family registers those of the following that it has:

* ``CPUS``: names of processors, for target strings (`mlfc.target.features`);
* ``LIBRARY_CPUS``: the machines that load libraries, by prefix of processor names;
* ``LEVELS``: for an architecture, the processor levels with separate kernels in one library;
* ``VECTORS``: the width of its vector registers, in C and in LLVM code;
* ``INSTRUCTION_SETS``: the LLVM probe that detects it, and its name for boards;
* ``C_FORMS``, ``LLVM_FORMS``: the printed forms of intrinsics (`mlfc.tir.forms`), and its own ``INTRINSICS``
  (`mlfc.tir.intrinsics`);
* ``template``: templates of the time-critical operators, and ``FITTING``: the pass that adapts every
  finished kernel to it (`mlfc.kernels.templates`).

A family with several files is a package: its ``__init__`` has the processors, and ``templates``, ``c`` and ``llvm`` are
imported when kernels are written and printed. No other module of mlfc imports this package by name.
"""

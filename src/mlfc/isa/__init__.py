"""Instruction sets, one file or folder a family: all that is written for processors which have it.

The modules of this package are found, not listed: registries of lower layers (`mlfc.registry.Registry`) import them
before they are first read. A family registers what it has of

* ``CPUS``: names of processors, for target strings (`mlfc.target.features`);
* ``LIBRARY_CPUS``: by the start of names of processors, the machines that load libraries;
* ``LEVELS``: of an architecture, the levels of processors for which one library has kernels;
* ``VECTORS``: how wide its vector registers are, in C and in LLVM's code;
* ``INSTRUCTION_SETS``: how LLVM shows that a processor has it, what boards call it;
* ``C_FORMS``, ``LLVM_FORMS``: how intrinsics are printed for it (`mlfc.tir.forms`), and ``INTRINSICS`` of its own
  (`mlfc.tir.intrinsics`);
* ``template``: how the operators that carry the time are written for it, and ``FITTING``: the pass that fits every
  finished kernel to it (`mlfc.kernels.templates`).

A family of several files is a package: its ``__init__`` has the processors, and ``templates``, ``c`` and ``llvm`` are
imported when kernels are written and printed. Nothing else of mlfc imports this package by name.
"""

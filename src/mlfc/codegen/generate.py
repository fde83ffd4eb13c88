"""The code of a module by the printer of its target."""

from __future__ import annotations

from mlfc.codegen.emit import GeneratedCode, generate_c
from mlfc.codegen.external import require_code
from mlfc.codegen.unit import NOTHING_SHARED, Shared, Unit


def generate(unit: Unit, shared: Shared = NOTHING_SHARED) -> GeneratedCode:
    """Print a module in the language of its target.

    Parameters
    ----------
    unit : Unit
    shared : Shared
        What lies in files that belong to several modules.

    Returns
    -------
    GeneratedCode
        In C, for AOT ``<module>_lib0.c`` (entry and workspace), ``<module>_lib1.c`` (operators and main function),
        where the constants are large ``<module>_lib2.S`` and its binary file, and the header. For the graph executor
        ``<module>_lib0.c`` (table of functions) and ``<module>_lib1.c`` (operators). LLVM's objects are divided like
        that, too: ``lib/<module>_lib<n>.o``.
    """
    if unit.executor == "aot":
        require_code(unit)
    if unit.target.kind == "llvm":
        from mlfc.codegen.llvm.code import generate_llvm  # LLVM takes long to load

        return generate_llvm(unit, shared)
    return generate_c(unit, shared)

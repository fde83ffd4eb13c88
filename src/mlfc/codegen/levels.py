"""C that chooses among kernels for several levels of processors, once, when its library is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from string import Template

from mlfc.codegen.c import arguments, signature
from mlfc.codegen.writer import Writer, c_string, pieces_beside
from mlfc.support import dtypes
from mlfc.support.levels import LEVEL_SECTION, LEVEL_VARIABLE, level_function
from mlfc.target.features import Level, Levels
from mlfc.tir.ir import PrimFunc
from mlfc.tir.visitor import signature as signature_of

OF_LEVEL = "MLF_OF_LEVEL"
"""The macro that puts a function into the section of its level."""
_TEXTS = pieces_beside(__file__, "levels.h")
_BYTES = ("int8", "uint8")


def served(levels: Levels, prim: PrimFunc) -> list[Level]:
    """Return the levels at which a kernel has a function of its own: the first, and those that serve it.

    Of levels that are chosen already, the last of these.
    """
    pairs = pairwise(levels.levels)
    found = [levels.levels[0], *(level for before, level in pairs if _serves(level, before, prim))]
    return found[-1:] if levels.is_chosen else found


def _serves(level: Level, before: Level, kernel: PrimFunc) -> bool:
    """Tell whether a level has a faster function of a kernel than the level before it."""
    prim = kernel.at(level.name)
    if level.serves == "templates":
        return signature_of(prim) != signature_of(kernel.at(before.name))
    kinds = {buffer.dtype for buffer in (*prim.params, *prim.scratch)}
    has_bytes = not kinds.isdisjoint(_BYTES)
    if level.serves == "floats":
        return not has_bytes and any(map(dtypes.is_float, kinds))
    return has_bytes or not level.serves


def placed(level: Level) -> str:
    """Return the macro ``MLF_OF_LEVEL`` that puts functions into the section of a level, by which they are counted."""
    return Template(_TEXTS["section"]).substitute(section=LEVEL_SECTION + level.name)


def choice(levels: Levels, module: str) -> str:
    """Return the text that chooses a level, and the function that names it."""
    if levels.is_chosen:
        return placed(levels.levels[0])
    here = "\n\n".join(path.read_text(encoding="utf-8").strip("\n") for path in levels.choice)
    names = ", ".join(c_string(level.name) for level in levels.levels)
    first = Template(_TEXTS["choice"]).substitute(
        condition=levels.condition, here=here, names=names, variable=LEVEL_VARIABLE
    )
    name = Template(_TEXTS["name"]).substitute(
        condition=levels.condition, function=level_function(module), variable=LEVEL_VARIABLE
    )
    return f"{first}\n#endif\n\n{name}\n\n{placed(levels.levels[0])}"


def dispatcher(
    prim: PrimFunc, name: str, aliased: frozenset[int], levels: Levels, own: Mapping[str, str], *, static: bool
) -> str:
    """Return the function `name`, which calls that of the chosen level; `own` are their names, by the levels served."""
    writer, passed = Writer(), f"({', '.join(arguments(prim, aliased))})"
    head = signature(prim, name, aliased)
    with writer.block(f"static {head}" if static else head):
        if not levels.is_chosen:
            _write_choice(writer, levels, own, passed)
        writer.line(f"return {next(iter(own.values()))}{passed};")
    return writer.text().replace(f"\n  #{'if'} ", "\n#if ").replace("\n  #endif", "\n#endif")


def _write_choice(writer: Writer, levels: Levels, own: Mapping[str, str], passed: str) -> None:
    """Write the calls at all levels but the first."""
    writer.line(f"#if {levels.condition}")
    with writer.block("if (mlf_level < 0)"):
        writer.line("return -1;")
    for place, level in reversed(list(enumerate(levels.levels))[1:]):
        if level.name not in own:
            continue
        if level.condition:
            writer.line(f"#if {level.condition}")
        with writer.block(f"if (mlf_level >= {place})"):
            writer.line(f"return {own[level.name]}{passed};")
        if level.condition:
            writer.line("#endif")
    writer.line("#endif")


def guarded(text: str, levels: Levels, level: Level) -> str:
    """Return the text of a level's file so that it is empty on other machines, but for an include."""
    condition = f"{levels.condition} && {level.condition}" if level.condition else levels.condition
    return f"#include <stdint.h>\n\n#if {condition}\n\n{text}\n#endif\n"

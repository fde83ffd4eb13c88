"""C that chooses among kernels for several levels of processors, once, when its library is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from mlfc.codegen.c import arguments, signature
from mlfc.codegen.writer import Writer, c_string, pieces_beside
from mlfc.support.levels import LEVEL_SECTION, LEVEL_VARIABLE, level_function
from mlfc.target.features import Level, Levels
from mlfc.tir.ir import PrimFunc

OF_LEVEL = "MLF_OF_LEVEL"
"""The macro that puts a function into the section of its level."""
_TEXTS = pieces_beside(__file__, "levels.h")


def placed(level: Level) -> str:
    """Return the macro ``MLF_OF_LEVEL`` that puts functions into the section of a level, by which they are counted."""
    return Template(_TEXTS["section"]).substitute(section=LEVEL_SECTION + level.name)


def choice(levels: Levels, module: str) -> str:
    """Return the text that chooses a level, and the function that names it."""
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
    """Return the function `name`, which calls that of the chosen level; `own` are their names by level."""
    writer, passed = Writer(), f"({', '.join(arguments(prim, aliased))})"
    head = signature(prim, name, aliased)
    with writer.block(f"static {head}" if static else head):
        writer.line(f"#if {levels.condition}")
        with writer.block("switch (mlf_level)"):
            for place, level in reversed(list(enumerate(levels.levels))[1:]):
                writer.lines([f"case {place}:", f"  return {own[level.name]}{passed};"])
            writer.lines(["case 0:", "  break;", "default:", "  return -1;"])
        writer.line("#endif")
        writer.line(f"return {own[levels.levels[0].name]}{passed};")
    return writer.text().replace(f"\n  #{'if'} ", "\n#if ").replace("\n  #endif", "\n#endif")


def guarded(text: str, levels: Levels) -> str:
    """Return a file's text so that it is empty on other architectures, but for an include."""
    return f"#include <stdint.h>\n\n#if {levels.condition}\n\n{text}\n#endif\n"

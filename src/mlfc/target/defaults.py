"""Default targets.

Archives, and commands that show them, use portable code for all machines. Libraries, and the results of `mlfc.compile`,
which may be exported as libraries, have kernels for every processor of an architecture. Models that only run in this
process have kernels for its own processor.
"""

from __future__ import annotations

from mlfc.target.features import AUTO, level_here, levels_of_host
from mlfc.target.target import parse_target

PORTABLE = "c"
"""For archives, and for commands that show or check what `mlfc compile` writes."""
EVERY_CPU = f"c -mcpu={AUTO}"
"""For libraries, and for models returned by `mlfc.compile`."""


def this_processor() -> str:
    """Return the target for code that only runs on this machine: the kernels of `EVERY_CPU` for it, compiled faster.

    The target has the processor's level, or the one in the environment variable `support.levels.LEVEL_VARIABLE`. Raises
    OptionError for a level that is unknown, or that the processor lacks.
    """
    levels = levels_of_host()
    if levels is None or not levels.is_native:
        return EVERY_CPU  # a library uses kernels of several levels at once
    level, is_native = level_here(levels)
    named = f"{PORTABLE} -mcpu={level.name}"
    native = parse_target(f"{PORTABLE} -mcpu=native")
    return str(native) if is_native and native.mcpu == level.name else named

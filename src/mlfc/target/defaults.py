"""What models are compiled for where the user names no target.

What is written to be read, moved and compiled elsewhere is for every machine: archives, and what shows them. Libraries,
and what `mlfc.compile` returns, which may become one, have kernels for every processor of a machine's kind. What only
runs in this process needs those for its own processor.
"""

from __future__ import annotations

from mlfc.target.features import AUTO, level_here, levels_of_host
from mlfc.target.target import parse_target

PORTABLE = "c"
"""For archives, and for commands that show or check what `mlfc compile` writes."""
EVERY_CPU = f"c -mcpu={AUTO}"
"""For libraries, and for models that `mlfc.compile` returns."""


def this_processor() -> str:
    """Return the target for code that only runs here: what `EVERY_CPU` has for this processor, and in fewer seconds.

    It is for the level of the processor, or the one that `support.levels.LEVEL_VARIABLE` names. Raises OptionError for
    a level that there is not, or that the processor lacks.
    """
    levels = levels_of_host()
    if levels is None or not levels.is_native:
        return EVERY_CPU  # its kernels are of several levels, each of the one that serves it
    level, is_native = level_here(levels)
    named = f"{PORTABLE} -mcpu={level.name}"
    native = parse_target(f"{PORTABLE} -mcpu=native")
    return str(native) if is_native and native.mcpu == level.name else named

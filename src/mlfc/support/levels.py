"""Names by which libraries with kernels for several levels of processors are known, to those who write and run them."""

from __future__ import annotations

LEVEL_VARIABLE = "MLFC_CPU"
"""The environment variable that names a level instead of the highest that the processor has."""

LEVEL_SECTION = "mlfc."
"""What names of sections of ELF files begin with that have the kernels of one level."""


def level_function(module: str) -> str:
    """Return the name of the function that tells the level of a module's kernels; NULL where it is not to be had."""
    return f"tvmgen_{module}_cpu"

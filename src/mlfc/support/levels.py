"""Names shared by the compiler and the runtime for libraries with kernels for several CPU levels."""

from __future__ import annotations

LEVEL_VARIABLE = "MLFC_CPU"
"""Environment variable that selects a level instead of the processor's highest."""

LEVEL_SECTION = "mlfc."
"""Prefix of the ELF sections that contain the kernels of one level."""


def level_function(module: str) -> str:
    """Return the name of the function that returns the level of a module's kernels, or NULL if unavailable."""
    return f"tvmgen_{module}_cpu"

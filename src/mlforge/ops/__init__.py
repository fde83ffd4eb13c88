"""The operators. Importing this package registers all of them, and the kernel templates that they call."""

from __future__ import annotations

from importlib import import_module

for _family in (
    "elementwise",
    "reduce",
    "shape",
    "nn",
    "qnn",
    "qnn_arithmetic",
    "qnn_unary",
    "qnn_reduce",
    "image",
    "conv",
    "dense",
    "qnn_linear",
):
    import_module(f"mlforge.ops.{_family}")

"""The operators. Importing this package registers all of them."""

from __future__ import annotations

from importlib import import_module

for _family in ("elementwise", "reduce", "shape", "nn", "qnn", "image"):
    import_module(f"mlforge.ops.{_family}")

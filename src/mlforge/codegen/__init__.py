"""Printers of loop-level code, and the files of compiled modules."""

from __future__ import annotations

from mlforge.codegen.emit import DeviceCode, GeneratedCode, Sizes, constant_pools, generate
from mlforge.codegen.link import LinkedCode, generate_together
from mlforge.codegen.unit import SHARED_MODULE, Shared, Unit

__all__ = [
    "SHARED_MODULE",
    "DeviceCode",
    "GeneratedCode",
    "LinkedCode",
    "Shared",
    "Sizes",
    "Unit",
    "constant_pools",
    "generate",
    "generate_together",
]

"""Printers of loop-level code, and the files of a compiled module."""

from __future__ import annotations

from mlforge.codegen.emit import GeneratedCode, Sizes, generate

__all__ = ["GeneratedCode", "Sizes", "generate"]

"""Elementwise operators: unary mathematics, binary arithmetic with broadcasting, comparison, selection, casts."""

from __future__ import annotations

"""C files of single functions, which tests compile."""

from __future__ import annotations

from mlfc.codegen.c import CFunction, Requirements, preamble


def print_file(functions: list[CFunction]) -> str:
    """Return a complete C file with the functions and the helpers that they need."""
    needs = Requirements()
    for function in functions:
        needs.merge(function.needs)
    texts = [text for function in functions for text in (*function.parts, function.text)]
    return "\n".join([*preamble(needs), "", *texts])

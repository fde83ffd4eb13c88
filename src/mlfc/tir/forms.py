"""Printed forms of the operations of an instruction set (`mlfc.isa`); all other operations have one portable form.

This file does not import types of LLVM code: LLVM takes long to load, and an instruction set may declare all its forms
in one file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from mlfc.registry import Registry
from mlfc.tir import ir
from mlfc.tir.ir import Expr

Helper: TypeAlias = tuple[tuple[str, ...], str]
"""Keys of the helpers that a helper calls, and its text."""


class CPrinter(Protocol):
    """The interface of the C expression printer that forms use."""

    def expr(self, expr: Expr, level: int = ...) -> str:
        """Return C for an expression."""

    def need(self, key: str) -> str:
        """Return the C name of a helper and include the helper in the file."""

    def address(self, buffer: ir.Buffer, indices: tuple[Expr, ...]) -> str:
        """Return the address of an element."""

    def group(self, expr: Expr) -> str:
        """Return four bytes as an int32."""


def _nothing(*_: Any) -> None:
    return None


@dataclass(frozen=True)
class CForm:
    """C forms of an instruction set; their text includes a portable form beside the machine's."""

    helper: Callable[[str], Helper | None]  # the helper of a key, if it belongs to this family
    includes: tuple[str, ...] = ()  # lines that its helpers need before them
    vectors: Callable[[str], set[str]] = lambda _: set()  # vector types that the helper of a key needs
    # true if the helper of a key, which uses vectors, has a form for compilers without GNU C's vectors
    is_portable: Callable[[str], bool] = lambda _: False
    # C of a call or a cast if this family supports it: a call expression, which needs no parentheses
    expression: Callable[[CPrinter, Expr], str | None] = _nothing
    store: Callable[[CPrinter, ir.Store], str | None] = _nothing  # C of a store if this family supports it
    words: Callable[[ir.Stmt], set[int]] = lambda _: set()  # four-byte variables that are stored as an int32
    guard: str = ""  # the macro that is nonzero if the compiler has `instructions`
    # C by the key of an intrinsic with a body, in that body's parameters; without an entry the body is printed
    instructions: Mapping[str, str] = field(default_factory=dict)


C_FORMS: Registry[CForm] = Registry("C form", "mlfc.isa", "c")

# (context, addresses of the result and the operands, count, function that writes a loop)
RunWriter: TypeAlias = Callable[[Any, Sequence[Any], int, Callable[..., list[Any]]], None]


@dataclass(frozen=True)
class LlvmForm:
    """LLVM forms of an instruction set."""

    # writes an intrinsic if this family supports it on the context's machine
    call: Callable[[Any, str, Sequence[Any]], Any] = _nothing
    # returns the writer of a copy or of sums over taps (`mlfc.tir.runs`) if this family supports it
    run: Callable[[Any, str, int], RunWriter | None] = _nothing
    products: Callable[[Any, Any, Any, Any], Any] = _nothing  # adds the products of all lanes to a scalar
    # true if a loop over this number of such sums has no register left for a counter, so that it must iterate by
    # address
    crowded: Callable[[Any, int], bool] = lambda *_: False
    # intrinsics whose sums fill the registers, so that innermost loops with them iterate by address
    fills_registers: frozenset[str] = frozenset()


LLVM_FORMS: Registry[LlvmForm] = Registry("LLVM form", "mlfc.isa", "llvm")

"""The forms in which printers write what an instruction set (`mlfc.isa`) has; all else has one portable form in them.

Types of LLVM code are not named here: LLVM takes long to load, and a family may declare all that it has in one file.
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
    """What a form may ask of the printer of C expressions."""

    def expr(self, expr: Expr, level: int = ...) -> str:
        """Return C for an expression."""

    def need(self, key: str) -> str:
        """Return the C name of a helper, which the file then has."""

    def address(self, buffer: ir.Buffer, indices: tuple[Expr, ...]) -> str:
        """Return the address of an element."""

    def group(self, expr: Expr) -> str:
        """Return four bytes as an int32."""


def _nothing(*_: Any) -> None:
    return None


@dataclass(frozen=True)
class CForm:
    """What C has of an instruction set; its texts have a portable form beside the machine's."""

    helper: Callable[[str], Helper | None]  # the helper of a key, if it is one of this family's
    includes: tuple[str, ...] = ()  # lines that its helpers need before them
    vectors: Callable[[str], set[str]] = lambda _: set()  # vector types that the helper of a key needs
    # whether the helper of a key, which has vectors, has a form for compilers without GNU C's vectors
    is_portable: Callable[[str], bool] = lambda _: False
    # how a call or a cast is written, if this family does: as a call, which needs no parentheses
    expression: Callable[[CPrinter, Expr], str | None] = _nothing
    store: Callable[[CPrinter, ir.Store], str | None] = _nothing  # how a store is written, if this family does
    words: Callable[[ir.Stmt], set[int]] = lambda _: set()  # variables of four bytes that are held as an int32
    guard: str = ""  # the macro that is not 0 where the compiler has `instructions`
    # C by the key of an intrinsic that has a body, in that body's parameters; elsewhere the body is computed
    instructions: Mapping[str, str] = field(default_factory=dict)


C_FORMS: Registry[CForm] = Registry("C form", "mlfc.isa", "c")

# (context, addresses of the result and the operands, how many, what writes a loop)
RunWriter: TypeAlias = Callable[[Any, Sequence[Any], int, Callable[..., list[Any]]], None]


@dataclass(frozen=True)
class LlvmForm:
    """What LLVM code has of an instruction set."""

    # writes an intrinsic, if this family does for the context's machine
    call: Callable[[Any, str, Sequence[Any]], Any] = _nothing
    # what writes a copy or sums over taps (`mlfc.tir.runs`), if this family does
    run: Callable[[Any, str, int], RunWriter | None] = _nothing
    products: Callable[[Any, Any, Any, Any], Any] = _nothing  # adds the products of all lanes to a scalar
    # whether a loop over so many such sums has no register left to count in, so that it must go by addresses
    crowded: Callable[[Any, int], bool] = lambda *_: False
    # intrinsics whose sums fill the registers, so that innermost loops with them go by addresses
    fills_registers: frozenset[str] = frozenset()


LLVM_FORMS: Registry[LlvmForm] = Registry("LLVM form", "mlfc.isa", "llvm")

"""Functions by which the virtual machine calls kernels: they check all sizes before the kernel touches any memory.

Bytecode may be damaged or hostile, so what it passes is compared with what the kernel's loops will reach: numbers with
the bounds of their symbols, buffers with the sizes that follow from the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlfc.codegen.c_types import scalar_type
from mlfc.support import dtypes
from mlfc.support.dims import LARGEST, Dim, Extent, Symbol, bounds, walked
from mlfc.tir import host
from mlfc.tir.host import INT32, INT64, UINT8, VOID, Body, Choice, Expr, Function, Number, Type, const, names, pointer
from mlfc.tir.ir import Buffer, PrimFunc

BUFFER = Type("mlfc_vm_buffer", fields=(("data", pointer(UINT8)), ("bytes", INT64)))
LAUNCHED = names(buffers=pointer(const(BUFFER)), numbers=pointer(const(INT64)))
"""The parameters of a launcher."""
_SAFE = 1 << 62
"""Sums of products up to this never leave an int64."""
_MOST = 1 << 31
"""Larger terms and factors are refused where they could leave an int64: no tensor has so many elements."""

_LARGEST_NUMBER = LARGEST - (1 << 16)
"""Of a kernel's numbers, so that what rounds them up, as ``(n + 63) // 64``, stays an int32."""


def launcher(kernel: PrimFunc, name: str, compute: str) -> Function:
    """Return the function `name` that checks what a kernel is given and calls its function `compute`."""
    body = Body()
    buffers, numbers = LAUNCHED
    require_numbers(body, kernel)
    sizes = Sizes(body, {symbol: numbers[index] for index, symbol in enumerate(kernel.symbols)})
    for index, buffer in enumerate(kernel.params):
        sizes.require(buffer, buffers[index])
    arguments = [
        buffers[index]["data"].cast(pointer(_element(buffer, is_output=buffer is kernel.output)))
        for index, buffer in enumerate(kernel.params)
    ]
    if kernel.scratch:
        workspace = buffers[len(kernel.params)]
        body.fails_where(workspace["bytes"] < sizes.value(kernel.scratch_bytes))
        arguments.append(workspace["data"])
    arguments += [numbers[index].cast(INT32) for index in range(len(kernel.symbols))]
    kinds = [pointer(VOID)] * (len(arguments) - len(kernel.symbols)) + [INT32] * len(kernel.symbols)
    body.returns(host.declaration(compute, INT32, *kinds)(*arguments))
    return Function(name, INT32, LAUNCHED, body.stmts, is_static=True)


def require_numbers(body: Body, kernel: PrimFunc) -> None:
    """Write the check that numbers lie between the bounds of a kernel's symbols."""
    numbers = LAUNCHED[1]
    if not kernel.symbols:
        body.add(host.Unused(numbers))
    for index, symbol in enumerate(kernel.symbols):
        low, high = number(max(symbol.low, -_LARGEST_NUMBER)), number(min(symbol.high, _LARGEST_NUMBER))
        body.fails_where((numbers[index] < low) | (numbers[index] > high))


def number(value: int) -> Number:
    """Return an int64."""
    text = "" if -(1 << 15) < value < (1 << 15) else f"INT64_C({value})"
    return Number(INT64, value, text)


def _element(buffer: Buffer, *, is_output: bool) -> Type:
    element = Type(scalar_type(buffer.dtype))
    return element if is_output else const(element)


@dataclass(frozen=True)
class _Integer:
    """An expression and its least and largest value."""

    expr: Expr
    low: int
    high: int


class Sizes:
    """Computes extents in int64 without overflow; what is too large for a tensor makes the function return -1."""

    def __init__(self, body: Body, symbols: dict[Symbol, Expr]) -> None:
        self._body = body
        self._symbols = symbols
        self._locals = 0

    def require(self, buffer: Buffer, given: Expr) -> None:
        """Write the check that a buffer has the elements of its shape, and that an int32 counts them."""
        width = dtypes.nbytes(buffer.dtype)
        if not isinstance(buffer.size, Dim):
            self._body.fails_where(given["bytes"] < number(buffer.nbytes))
            return
        elements = self._of(buffer.size)
        if elements.high > LARGEST:
            self._body.fails_where(elements.expr > number(LARGEST))
        self._body.fails_where(given["bytes"] < (elements.expr * number(width) if width > 1 else elements.expr))

    def value(self, extent: Extent) -> Expr:
        """Return an extent."""
        return self._of(extent).expr

    def _of(self, extent: Extent) -> _Integer:
        found: _Integer = walked(extent, self._leaf, self._apply)
        low, high = bounds(extent)
        return _Integer(found.expr, max(found.low, low), min(found.high, high))

    def _leaf(self, value: int | Symbol) -> _Integer:
        if isinstance(value, Symbol):
            return _Integer(self._symbols[value], max(value.low, -LARGEST), min(value.high, LARGEST))
        return _Integer(number(value), value, value)

    def _apply(self, op: str, a: _Integer, b: _Integer) -> _Integer:
        if op == "*":
            a, b = self._limited(a, b, lambda x, y: x * y <= _SAFE)
            corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
            return _Integer(a.expr * b.expr, min(corners), max(corners))
        if op == "+":
            a, b = self._limited(a, b, lambda x, y: x + y <= _SAFE)
            return _Integer(a.expr + b.expr, a.low + b.low, a.high + b.high)
        if op in ("max", "min"):
            chosen = max if op == "max" else min
            first, second = self._named(a), self._named(b)
            larger, smaller = (first, second) if op == "max" else (second, first)
            expr = Choice(INT64, first > second, larger, smaller)
            return _Integer(expr, chosen(a.low, b.low), chosen(a.high, b.high))
        return self._divided(op, a, b)

    def _limited(self, a: _Integer, b: _Integer, fits: Callable[[int, int], bool]) -> tuple[_Integer, _Integer]:
        """Return two integers whose sum or product is known to fit: larger ones make the function return -1."""
        if fits(max(abs(a.low), abs(a.high)), max(abs(b.low), abs(b.high))):
            return a, b
        return self._within(a), self._within(b)

    def _within(self, value: _Integer) -> _Integer:
        if value.low >= -_MOST and value.high <= _MOST:
            return value
        name = self._named(value)
        self._body.fails_where((name > number(_MOST)) | (name < number(-_MOST)))
        return _Integer(name, max(value.low, -_MOST), min(value.high, _MOST))

    def _divided(self, op: str, a: _Integer, b: _Integer) -> _Integer:
        """Divide towards minus infinity, which C does not where the dividend is negative."""
        first, second = self._named(a), self._named(b)
        if b.low <= 0:
            self._body.fails_where(second < number(1))
        quotient = first // second
        if a.low < 0:
            quotient = Choice(INT64, first < number(0), (first - second + number(1)) // second, quotient)
        if op == "//":
            return _Integer(quotient, min(a.low, 0), max(a.high, 0))
        return _Integer(first - self._named(_Integer(quotient, a.low, a.high)) * second, 0, max(0, b.high - 1))

    def _named(self, value: _Integer) -> Any:
        """Return a variable with a value that is used several times."""
        if isinstance(value.expr, (host.Name, host.Number)):
            return value.expr
        self._locals += 1
        return self._body.declare(f"size_{self._locals}", INT64, value.expr)

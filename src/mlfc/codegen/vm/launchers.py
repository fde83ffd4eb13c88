"""Functions by which the virtual machine calls kernels: they check all sizes before the kernel touches any memory.

Bytecode may be damaged or hostile, so what it passes is compared with what the kernel's loops will reach: numbers with
the bounds of their symbols, buffers with the sizes that follow from the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mlfc.codegen.c_types import scalar_type
from mlfc.support import dtypes
from mlfc.support.c_names import KEYWORDS, unique
from mlfc.support.dim_names import MOST_CHARS, combined, number_name
from mlfc.support.dim_walk import walked
from mlfc.support.dims import LARGEST, Dim, Extent, Symbol, bounds
from mlfc.tir import host
from mlfc.tir.host import (
    INT32,
    INT64,
    UINT8,
    VOID,
    Body,
    Choice,
    Expr,
    Function,
    Name,
    Number,
    Type,
    const,
    names,
    pointer,
)
from mlfc.tir.ir import Buffer, PrimFunc

# what launchers, also those of devices, call other things
_RESERVED = ("buffers", "numbers", "imported", "data", "values", "codes", "lengths", *KEYWORDS)
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
    buffers = LAUNCHED[0]
    numbers = named_numbers(body, kernel)
    sizes = Sizes(body, dict(zip(kernel.symbols, numbers, strict=True)))
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
    arguments += [value.cast(INT32) for value in numbers]
    kinds = [pointer(VOID)] * (len(arguments) - len(kernel.symbols)) + [INT32] * len(kernel.symbols)
    body.returns(host.declaration(compute, INT32, *kinds)(*arguments))
    return Function(name, INT32, LAUNCHED, body.stmts, is_static=True)


def named_numbers(body: Body, kernel: PrimFunc) -> list[Name]:
    """Declare the numbers of a kernel by the names of their symbols, within their bounds, and return them."""
    numbers = LAUNCHED[1]
    if not kernel.symbols:
        body.add(host.Unused(numbers))
    names = unique((symbol.name for symbol in kernel.symbols), _RESERVED)
    found = [body.declare(name, INT64, numbers[index]) for index, name in enumerate(names)]
    for symbol, value in zip(kernel.symbols, found, strict=True):
        low, high = number(max(symbol.low, -_LARGEST_NUMBER)), number(min(symbol.high, _LARGEST_NUMBER))
        body.fails_where((value < low) | (value > high))
    return found


def number(value: int) -> Number:
    """Return an int64."""
    text = "" if -(1 << 15) < value < (1 << 15) else f"INT64_C({value})"
    return Number(INT64, value, text)


def _element(buffer: Buffer, *, is_output: bool) -> Type:
    element = Type(scalar_type(buffer.dtype))
    return element if is_output else const(element)


@dataclass(frozen=True)
class _Integer:
    """An expression, its least and largest value, and in words what it is."""

    expr: Expr
    low: int
    high: int
    name: str
    key: Any  # the same of equal expressions alone


class Sizes:
    """Computes extents in int64 without overflow; what is too large for a tensor makes the function return -1."""

    def __init__(self, body: Body, symbols: Mapping[Symbol, Name]) -> None:
        self._body = body
        self._symbols = symbols
        self._made: dict[Any, Name] = {}
        self._taken = {name.name.lower() for name in symbols.values()} | {*_RESERVED}

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
        return replace(found, low=max(found.low, low), high=min(found.high, high))

    def _leaf(self, value: int | Symbol) -> _Integer:
        if isinstance(value, Symbol):
            name = self._symbols[value]
            return _Integer(name, max(value.low, -LARGEST), min(value.high, LARGEST), name.name, value)
        return _Integer(number(value), value, value, number_name(value), value)

    def _apply(self, op: str, a: _Integer, b: _Integer) -> _Integer:
        name, key = combined(op, a.name, b.name), (op, a.key, b.key)
        if op == "*":
            a, b = self._limited(a, b, lambda x, y: x * y <= _SAFE)
            corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
            return _Integer(a.expr * b.expr, min(corners), max(corners), name, key)
        if op == "+":
            a, b = self._limited(a, b, lambda x, y: x + y <= _SAFE)
            return _Integer(a.expr + b.expr, a.low + b.low, a.high + b.high, name, key)
        if op in ("max", "min"):
            chosen = max if op == "max" else min
            first, second = self._named(a), self._named(b)
            larger, smaller = (first, second) if op == "max" else (second, first)
            expr = Choice(INT64, first > second, larger, smaller)
            return _Integer(expr, chosen(a.low, b.low), chosen(a.high, b.high), name, key)
        return self._divided(op, a, b, name, key)

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
        return replace(value, expr=name, low=max(value.low, -_MOST), high=min(value.high, _MOST))

    def _divided(self, op: str, a: _Integer, b: _Integer, name: str, key: Any) -> _Integer:
        """Divide towards minus infinity, which C does not where the dividend is negative."""
        second = self._named(b)
        if b.low <= 0:
            self._body.fails_where(second < number(1))
        first = self._named(a) if a.low < 0 or op == "%" else a.expr
        quotient = first // second
        if a.low < 0:
            quotient = Choice(INT64, first < number(0), (first - second + number(1)) // second, quotient)
        if op == "//":
            found = _Integer(quotient, min(a.low, 0), max(a.high, 0), name, key)
            return replace(found, expr=self._named(found))
        whole = _Integer(quotient, a.low, a.high, combined("//", a.name, b.name), ("//", a.key, b.key))
        return _Integer(first - self._named(whole) * second, 0, max(0, b.high - 1), name, key)

    def _named(self, value: _Integer) -> Any:
        """Return a variable with a value that is used several times, the same for equal ones."""
        if isinstance(value.expr, (Name, Number)):
            return value.expr
        if value.key not in self._made:
            name = value.name if len(value.name) <= MOST_CHARS else "size"
            (name,) = unique([f"extent_{name}" if name[0].isdigit() else name], self._taken)
            self._taken.add(name.lower())
            self._made[value.key] = self._body.declare(name, INT64, value.expr)
        return self._made[value.key]

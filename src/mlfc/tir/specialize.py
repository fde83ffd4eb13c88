"""Numbers in the place of symbols: the static function that a function of symbolic extents is for one choice of them.

What cannot be proven of symbolic extents is proven of these functions, and the interpreter runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mlfc.errors import InternalError
from mlfc.support.dims import Symbol, substituted
from mlfc.tir import builder as tb
from mlfc.tir.extents import variable
from mlfc.tir.ir import Buffer, Launch, PrimFunc, Seq, Stmt
from mlfc.tir.parameters import with_literals


def with_numbers(prim: PrimFunc, numbers: Sequence[int]) -> PrimFunc:
    """Return a function with numbers for its symbols, in their order, and with what they make constant folded.

    Raises InternalError for numbers that the symbols cannot be.
    """
    values = dict(zip(prim.symbols, numbers, strict=True))
    for symbol, number in values.items():
        if not symbol.low <= number <= symbol.high:
            raise InternalError(f"{symbol} is {number}, not of [{symbol.low}, {symbol.high}]", place=prim.name)
    buffers = {buffer: _placed(buffer, values) for buffer in (*prim.params, *prim.scratch)}
    literals = {variable(symbol): tb.const(number) for symbol, number in values.items()}
    return replace(
        prim,
        inputs=tuple(buffers[buffer] for buffer in prim.inputs),
        constants=tuple(buffers[buffer] for buffer in prim.constants),
        output=buffers[prim.output],
        scratch=tuple(buffers[buffer] for buffer in prim.scratch),
        body=with_literals(_sized(prim.body, values), literals, buffers),
        macs=_number(prim.macs, values),
        symbols=(),
    )


def _sized(body: Stmt, values: dict[Symbol, int]) -> Stmt:
    """Return a body with numbers for the extents of its launches."""
    if isinstance(body, Seq):
        return Seq(tuple(_sized(stmt, values) for stmt in body.stmts))
    if not isinstance(body, Launch):
        return body
    x, y, z = (_number(extent, values) for extent in body.grid)
    return replace(body, grid=(x, y, z))


def _placed(buffer: Buffer, values: dict[Symbol, int]) -> Buffer:
    return replace(buffer, shape=tuple(_number(extent, values) for extent in buffer.shape))


def _number(extent: Any, values: dict[Symbol, int]) -> int:
    number = substituted(extent, values)
    if not isinstance(number, int) or number < 0:
        raise InternalError(f"an extent {extent} is {number}")
    return number

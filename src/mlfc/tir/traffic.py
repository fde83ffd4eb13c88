"""How many bytes of each of its buffers a function moves: what makes a tensor hot or cold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod

from mlfc.support import dtypes
from mlfc.support.dims import bounds
from mlfc.tir import ir
from mlfc.tir.bounds import Ranges
from mlfc.tir.ir import Buffer, PrimFunc, Stmt
from mlfc.tir.visitor import below, own_nodes


def traffic(prim: PrimFunc) -> Mapping[Buffer, int]:
    """Return the bytes that one call loads from and stores to each buffer, at most.

    Both branches of a condition count, and a loop counts as often as it can run: this tells hot buffers from cold
    ones, it is no measure of time.
    """
    counter = _Counter()
    counter.count(prim.body, 1)
    return counter.moved


class _Counter:
    def __init__(self) -> None:
        self.moved: Counter[Buffer] = Counter()
        self._ranges = Ranges()

    def count(self, stmt: Stmt, times: int) -> None:
        for node in own_nodes(stmt):
            if isinstance(node, ir.Load):
                self.moved[node.buffer] += times * dtypes.nbytes(node.dtype)
        if isinstance(stmt, ir.Store):
            self.moved[stmt.buffer] += times * dtypes.nbytes(stmt.value.dtype)
        elif isinstance(stmt, ir.For):
            longest = max(0, self._ranges.interval(stmt.extent).high)
            with self._ranges.scope():
                self._ranges.enter_loop(stmt)
                self.count(stmt.body, times * -(-longest // stmt.step))
        elif isinstance(stmt, ir.Launch):
            self._ranges.enter_launch(stmt)
            self.count(stmt.body, times * prod(bounds(extent)[1] for extent in stmt.grid) * prod(stmt.block))
        else:
            if isinstance(stmt, ir.Let):
                self._ranges.enter_let(stmt)
            for item in below(stmt):
                self.count(item, times)

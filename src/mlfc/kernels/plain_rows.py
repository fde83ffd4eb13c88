"""One row after another, as hosts take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from mlfc.kernels.folding import Axes, Fold, emit_fold, serial_loops
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Indices, Output, Reader
from mlfc.tir.ir import Expr


@dataclass(frozen=True)
class Kept:
    """A row that is written once and read back: each element by the one who wrote it."""

    store: Callable[[Indices, Expr], None]
    read: Reader


class PlainRows:
    """One row after another."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx

    @contextmanager
    def over(self, extents: Sequence[int]) -> Iterator[Sequence[Expr]]:
        """Open one serial loop an extent."""
        with serial_loops(self.ctx, extents, "row") as outer:
            yield outer

    @contextmanager
    def elements(self, shape: Sequence[int], prefix: str) -> Iterator[Sequence[Expr]]:
        """Open one loop an axis."""
        with self.ctx.loops(shape, prefix) as row:
            yield row

    def folded(self, name: str, shape: tuple[int, ...], read: Reader, fold: Fold) -> Expr:
        """Write the fold of a whole row and return its result."""
        result = self.ctx.stmts.local(name, (1,), fold.dtype)
        out = Output((), fold.dtype, lambda _, value: self.ctx.stmts.store(result, [0], value))
        emit_fold(self.ctx, read, Axes(shape, tuple(range(len(shape))), keepdims=False), fold, out)
        return tb.load(result, [0])

    def keep(self, name: str, shape: Sequence[int], dtype: str) -> Kept:
        """Return scratch, the same for all rows."""
        buffer = self.ctx.scratch(name, shape, dtype)
        return Kept(partial(self.ctx.stmts.store, buffer), partial(tb.load, buffer))

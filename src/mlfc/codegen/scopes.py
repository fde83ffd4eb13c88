"""What printers of statements ask: names in scope, which variables are read, which stores only add."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field

from mlfc.codegen.c_types import HALF_FLOATS
from mlfc.support import dtypes
from mlfc.support.c_names import sanitize
from mlfc.tir import ir
from mlfc.tir.ir import Buffer, Expr, Stmt, Var
from mlfc.tir.visitor import own_exprs, same_expr, walk, walk_expr


@dataclass(eq=False)
class Names:
    """C names of variables and buffers; a name is free again when the C block that declared it closes.

    Parameters
    ----------
    reserved : set of str
        What the names must not hide.
    """

    reserved: InitVar[Iterable[str]] = ()
    chosen: dict[int, str] = field(default_factory=dict)
    blocks: list[set[str]] = field(init=False)

    def __post_init__(self, reserved: Iterable[str]) -> None:
        self.blocks = [set(reserved)]

    def declare(self, node: Var | Buffer) -> str:
        """Choose the name of a variable or buffer in the open block."""
        base = sanitize(node.name)
        name, count = base, 0
        while any(name in block for block in self.blocks):
            count += 1
            name = f"{base}_{count}"
        self.blocks[-1].add(name)
        self.chosen[id(node)] = name
        return name

    def get(self, node: Var | Buffer) -> str:
        """Return the name that was chosen."""
        return self.chosen[id(node)]

    @contextmanager
    def block(self) -> Iterator[None]:
        """Open a block; names that are declared in it end with it."""
        self.blocks.append(set())
        try:
            yield
        finally:
            self.blocks.pop()


def accumulated(stmt: ir.Store) -> Expr | None:
    """Return what a store adds to the element it writes, in a dtype that C does not widen; else None."""
    value = stmt.value
    if not isinstance(value, ir.Binary) or value.op != "add" or not isinstance(value.a, ir.Load):
        return None
    dtype = value.dtype
    widens = dtypes.element(dtype) in HALF_FLOATS or (dtypes.bits(dtype) < 32 and dtypes.lanes(dtype) == 1)
    same = value.a.buffer is stmt.buffer and all(map(same_expr, value.a.indices, stmt.indices))
    return value.b if same and not widens else None


def used_vars(body: Stmt) -> set[int]:
    """Return the ids of variables that are read, leaving out those read only for variables that are not."""
    values: dict[int, Expr] = {}
    pending: list[Expr] = []
    for stmt in walk(body):
        if isinstance(stmt, ir.Let):
            values[id(stmt.var)] = stmt.value
        else:
            pending.extend(own_exprs(stmt))
    used: set[int] = set()
    while pending:
        for node in walk_expr(pending.pop()):
            if isinstance(node, ir.Var) and id(node) not in used:
                used.add(id(node))
                if id(node) in values:
                    pending.append(values[id(node)])
    return used

"""Printing of loop-level statements in C and its dialects, and the choice of loops that compilers must not unroll."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field

from mlfc.codegen.c_expr import ExprPrinter, Requirements
from mlfc.codegen.c_types import HALF_FLOATS
from mlfc.codegen.writer import Writer, comment_text
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.support.c_names import sanitize
from mlfc.tir import ir
from mlfc.tir.bounds import Ranges, held_intervals
from mlfc.tir.ir import Buffer, Expr, Stmt, Var
from mlfc.tir.visitor import own_nodes, same_expr, walk, walk_expr


@dataclass(eq=False)
class Names:
    """C names of variables and buffers; a name is available again after the C block that declared it.

    Local names must not hide those in `reserved`.
    """

    reserved: InitVar[Iterable[str]] = ()
    chosen: dict[int, str] = field(default_factory=dict)
    blocks: list[set[str]] = field(init=False)

    def __post_init__(self, reserved: Iterable[str]) -> None:
        self.blocks = [set(reserved)]

    def declare(self, node: Var | Buffer) -> str:
        """Choose the name of a variable or buffer in the current block."""
        base = sanitize(node.name)
        name, count = base, 0
        while any(name in block for block in self.blocks):
            count += 1
            name = f"{base}_{count}"
        self.blocks[-1].add(name)
        self.chosen[id(node)] = name
        return name

    def get(self, node: Var | Buffer) -> str:
        """Return the chosen name."""
        return self.chosen[id(node)]

    @contextmanager
    def block(self) -> Iterator[None]:
        """Open a block; names declared in it are released at its end."""
        self.blocks.append(set())
        try:
            yield
        finally:
            self.blocks.pop()


def accumulated(stmt: ir.Store) -> Expr | None:
    """Return the value that a store adds to the element it writes, in a dtype that C does not widen; else None."""
    value = stmt.value
    if not isinstance(value, ir.Binary) or value.op != "add" or not isinstance(value.a, ir.Load):
        return None
    dtype = value.dtype
    widens = dtypes.element(dtype) in HALF_FLOATS or (dtypes.bits(dtype) < 32 and dtypes.lanes(dtype) == 1)
    same = value.a.buffer is stmt.buffer and all(map(same_expr, value.a.indices, stmt.indices))
    return value.b if same and not widens else None


def used_vars(body: Stmt) -> set[int]:
    """Return the ids of variables that are read, except those read only by unused variables."""
    values: dict[int, Stmt] = {}
    pending: list[Stmt] = []
    for stmt in walk(body):
        if isinstance(stmt, ir.Let):
            values[id(stmt.var)] = stmt
        else:
            pending.append(stmt)
    used: set[int] = set()
    while pending:
        for node in own_nodes(pending.pop()):
            if isinstance(node, ir.Var) and id(node) not in used:
                used.add(id(node))
                if id(node) in values:
                    pending.append(values[id(node)])
    return used


class StatementPrinter(ABC):
    """Prints statements, with a scope of names and of known ranges per block.

    Parameters
    ----------
    body : Stmt
        The complete code to print: variables that it does not read are omitted.
    reserved : frozenset of str
        Names that local names must not hide.
    place : str
        Position for error messages.
    ranges : Ranges, optional
        The known ranges around the code, if it is a part of other code.
    """

    _exprs: ExprPrinter

    def __init__(self, body: Stmt, reserved: frozenset[str], place: str, ranges: Ranges | None = None) -> None:
        self._names = Names(reserved)
        self._ranges = ranges or Ranges(held_intervals(body))
        self._needs = Requirements()
        self._writer = Writer()
        self._used = used_vars(body)
        self._place = place

    @abstractmethod
    def _store(self, stmt: ir.Store) -> None:
        """Print a store."""

    @abstractmethod
    def _declare(self, var: Var, value: Expr) -> None:
        """Print a variable and its initial value."""

    @abstractmethod
    def _allocate(self, stmt: ir.Allocate) -> None:
        """Print an array."""

    @abstractmethod
    def _loop_hint(self, stmt: ir.For) -> str:
        """Return the line before a loop with hints for compilers; empty for none."""

    @abstractmethod
    def _special(self, stmt: Stmt) -> bool:
        """Print a statement that is specific to this language; return whether it was one."""

    def _stmt(self, stmt: Stmt) -> None:
        # first, because a fence is also a comment
        if self._special(stmt):
            return
        if isinstance(stmt, ir.Seq):
            for item in stmt.stmts:
                self._stmt(item)
        elif isinstance(stmt, ir.Store):
            self._store(stmt)
        elif isinstance(stmt, ir.For):
            self._loop(stmt)
        elif isinstance(stmt, ir.If):
            self._branch(stmt)
        elif isinstance(stmt, ir.Let):
            if id(stmt.var) in self._used:
                self._declare(stmt.var, stmt.value)
                self._ranges.enter_let(stmt)
            self._stmt(stmt.body)
        elif isinstance(stmt, ir.Allocate):
            self._allocate(stmt)
            self._stmt(stmt.body)
        elif isinstance(stmt, ir.Comment):
            self._writer.line(f"/* {comment_text(stmt.text)} */")
        else:
            raise InternalError(f"this language does not support {type(stmt).__name__.lower()}", place=self._place)

    @contextmanager
    def _block(self, head: str, tail: str = "}") -> Iterator[None]:
        with self._writer.block(head, tail), self._names.block(), self._ranges.scope():
            yield

    def _loop(self, stmt: ir.For) -> None:
        extent = self._exprs.expr(stmt.extent, 9)
        with self._names.block(), self._ranges.scope():
            self._ranges.enter_loop(stmt)
            var = self._names.declare(stmt.var)
            step = f"++{var}" if stmt.step == 1 else f"{var} += {stmt.step}"
            if hint := self._loop_hint(stmt):
                self._writer.line(hint)
            start = "0"
            if stmt.part is not None:
                start, extent = (self._exprs.expr(end, 9) for end in stmt.part)
            head = f"for (int32_t {var} = {start}; {var} < {extent}; {step})"
            tail = "}"
            if stmt.until is not None:
                if id(stmt.var) in self._used:
                    raise InternalError("a loop that ends by a condition cannot have a counter", place=self._place)
                head, tail = "do", f"}} while (!({self._exprs.expr(stmt.until)}));"
            with self._block(head, tail):
                self._stmt(stmt.body)

    def _branch(self, stmt: ir.If) -> None:
        tail = "}" if stmt.otherwise is None else "} else {"
        with self._block(f"if ({self._exprs.expr(stmt.condition)})", tail):
            self._ranges.assume(stmt.condition)
            self._stmt(stmt.then)
        if stmt.otherwise is not None:
            with self._writer.indented(), self._names.block(), self._ranges.scope():
                self._ranges.assume(stmt.condition, holds=False)
                self._stmt(stmt.otherwise)
            self._writer.line("}")


FEWEST = 8
"""Minimum iterations of a scalar loop that is kept rolled if its body is long; fewer do not fill a register."""


def keeps_rolled(loop: ir.For) -> bool:
    """Return whether compilers must not unroll a loop: each iteration requantizes, or it runs over rows of integers.

    Copies of a long body take space and hardly save time: unrolled over the pixels of a tile and over registers of
    channels, as compilers do with -O3, requantizations were half of an integer layer's code. At the highest level,
    loops are still unrolled: its processors are chosen for speed, and their wide vectors need the fewest instructions.
    """
    if not isinstance(loop.extent, ir.Const) or loop.until is not None or loop.kind not in ("serial", "vectorized"):
        return False
    loops, is_long, stmt = 0, False, loop.body
    while not isinstance(stmt, ir.Store):
        if isinstance(stmt, ir.For) and isinstance(stmt.extent, ir.Const):
            loops += 1
        elif isinstance(stmt, ir.Let):
            is_long = is_long or _requantizes(stmt)
        elif not (isinstance(stmt, ir.Seq) and len(stmt.stmts) == 1):
            return False
        stmt = stmt.stmts[0] if isinstance(stmt, ir.Seq) else stmt.body
    store = stmt
    # compilers keep an element to which unrolled loops add in a register
    accumulates = any(
        isinstance(node, ir.Load) and node.buffer is store.buffer and all(map(same_expr, node.indices, store.indices))
        for node in walk_expr(store.value)
    )
    if not dtypes.is_integer(dtypes.element(stmt.value.dtype)) or accumulates:
        return False
    is_filled = dtypes.lanes(stmt.value.dtype) > 1 or int(loop.extent.value) >= FEWEST
    # with hints on the loops around those, gcc 12 unrolls more than without
    return loops == 1 or (loops == 0 and is_filled and (is_long or _requantizes(stmt)))


def _requantizes(stmt: Stmt) -> bool:
    return any(isinstance(node, ir.Call) and node.name.startswith("requantize") for node in own_nodes(stmt))

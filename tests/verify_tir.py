"""Check loop-level functions: scopes, dtypes, arities, and that every access stays inside its buffer.

Bounds are proven by interval analysis (`tir.bounds`). It is sound and simple, not complete: a rule whose accesses it
cannot prove should guard or clamp them.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.support.dims import Dim, bounds, symbols_of
from mlfc.tir import ir
from mlfc.tir.bounds import Ranges, float_range
from mlfc.tir.extents import variable
from mlfc.tir.intrinsics import INTRINSICS
from mlfc.tir.ir import Buffer, Expr, PrimFunc, Stmt
from mlfc.tir.visitor import below, children, own_exprs, walk, walk_expr

_SHIFTS = ("shl", "shr")
_INTEGER_ONLY = frozenset({"floordiv", "floormod", "truncdiv", "truncmod", "and", "or", "xor", "shl", "shr"})
_KINDS = ("serial", "unrolled", "vectorized", "parallel", "rolled")
_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "floormod": "%", "and": "&", "or": "|",
    "xor": "^", "shl": "<<", "shr": ">>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "land": "and", "lor": "or",
}  # fmt: skip


def verify(prim: PrimFunc) -> None:
    """Raise InternalError at the first fault of a function; the cause names buffer, index and range."""
    _Verifier(prim).run()


class _Verifier:
    def __init__(self, prim: PrimFunc) -> None:
        self._prim = prim
        self._ranges = Ranges()
        self._bound: set[int] = set()  # all so far, because a variable is bound once in a function
        self._vars: set[int] = set()  # those in scope
        self._buffers: set[int] = set()
        self._readonly = {id(buffer) for buffer in (*prim.inputs, *prim.constants)}
        self._launched = False
        self._symbols = frozenset(prim.symbols)
        self._ranges.know_buffers((*prim.params, *prim.scratch))

    def run(self) -> None:
        self._vars.update(id(variable(symbol)) for symbol in self._symbols)
        for buffers, scope in ((self._prim.params, "param"), (self._prim.scratch, "scratch")):
            for buffer in buffers:
                self._require(buffer.scope == scope, f"buffer {buffer.name} has scope {buffer.scope}, not {scope}")
                self._declare(buffer)
        self._stmt(self._prim.body)

    def _require(self, holds: bool, cause: str) -> None:
        if not holds:
            raise InternalError(cause, place=self._prim.name)

    def _declare(self, buffer: Buffer) -> None:
        self._require(id(buffer) not in self._buffers, f"buffer {buffer.name} is declared twice")
        is_shape = all(bounds(extent)[0] >= 0 for extent in buffer.shape)
        self._require(is_shape, f"buffer {buffer.name} has shape {buffer.shape}")
        for symbol in symbols_of(buffer.shape):
            self._require(symbol in self._symbols, f"buffer {buffer.name} has shape {buffer.shape} of no parameters")
        self._require(
            dtypes.element(buffer.dtype) in dtypes.SCALARS, f"buffer {buffer.name} has the unknown dtype {buffer.dtype}"
        )
        self._buffers.add(id(buffer))

    def _bind(self, var: ir.Var) -> None:
        self._require(id(var) not in self._bound, f"variable {var.name} is bound twice")
        self._bound.add(id(var))
        self._vars.add(id(var))

    # statements -----------------------------------------------------------------------------------------

    def _stmt(self, stmt: Stmt) -> None:
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
            self._expr(stmt.value)
            self._require(
                stmt.value.dtype == stmt.var.dtype,
                f"variable {stmt.var.name} of {stmt.var.dtype} is bound to {stmt.value.dtype}",
            )
            self._bind(stmt.var)
            self._ranges.enter_let(stmt)
            self._stmt(stmt.body)
            self._vars.discard(id(stmt.var))
        elif isinstance(stmt, ir.Allocate):
            self._allocate(stmt)
        elif isinstance(stmt, ir.Launch):
            self._launch(stmt)
        elif isinstance(stmt, ir.Prefetch):
            self._prefetch(stmt)
        elif isinstance(stmt, ir.Barrier):
            self._require(self._launched, "a barrier stands outside every launch")
        elif isinstance(stmt, ir.External):
            for value in own_exprs(stmt):
                self._expr(value)
        else:
            self._require(isinstance(stmt, ir.Comment), f"a {type(stmt).__name__} is no statement")

    def _allocate(self, stmt: ir.Allocate) -> None:
        allowed = ("local", "shared") if self._launched else ("local",)
        self._require(stmt.buffer.scope in allowed, f"buffer {stmt.buffer.name} is allocated but not local")
        self._declare(stmt.buffer)
        self._stmt(stmt.body)
        self._buffers.discard(id(stmt.buffer))

    def _launch(self, stmt: ir.Launch) -> None:
        self._require(not self._launched, "a launch stands inside another")
        sizes = f"a launch of {stmt.grid} groups of {stmt.block}"
        self._require(all(bounds(extent)[0] >= 1 for extent in (*stmt.grid, *stmt.block)), f"{sizes} is empty")
        # launchers check group counts that are runtime values
        most = [0 if isinstance(extent, Dim) else extent for extent in stmt.grid]
        few = most[0] <= ir.MOST_GROUPS and max(most[1:]) <= ir.MOST_GROUPS_ACROSS
        self._require(few, f"{sizes} is larger than devices take")
        for cause in _uneven_barriers(stmt):
            raise InternalError(cause, place=self._prim.name)
        for var, _ in stmt.ranges:
            self._bind(var)
        self._ranges.enter_launch(stmt)
        self._launched = True
        self._stmt(stmt.body)
        self._launched = False
        self._vars.difference_update(id(var) for var, _ in stmt.ranges)

    def _loop(self, stmt: ir.For) -> None:
        self._expr(stmt.extent)
        name = stmt.var.name
        self._require(stmt.var.dtype == stmt.extent.dtype == "int32", f"loop {name} does not count in int32")
        self._require(stmt.step >= 1, f"loop {name} has the step {stmt.step}")
        self._require(stmt.kind in _KINDS, f"loop {name} has the unknown kind {stmt.kind}")
        self._require(
            stmt.kind != "unrolled" or isinstance(stmt.extent, ir.Const),
            f"the unrolled loop {name} has no constant extent",
        )
        if stmt.until is not None:
            self._expr(stmt.until)
            self._require(stmt.until.dtype == "bool", f"loop {name} ends by {stmt.until.dtype}, not bool")
            is_read = any(stmt.var in walk_expr(expr) for item in walk(stmt.body) for expr in own_exprs(item))
            is_plain = not is_read and stmt.kind == "serial" and stmt.step == 1 and not self._launched
            self._require(is_plain, f"loop {name} ends early, which only serial loops of the host do")
        self._bind(stmt.var)
        if self._ranges.interval(stmt.extent).high > 0:  # a loop without iterations accesses nothing
            with self._ranges.scope():
                self._ranges.enter_loop(stmt)
                self._stmt(stmt.body)
        self._vars.discard(id(stmt.var))

    def _branch(self, stmt: ir.If) -> None:
        self._expr(stmt.condition)
        self._require(stmt.condition.dtype == "bool", f"a condition is {stmt.condition.dtype}, not bool")
        for body, holds in ((stmt.then, True), (stmt.otherwise, False)):
            if body is not None:
                with self._ranges.scope():
                    self._ranges.assume(stmt.condition, holds)
                    if self._ranges.may_hold():
                        self._stmt(body)

    def _store(self, stmt: ir.Store) -> None:
        self._expr(stmt.value)
        self._require(id(stmt.buffer) not in self._readonly, f"{stmt.buffer.name} is an input and is written")
        self._access(stmt.buffer, stmt.indices, stmt.value.dtype)

    def _prefetch(self, stmt: ir.Prefetch) -> None:
        buffer, offset = stmt.buffer, stmt.offset
        self._require(id(buffer) in self._buffers, f"buffer {buffer.name} is used outside its scope")
        self._expr(offset)
        self._require(offset.dtype == "int32", f"the place of a prefetch of {buffer.name} is {offset.dtype}, not int32")
        inside = self._ranges.is_index(offset, buffer.size - 1)
        self._require(inside, f"a prefetch at {expr_text(offset)} is not proven to be inside of {buffer.name}")

    # expressions ----------------------------------------------------------------------------------------

    def _access(self, buffer: Buffer, indices: tuple[Expr, ...], dtype: str) -> None:
        self._require(id(buffer) in self._buffers, f"buffer {buffer.name} is used outside its scope")
        self._require(
            len(indices) == len(buffer.shape), f"{len(indices)} indices into {buffer.name} of shape {buffer.shape}"
        )
        for index in indices:
            self._expr(index)
            self._require(index.dtype == "int32", f"an index into {buffer.name} is {index.dtype}, not int32")
        lanes = 1
        if dtype != buffer.dtype:
            lanes = dtypes.lanes(dtype)
            as_vector = lanes > 1 and dtypes.element(dtype) == buffer.dtype and bool(buffer.shape)
            self._require(as_vector, f"{buffer.name} of {buffer.dtype} is accessed as {dtype}")
        for axis, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            last = extent - (lanes if axis == len(indices) - 1 else 1)
            if not self._ranges.is_index(index, last):
                known = self._ranges.interval(index, 2)
                raise InternalError(
                    f"index {expr_text(index)} of axis {axis} of {buffer.name} {list(buffer.shape)} lies in "
                    f"[{known.low}, {known.high}], which is not proven to be inside [0, {last}]",
                    place=self._prim.name,
                )

    def _expr(self, expr: Expr) -> None:
        if isinstance(expr, ir.Var):
            self._require(id(expr) in self._vars, f"variable {expr.name} is used outside its scope")
        elif isinstance(expr, ir.Load):
            self._access(expr.buffer, expr.indices, expr.dtype)
        elif isinstance(expr, ir.Select):
            self._select(expr)
        elif isinstance(expr, ir.Binary):
            self._binary(expr)
        else:
            for child in children(expr):
                self._expr(child)
            self._typed(expr)

    def _select(self, expr: ir.Select) -> None:
        self._expr(expr.condition)
        self._require(
            dtypes.element(expr.condition.dtype) == "bool", f"a condition is {expr.condition.dtype}, not bool"
        )
        same = expr.then.dtype == expr.otherwise.dtype == expr.dtype
        self._require(same, f"select of {expr.then.dtype} and {expr.otherwise.dtype} is called {expr.dtype}")
        for arm, holds in ((expr.then, True), (expr.otherwise, False)):
            with self._ranges.scope():
                self._ranges.assume(expr.condition, holds)
                if self._ranges.may_hold():
                    self._expr(arm)

    def _binary(self, expr: ir.Binary) -> None:
        self._expr(expr.a)
        with self._ranges.scope():
            if expr.op in ("land", "lor"):  # the right side is evaluated only if the left does not decide
                self._ranges.assume(expr.a, expr.op == "land")
            self._expr(expr.b)
        a, b = expr.a.dtype, expr.b.dtype
        self._require(expr.op in ir.BINARY, f"there is no operator {expr.op}")
        self._require(a == b or (expr.op in _SHIFTS and dtypes.element(b) == "int32"), f"'{expr.op}' of {a} and {b}")
        result = dtypes.vector("bool", dtypes.lanes(a)) if expr.op in ir.COMPARISONS else a
        self._require(expr.dtype == result, f"'{expr.op}' of {a} is called {expr.dtype}")
        wrong = dtypes.is_float(a) if expr.op in _INTEGER_ONLY else expr.op == "div" and not dtypes.is_float(a)
        self._require(not wrong, f"'{expr.op}' of {a}")

    def _typed(self, expr: Expr) -> None:
        if isinstance(expr, ir.Call):
            self._require(expr.name in INTRINSICS, f"there is no intrinsic {expr.name}")
            count = INTRINSICS.get(expr.name).num_args
            self._require(len(expr.args) == count, f"{expr.name} takes {count} arguments, not {len(expr.args)}")
        elif isinstance(expr, ir.Cast):
            same = dtypes.lanes(expr.dtype) == dtypes.lanes(expr.value.dtype)
            self._require(same, f"a cast of {expr.value.dtype} to {expr.dtype} changes the lanes")
            if dtypes.is_float(expr.value.dtype) and dtypes.is_integer(expr.dtype):
                known = float_range(expr.value)
                wanted = f"{expr_text(expr.value)} becomes {expr.dtype}, whatever it is: `truncated` would limit it"
                self._require(known.fits(dtypes.element(expr.dtype)), wanted)
        elif isinstance(expr, ir.Broadcast):
            scalar = expr.value.dtype == dtypes.element(expr.dtype)
            self._require(scalar, f"a broadcast of {expr.value.dtype} to {expr.dtype}")
        elif isinstance(expr, ir.Const):
            self._require(dtypes.lanes(expr.dtype) == 1, f"a literal is {expr.dtype}")


def expr_text(expr: Expr) -> str:
    """Return an expression in a notation close to Python's."""
    if isinstance(expr, ir.Const):
        return str(expr.value)
    if isinstance(expr, ir.Var):
        return expr.name
    inner = [expr_text(child) for child in children(expr)]
    if isinstance(expr, ir.Binary) and expr.op in _SYMBOLS:
        return f"({inner[0]} {_SYMBOLS[expr.op]} {inner[1]})"
    if isinstance(expr, ir.Load):
        return f"{expr.buffer.name}[{', '.join(inner)}]"
    if isinstance(expr, ir.Select):
        return f"({inner[1]} if {inner[0]} else {inner[2]})"
    head = expr.op if isinstance(expr, ir.Binary) else expr.name if isinstance(expr, ir.Call) else expr.dtype
    return f"{head}({', '.join(inner)})"


def _uneven_barriers(launch: ir.Launch) -> Iterator[str]:
    """Yield conditions that may keep the work-items of a group from reaching a barrier together.

    A value computed from a work-item's own index, memory or variables may differ between work-items.
    """
    yield from _uneven(launch.body, {id(var) for var in launch.items})


def _uneven(stmt: Stmt, own: set[int]) -> Iterator[str]:
    if isinstance(stmt, ir.Let) and _differs(stmt.value, own):
        own.add(id(stmt.var))
    if isinstance(stmt, (ir.For, ir.If)) and any(isinstance(item, ir.Barrier) for item in walk(stmt)):
        if any(_differs(expr, own) for expr in own_exprs(stmt)):
            what = "loop" if isinstance(stmt, ir.For) else "condition"
            yield f"a barrier stands in a {what} that depends on the work-item"
    elif isinstance(stmt, ir.For) and _differs(stmt.extent, own):
        own.add(id(stmt.var))
    for item in below(stmt):
        yield from _uneven(item, own)


def _differs(expr: Expr, own: set[int]) -> bool:
    return any(isinstance(node, ir.Load) or id(node) in own for node in walk_expr(expr))

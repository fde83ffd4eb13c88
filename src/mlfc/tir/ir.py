"""The loop-level IR: plain data for one fused function, the only input of printers, proofs and cost models.

Nodes are immutable and compared by identity. Index arithmetic is int32. `Select` evaluates only the branch it takes, so
a guarded load is legal.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, ClassVar, TypeAlias

from mlfc.support import dtypes
from mlfc.support.dims import Shape, Symbol
from mlfc.support.nodes import node

BINARY = (
    "add", "sub", "mul", "div",  # div: floats only
    "floordiv", "floormod", "truncdiv", "truncmod",  # integers only
    "min", "max", "and", "or", "xor", "shl", "shr",  # shr keeps the sign of signed values
    "eq", "ne", "lt", "le", "gt", "ge", "land", "lor",  # result bool
)  # fmt: skip
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "land", "lor"})


def _operator(op: str, *, reflected: bool = False) -> Callable[[Any, Any], Expr]:
    def apply(a: Any, b: Any) -> Expr:
        return ExprOps.build(op, b, a) if reflected else ExprOps.build(op, a, b)

    return apply


class ExprOps:
    """Python operators on expressions; they fold constants."""

    dtype: str
    build: ClassVar[Callable[[str, Any, Any], Expr]]  # `builder.binary`, set there: it imports this file

    __add__ = _operator("add")
    __radd__ = _operator("add", reflected=True)
    __sub__ = _operator("sub")
    __rsub__ = _operator("sub", reflected=True)
    __mul__ = _operator("mul")
    __rmul__ = _operator("mul", reflected=True)
    __truediv__ = _operator("div")
    __rtruediv__ = _operator("div", reflected=True)
    __floordiv__ = _operator("floordiv")
    __mod__ = _operator("floormod")
    __and__ = _operator("and")
    __or__ = _operator("or")
    __xor__ = _operator("xor")
    __lshift__ = _operator("shl")
    __rshift__ = _operator("shr")

    __rfloordiv__ = _operator("floordiv", reflected=True)
    __rmod__ = _operator("floormod", reflected=True)

    def __neg__(self) -> Expr:
        return ExprOps.build("sub", 0, self)


@node(frozen=True, eq=False)
class Var(ExprOps):
    """A scalar or vector bound once by a loop or a Let; a symbol's variable is a parameter of the function."""

    name: str
    dtype: str = "int32"
    symbol: Symbol | None = None


@node(frozen=True, eq=False)
class Const(ExprOps):
    """A literal of an integer, float or bool scalar dtype."""

    value: int | float
    dtype: str = "int32"


@node(frozen=True, eq=False)
class Binary(ExprOps):
    """`op` of BINARY on two operands of one dtype; shifts take an int32 amount."""

    op: str
    a: Expr
    b: Expr
    dtype: str


@node(frozen=True, eq=False)
class Select(ExprOps):
    """``then`` if ``condition`` (bool) is true, else ``otherwise``; lazy, like C's ``?:``."""

    condition: Expr
    then: Expr
    otherwise: Expr
    dtype: str


@node(frozen=True, eq=False)
class Cast(ExprOps):
    """Convert as C does; float to integer truncates and must fit, to bool tests against zero."""

    value: Expr
    dtype: str


@node(frozen=True, eq=False)
class Load(ExprOps):
    """Read a buffer; with a vector dtype, that many consecutive elements along the last axis.

    On a buffer whose own dtype is a vector, ``dtype`` equals the buffer's and one element is read.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    dtype: str


@node(frozen=True, eq=False)
class Broadcast(ExprOps):
    """A scalar in every lane of a vector."""

    value: Expr
    dtype: str


@node(frozen=True, eq=False)
class Call(ExprOps):
    """An intrinsic of `tir.intrinsics` applied to arguments."""

    name: str
    args: tuple[Expr, ...]
    dtype: str


Expr: TypeAlias = "Var | Const | Binary | Select | Cast | Load | Broadcast | Call"


@node(frozen=True, eq=False)
class Buffer:
    """Row-major memory; dynamic extents are `Dim` of the function's symbols."""

    name: str
    shape: Shape
    dtype: str
    # ``param`` (a pointer parameter), ``scratch`` (in the workspace, placed by the memory plan), ``local`` (on the
    # stack or in registers, created by Allocate; each work-item of a launch has its own), ``shared`` (created by
    # Allocate in a launch and shared by the work-items of a group)
    scope: str = "param"
    # the narrow dtype encoded in the bytes, if any; used by argument checks
    holds: str | None = None

    @property
    def size(self) -> Any:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> Any:
        """Size in bytes."""
        return self.size * dtypes.nbytes(self.dtype)


@node(frozen=True, eq=False)
class For:
    """Loop ``for var in range(0, extent, step)``.

    `kind`: ``serial``; ``unrolled`` (the printer may unroll it; extent is constant and small); ``vectorized``
    (iterations are independent and unit-stride: the compiler may use lanes); ``parallel`` (iterations are independent);
    ``rolled`` (the compiler must not unroll it).
    `until`: a bool that is evaluated after each iteration and ends the loop when true. It must become true within
    `extent` iterations, so printers need not count iterations; serial loops only.
    `fresh`: scratch in which no iteration reads values written by another one.
    `part`: the bounds of the loop, start inclusive and end exclusive, which may be outside its range.
    """

    var: Var
    extent: Expr
    body: Stmt
    kind: str = "serial"
    step: int = 1
    until: Expr | None = None
    fresh: tuple[Buffer, ...] = ()
    part: tuple[Expr, Expr] | None = None


@node(frozen=True, eq=False)
class Store:
    """Write `value`; a vector value writes that many elements along the last axis."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@node(frozen=True, eq=False)
class If:
    """Run `then` if `condition` is true, else `otherwise`."""

    condition: Expr
    then: Stmt
    otherwise: Stmt | None = None


@node(frozen=True, eq=False)
class Let:
    """Bind `var` to `value` within `body`.

    `carried`: scratch whose contents pass from one iteration to the next of a loop, the body's last statement. `var` is
    then the first iteration of that loop, and the statements before it only fill this scratch, for any value of `var`.
    `fresh`: scratch whose contents before the body are not read.
    """

    var: Var
    value: Expr
    body: Stmt
    carried: tuple[Buffer, ...] = ()
    fresh: tuple[Buffer, ...] = ()


@node(frozen=True, eq=False)
class Allocate:
    """Allocate `buffer` (scope ``local`` or ``shared``) within `body`; its contents are initially undefined."""

    buffer: Buffer
    body: Stmt


@node(frozen=True, eq=False)
class Seq:
    """Statements in order."""

    stmts: tuple[Stmt, ...]


@node(frozen=True, eq=False)
class Comment:
    """A line for the reader of the generated code."""

    text: str


@node(frozen=True, eq=False)
class Fence(Comment):
    """A comment that is also a compiler barrier: memory contents are not kept in registers across it.

    It follows a loop that needs all registers, as compilers hoist loads for later loops above that loop.

    `buffer`: the only array of the function that must be in memory here. Compilers may keep others in registers.
    """

    buffer: Buffer | None = None


@node(frozen=True, eq=False)
class Prefetch(Comment):
    """A comment that is also a prefetch of an element of a buffer to the second-level cache.

    `offset` is its position in row-major order. Results do not depend on it.
    """

    buffer: Buffer
    offset: Expr


@node(frozen=True, eq=False)
class Require(Prefetch):
    """Return -1 from the function unless an element of a bool buffer is true; device code continues."""


@node(frozen=True, eq=False)
class External:
    """Code of an external code generator that replaces loops; the whole body of a function."""

    generator: str  # its name, in `byoc.GENERATORS`
    # C statements; ``${name}`` is replaced by the pointer to the function's buffer of that name. Empty if `module`
    # computes the function.
    text: str = ""
    # declarations before functions with such text, each once per file: includes, prototypes
    declarations: tuple[str, ...] = ()
    objects: tuple[bytes, ...] = ()  # relocatable objects to link
    module: bytes | None = None  # the input from which the generator creates a runtime module with the function
    # further values of ``${name}``: int64, as runtime values may be arbitrarily large
    extents: tuple[tuple[str, Expr], ...] = ()


MOST_GROUPS, MOST_GROUPS_ACROSS = (1 << 31) - 1, 65535
"""Maximum groups of a launch along x, and along y and z: CUDA's limits, the lowest of all devices."""


@node(frozen=True, eq=False)
class Launch:
    """Run `body` once for each work-item of a grid of work-groups, in any order and concurrently: a device kernel.

    It is at the top of a function, or in a Seq at the top; launches of a function run sequentially. A work-item must
    not access an element of a parameter or scratch buffer that another one writes; values that a work-item wrote to a
    shared buffer before a `Barrier` are visible to the others of its group after it.
    """

    grid: tuple[Any, Any, Any]  # groups along x, y and z, which may be `Dim` of the function's symbols
    block: tuple[int, int, int]  # work-items of a group along x, y and z; neighbours along x run together
    groups: tuple[Var, Var, Var]  # index of the group in the grid
    items: tuple[Var, Var, Var]  # index of the work-item in its group
    body: Stmt

    @property
    def ranges(self) -> tuple[tuple[Var, Any], ...]:
        """The six variables, each with its number of values."""
        return tuple(zip((*self.groups, *self.items), (*self.grid, *self.block), strict=True))


@node(frozen=True, eq=False)
class Barrier:
    """Wait until all work-items of the group arrive; their writes to shared buffers are then visible to all.

    All work-items of a group must reach it, or none: no loop or condition around it depends on the work-item.
    """


@node(frozen=True, eq=False)
class Parallel:
    """Run `body`, which computes the pieces ``first`` to ``last - 1``, for ranges that cover ``[0, count)``.

    Ranges run in any order and concurrently: pieces do not access elements that others write, except `private` scratch,
    of which each thread has its own copy. `tir.parallel` creates them; printers without support run a single range.
    """

    count: Expr
    first: Var
    last: Var
    body: Stmt
    private: tuple[Buffer, ...]
    work: float | Expr  # of all pieces; see `tir.parallel`


Stmt: TypeAlias = "For | Store | If | Let | Allocate | Seq | Comment | Launch | Barrier | External | Parallel"


@node(frozen=True, eq=False)
class PrimFunc:
    """One fused function at loop level.

    The C signature is the pointers of `inputs`, `constants` and `output` in that order, then, if `scratch` is not
    empty, one ``uint8_t *workspace`` with the scratch buffers at the offsets of `scratch_offsets`, then one ``int32_t``
    for each of `symbols`. Callers ensure that each of these is within its symbol's bounds, and that no extent and no
    tensor's number of elements exceeds int32.
    """

    name: str  # readable name from its operators: ``fused_nn_conv2d_nn_relu``; made unique by the program
    inputs: tuple[Buffer, ...]
    constants: tuple[Buffer, ...]
    output: Buffer
    scratch: tuple[Buffer, ...]
    body: Stmt
    # positions in `inputs` that may share memory with `output`: every element is read before the element at the same
    # byte is written, and never after
    inplace: tuple[int, ...] = ()
    macs: Any = 0  # multiply-accumulates of one call
    # device kind of the code, as in `target.TargetKind`; None for host code
    device: str | None = None
    symbols: tuple[Symbol, ...] = ()  # extents that callers pass; `extents.variable` returns each one's variable
    # replacements of the function on processors of higher levels, by level: functions of the same parameters, which may
    # read other constants and have their own scratch within the same bytes
    variants: tuple[tuple[str, PrimFunc], ...] = ()

    def __repr__(self) -> str:
        return f"<PrimFunc {self.name}>"

    def at(self, level: str) -> PrimFunc:
        """Return the function for processors of a level."""
        return dict(self.variants).get(level, self)

    @property
    def external(self) -> External | None:
        """The body if an external code generator wrote it, else None."""
        return self.body if isinstance(self.body, External) else None

    @property
    def params(self) -> tuple[Buffer, ...]:
        """Pointer parameters in order."""
        return (*self.inputs, *self.constants, self.output)

    @property
    def scratch_offsets(self) -> tuple[Any, ...]:
        """Byte offset of each scratch buffer from the workspace pointer, each aligned to 64."""
        offsets: list[Any] = []
        end: Any = 0
        for buffer in self.scratch:
            offsets.append(end)
            end += (buffer.nbytes + 63) // 64 * 64
        return tuple(offsets)

    @property
    def scratch_bytes(self) -> Any:
        """Bytes of workspace that one call needs."""
        if not self.scratch:
            return 0
        return self.scratch_offsets[-1] + self.scratch[-1].nbytes

    @property
    def workspaces(self) -> tuple[Any, ...]:
        """Bytes of each scratch block that a launcher passes: one block on the host, one per buffer on a device."""
        if self.device is not None:
            return tuple(buffer.nbytes for buffer in self.scratch)
        return (self.scratch_bytes,) if self.scratch else ()

"""The loop-level IR: plain data for one fused function, which is all that printers, proofs and models read.

Nodes are immutable and compared by identity. Index arithmetic is int32. `Select` evaluates only the branch it takes, so
a guarded load is legal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, TypeAlias

from mlfc.support import dtypes
from mlfc.support.dims import Shape, Symbol

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
    """Operators of Python on expressions; they fold constants."""

    dtype: str
    build: ClassVar[Callable[[str, Any, Any], Expr]]  # `builder.binary`, which is set there: it stands on this file

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


@dataclass(frozen=True, eq=False)
class Var(ExprOps):
    """A scalar (or vector) bound once by a loop or a Let; that of a symbol is a parameter of the function."""

    name: str
    dtype: str = "int32"
    symbol: Symbol | None = None


@dataclass(frozen=True, eq=False)
class Const(ExprOps):
    """A literal of an integer, float or bool scalar dtype."""

    value: int | float
    dtype: str = "int32"


@dataclass(frozen=True, eq=False)
class Binary(ExprOps):
    """`op` of BINARY on two operands of one dtype; shifts take an int32 amount."""

    op: str
    a: Expr
    b: Expr
    dtype: str


@dataclass(frozen=True, eq=False)
class Select(ExprOps):
    """``then`` where ``condition`` (bool) holds, else ``otherwise``; lazy, like C's ``?:``."""

    condition: Expr
    then: Expr
    otherwise: Expr
    dtype: str


@dataclass(frozen=True, eq=False)
class Cast(ExprOps):
    """Convert as C does; float to integer truncates and must fit, to bool tests against zero."""

    value: Expr
    dtype: str


@dataclass(frozen=True, eq=False)
class Load(ExprOps):
    """Read a buffer; with a vector dtype, that many elements from the given one on along the last axis.

    On a buffer whose own dtype is a vector, ``dtype`` equals the buffer's and one element is read.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class Broadcast(ExprOps):
    """A scalar in every lane of a vector."""

    value: Expr
    dtype: str


@dataclass(frozen=True, eq=False)
class Call(ExprOps):
    """An intrinsic of `tir.intrinsics` applied to arguments."""

    name: str
    args: tuple[Expr, ...]
    dtype: str


Expr: TypeAlias = "Var | Const | Binary | Select | Cast | Load | Broadcast | Call"


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory, row-major; extents that are no integers are `Dim` of the function's symbols."""

    name: str
    shape: Shape
    dtype: str
    # ``param`` (a pointer parameter), ``scratch`` (in the workspace, placed by the memory plan), ``local`` (on the
    # stack or in registers, made by Allocate; each work-item of a launch has its own), ``shared`` (made by Allocate
    # in a launch: the work-items of a group have it together)
    scope: str = "param"
    # the narrow dtype whose bits the bytes are, where they are some: for those who check arguments
    holds: str | None = None

    @property
    def size(self) -> Any:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> Any:
        """Bytes."""
        return self.size * dtypes.nbytes(self.dtype)


@dataclass(frozen=True, eq=False)
class For:
    """``for var in range(0, extent, step)``.

    `kind`: ``serial``; ``unrolled`` (the printer may spell out the copies; extent is constant and
    small); ``vectorized`` (iterations are independent and unit-stride: the compiler may use lanes);
    ``parallel`` (iterations are independent); ``rolled`` (the compiler must not spell it out).
    `until`: a bool that is asked after each iteration, and ends the loop where it holds. Its maker knows that it holds
    after `extent` iterations at the latest, so printers need not count what the body does not; serial loops only.
    `fresh`: scratch of which no iteration reads what another one wrote.
    `part`: the loop runs from the first of these on, to before the second, which may lie beyond its range's ends.
    """

    var: Var
    extent: Expr
    body: Stmt
    kind: str = "serial"
    step: int = 1
    until: Expr | None = None
    fresh: tuple[Buffer, ...] = ()
    part: tuple[Expr, Expr] | None = None


@dataclass(frozen=True, eq=False)
class Store:
    """Write `value`; a vector value writes that many elements along the last axis."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, eq=False)
class If:
    """Run `then` where `condition` holds, else `otherwise`."""

    condition: Expr
    then: Stmt
    otherwise: Stmt | None = None


@dataclass(frozen=True, eq=False)
class Let:
    """Bind `var` to `value` within `body`.

    `carried`: scratch whose contents the iterations of a loop, the body's last statement, hand on. `var` is then the
    iteration with which that loop begins, and the statements before it fill this scratch, alone, for any value of it.
    `fresh`: scratch of whose contents before the body reads nothing.
    """

    var: Var
    value: Expr
    body: Stmt
    carried: tuple[Buffer, ...] = ()
    fresh: tuple[Buffer, ...] = ()


@dataclass(frozen=True, eq=False)
class Allocate:
    """Give `buffer` (scope ``local`` or ``shared``) life within `body`; its contents start undefined."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, eq=False)
class Seq:
    """Statements in order."""

    stmts: tuple[Stmt, ...]


@dataclass(frozen=True, eq=False)
class Comment:
    """A line for the reader of the generated code."""

    text: str


@dataclass(frozen=True, eq=False)
class Fence(Comment):
    """A comment that compilers read too: they keep nothing that memory holds in registers across it.

    It ends a loop that needs all registers: compilers load early, around that loop, what only later loops use.

    `buffer`: an array of the function that is in memory at this point. Compilers may keep others in registers.
    """

    buffer: Buffer | None = None


@dataclass(frozen=True, eq=False)
class Prefetch(Comment):
    """A comment that processors read too: they bring an element of a buffer to their second-level cache.

    `offset` is its place in row-major order. Results are the same without.
    """

    buffer: Buffer
    offset: Expr


@dataclass(frozen=True, eq=False)
class Require(Prefetch):
    """Return -1 from the function unless an element of a bool buffer is true; code of devices goes on."""


@dataclass(frozen=True, eq=False)
class External:
    """What an external code generator wrote in the place of loops; the whole body of a function."""

    generator: str  # its name, in `byoc.GENERATORS`
    # C statements; ``${name}`` stands for the pointer to the function's buffer of that name. Empty where `module`
    # computes the function.
    text: str = ""
    # what stands before functions with such text, each once a file: includes, prototypes
    declarations: tuple[str, ...] = ()
    objects: tuple[bytes, ...] = ()  # relocatable objects that are linked with it
    module: bytes | None = None  # what the generator makes a runtime module of, which then has the function
    # numbers that ``${name}`` stands for, too: of int64, as what the run decides may be any of them
    extents: tuple[tuple[str, Expr], ...] = ()


MOST_GROUPS, MOST_GROUPS_ACROSS = (1 << 31) - 1, 65535
"""Groups that a launch may have along x, and along y and z: CUDA's limits, the lowest that there are."""


@dataclass(frozen=True, eq=False)
class Launch:
    """Run `body` once for each work-item of a grid of work-groups, in any order and side by side: a device's kernel.

    It stands at the top of a function, or in a Seq that does; launches of a function run one after another. No
    work-item may touch an element of a parameter or scratch buffer that another one writes; what a work-item wrote to
    a shared buffer before a `Barrier` may be read by the others of its group behind it.
    """

    grid: tuple[Any, Any, Any]  # groups along x, y and z, which may be `Dim` of the function's symbols
    block: tuple[int, int, int]  # work-items of a group along x, y and z; neighbours along x run together
    groups: tuple[Var, Var, Var]  # the place of the group in the grid
    items: tuple[Var, Var, Var]  # the place of the work-item in its group
    body: Stmt

    @property
    def ranges(self) -> tuple[tuple[Var, Any], ...]:
        """The six variables, each with its number of values."""
        return tuple(zip((*self.groups, *self.items), (*self.grid, *self.block), strict=True))


@dataclass(frozen=True, eq=False)
class Barrier:
    """Wait until all work-items of the group are here; what they wrote to shared buffers is seen by all.

    All work-items of a group must reach it, or none: no loop or condition around it depends on the work-item.
    """


@dataclass(frozen=True, eq=False)
class Parallel:
    """Run `body`, which computes the pieces from `first` on, before `last`, for ranges that make up ``[0, count)``.

    In any order and side by side: no piece touches what another one writes, but for `private` scratch, of which each
    thread has its own. `tir.parallel` makes them, and what printers do not know as such runs as one range.
    """

    count: Expr
    first: Var
    last: Var
    body: Stmt
    private: tuple[Buffer, ...]
    work: float | Expr  # of all pieces; see `tir.work`


Stmt: TypeAlias = "For | Store | If | Let | Allocate | Seq | Comment | Launch | Barrier | External | Parallel"


@dataclass(frozen=True, eq=False)
class PrimFunc:
    """One fused function at loop level.

    The C signature is the pointers of `inputs`, `constants` and `output` in that order, then, where
    `scratch` is not empty, one ``uint8_t *workspace`` at which the scratch buffers lie at the offsets
    of `scratch_offsets`, then one ``int32_t`` for each of `symbols`. Callers see to it that each of these lies between
    its symbol's bounds, and that no extent and no tensor's number of elements is beyond int32.
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
    # the kind of device whose code it is, in `target.TargetKind`'s words; None for code of the host
    device: str | None = None
    symbols: tuple[Symbol, ...] = ()  # extents that callers pass; `extents.variable` is each one's variable
    # what replaces the function on processors of higher levels, by level: functions of the same parameters that read
    # other ones of the constants and have scratch of their own within the same bytes
    variants: tuple[tuple[str, PrimFunc], ...] = ()

    def __repr__(self) -> str:
        return f"<PrimFunc {self.name}>"

    def at(self, level: str) -> PrimFunc:
        """Return the function for processors of a level."""
        return dict(self.variants).get(level, self)

    @property
    def external(self) -> External | None:
        """The body, where an external code generator wrote it."""
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
        """Bytes of each block of scratch that a launcher takes: one on the host, on a device one for each buffer."""
        if self.device is not None:
            return tuple(buffer.nbytes for buffer in self.scratch)
        return (self.scratch_bytes,) if self.scratch else ()

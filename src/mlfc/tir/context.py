"""The interface of loop-level rules: readable tensors, a context to build in, and an output to store to.

A rule is independent of fusion: `Tensor.read` may load a buffer or compute a fused producer, `Output.store` applies the
fused consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import InternalError
from mlfc.support import cost, dtypes
from mlfc.support.dims import Shape
from mlfc.target.features import Choices, Features, TemplateParameter, Value, text_of
from mlfc.tir import builder as tb
from mlfc.tir.ir import Buffer, Expr

Indices: TypeAlias = Sequence[Expr]
Reader: TypeAlias = Callable[[Indices], Expr]


@dataclass(frozen=True, eq=False)
class Tensor:
    """An input of a rule."""

    shape: Shape
    dtype: str
    read: Reader  # maps indices to an element; for a narrow dtype to its bits in a byte
    # the tensor's memory, required by templates of anchors. None if a fused producer computes the tensor on the fly.
    buffer: Buffer | None = None
    # the value if it is known at compile time. Templates pack it, rules read scalars from it.
    value: npt.NDArray[Any] | None = None

    def __call__(self, *indices: Any) -> Expr:
        """Read the element at `indices` (expressions or ints)."""
        return self.read([tb.as_expr(index) for index in indices])

    @property
    def scalar(self) -> Any:
        """The compile-time value of a tensor of one element; raises InternalError for others."""
        if self.value is None or self.value.size != 1:
            raise InternalError("a rule needs a scalar constant here")
        return self.value.reshape(()).item()

    def array(self) -> npt.NDArray[Any]:
        """Return the compile-time value; raise InternalError if it is unknown."""
        if self.value is None:
            raise InternalError("a rule needs a constant here")
        return self.value

    def in_memory(self, ctx: Context | None = None) -> Buffer:
        """Return the buffer; with `ctx`, create one for a known value. Raise InternalError for a computed tensor."""
        if self.buffer is not None:
            return self.buffer
        if ctx is None or self.value is None:
            raise InternalError("a rule needs a buffer here")
        return ctx.constant("data", self.value)


@dataclass(frozen=True, eq=False)
class Output:
    """Destination of an emitter's result."""

    shape: Shape
    dtype: str  # of the emitter's own result, before fused consumers change it
    # applies the fused consumers to `value` and writes it. Call it inside the loops, once per element.
    store: Callable[[Indices, Expr], None]
    # for operators with `takes_bias`: the initial accumulator value for each last-axis index
    bias: npt.NDArray[Any] | None = None
    # the buffer to which `store` writes unchanged values if no consumer is fused: stored values can be read and
    # overwritten
    buffer: Buffer | None = None


@dataclass(eq=False)
class Context:
    """One function under construction: statements, packed constants, scratch."""

    features: Features  # the target's features, by which templates choose tiles
    stmts: tb.StmtBuilder = field(init=False)
    constants: list[tuple[Buffer, npt.NDArray[Any]]] = field(default_factory=list)
    scratch_buffers: list[Buffer] = field(default_factory=list)
    choices: Choices = field(default_factory=dict)  # measured choices for this kernel
    packing: Choices = field(default_factory=dict)  # those for the processor for which its weights are packed
    parameters: dict[str, TemplateParameter] = field(
        default_factory=dict
    )  # what templates asked for, and their rules' answers
    refused: bool = False  # a choice is not one of a parameter's values

    def __post_init__(self) -> None:
        self.stmts = tb.StmtBuilder(single_trips=self.small)

    @property
    def small(self) -> bool:
        """True to optimize for size: rules write loops instead of copies, and the same ones for all sizes.

        Functions that only differ in sizes are merged later (`tir.merge_kernels`) if their structure is the same.
        """
        return self.features.optimize == "size"

    def choose(
        self, name: str, default: Value, allowed: Callable[[], Sequence[Value]], *, packing: bool = False
    ) -> Value:
        """Return the value of a parameter of the template: `default`, unless measurements chose another one.

        `allowed` are its values; all produce the same bits. `packing`: the value for the processor in whose order
        weights are packed.
        """
        chosen = self.packing if packing else self.choices
        if not packing:
            self.parameters.setdefault(name, TemplateParameter(default, allowed))
        if name not in chosen:
            return default
        values = {text_of(value): value for value in (default, *allowed())}
        self.refused = self.refused or chosen[name] not in values
        return values.get(chosen[name], default)

    def constant(self, name: str, array: npt.NDArray[Any]) -> Buffer:
        """Add a constant made at compile time (packed weights, multipliers); the same array is added once."""
        for buffer, known in self.constants:
            if known is array or (known.dtype == array.dtype and np.array_equal(known, array)):
                return buffer
        if array.flags.writeable:  # packed here, as the model's own constants are read-only
            cost.spend("constants", array.nbytes, name)
        dtype = dtypes.from_numpy(array.dtype)
        if dtypes.is_narrow(dtype):
            array, dtype = array.view(np.uint8), dtypes.stored(dtype)
        buffer = Buffer(self.stmts.unique(name), array.shape, dtype)
        self.constants.append((buffer, np.ascontiguousarray(array).reshape(array.shape)))
        return buffer

    def scratch(self, name: str, shape: Sequence[int], dtype: str) -> Buffer:
        """Add a scratch buffer; the memory plan places it in the workspace for this call."""
        buffer = Buffer(self.stmts.unique(name), tuple(shape), dtype, "scratch")
        self.scratch_buffers.append(buffer)
        return buffer

    def transcendental(self, name: str, x: Expr) -> Expr:
        """Return exp, tanh or erf of `x`, in vectorizable arithmetic if the target has vectors, else by math.h.

        Devices use the same arithmetic, as the precision of built-in functions is vendor-specific. ``exp_below`` is exp
        of arguments that are not above zero, or NaN: cheaper, with 0 for results less than 2**-126.
        """
        if not (self.features.vector_bytes or self.features.gpu) or x.dtype == "float64":
            return tb.intrinsic(name.removesuffix("_below"), x)
        return tb.cast(tb.intrinsic(f"{name}_f32", tb.cast(x, "float32")), x.dtype)

    def loops(self, shape: Sequence[int], prefix: str = "i") -> AbstractContextManager[tuple[Expr, ...]]:
        """Open one loop per axis."""
        return self.stmts.loops(shape, prefix)


def from_buffer(buffer: Buffer, value: npt.NDArray[Any] | None = None) -> Tensor:
    """Return the tensor stored in `buffer`."""
    return Tensor(buffer.shape, buffer.holds or buffer.dtype, lambda indices: tb.load(buffer, indices), buffer, value)


def buffer_of(name: str, shape: Sequence[int], dtype: str) -> Buffer:
    """Return a buffer for a tensor whose dtype may be a narrow one."""
    return Buffer(name, tuple(shape), dtypes.stored(dtype), holds=dtype if dtypes.is_narrow(dtype) else None)


def computed(shape: tuple[int, ...], dtype: str, read: Reader) -> Tensor:
    """Return a tensor computed element by element where it is read."""
    return Tensor(shape, dtype, read)


def broadcast_read(tensor: Tensor, indices: Indices) -> Expr:
    """Read `tensor` at output `indices` by numpy's broadcasting: align right, size 1 reads index 0."""
    skip = len(indices) - len(tensor.shape)
    own = [tb.const(0) if extent == 1 else index for extent, index in zip(tensor.shape, indices[skip:], strict=True)]
    return tensor.read(own)

"""Selection of the template that writes an operator's loops for a target, and the sizes that templates take.

Sizes are those of convolutions and matrix products: channels last, any number of spatial dimensions.

A template is looked up by the kind of work and the target's families, in order of preference. Every kind has a
``plain`` template, which is used if no other family has a template that accepts the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from mlfc.errors import InternalError
from mlfc.kernels.codes import WeightCodes
from mlfc.registry import Registry
from mlfc.support import dtypes
from mlfc.support.dims import Extent, UndecidedError, is_static
from mlfc.target.features import Features, Value
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor, from_buffer
from mlfc.tir.ir import Buffer, Expr, Stmt


@dataclass(frozen=True)
class Conv:
    """Sizes of a convolution; spatial tuples have one entry per dimension, outermost first."""

    batch: Any
    spatial: tuple[Any, ...]
    channels: Any
    filters: Any
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # zeros before and after the input
    groups: int = 1

    @property
    def extents(self) -> tuple[int, ...]:
        """The number of input elements that one window spans, for each spatial dimension."""
        return tuple((taps - 1) * step + 1 for taps, step in zip(self.kernel, self.dilation, strict=True))

    @property
    def output(self) -> tuple[Any, ...]:
        """Spatial shape of the result."""
        return tuple(
            (size + sum(pads) - extent) // stride + 1
            for size, pads, extent, stride in zip(self.spatial, self.padding, self.extents, self.strides, strict=True)
        )

    @property
    def group_channels(self) -> Any:
        """The number of input channels of one group."""
        return self.channels // self.groups

    @property
    def group_filters(self) -> Any:
        """The number of output channels of one group."""
        return self.filters // self.groups

    @property
    def depthwise(self) -> bool:
        """True if every input channel is a separate group."""
        return self.groups == self.channels and self.groups > 1

    @property
    def padded(self) -> bool:
        """True if any window may read outside the input."""
        return any(map(is_padded, self.padding))

    @property
    def macs(self) -> Any:
        """The number of multiply-accumulates, including those on padding."""
        return self.batch * prod(self.output) * self.filters * prod(self.kernel) * self.group_channels

    def planar(self) -> Conv:
        """Return the same convolution over (height, width), with height 1 if it has one spatial dimension."""
        if len(self.spatial) != 1:
            return self
        one: tuple[int, ...] = (1,)
        return Conv(
            self.batch, one + self.spatial, self.channels, self.filters, one + self.kernel, one + self.strides,
            one + self.dilation, ((0, 0), *self.padding), self.groups,
        )  # fmt: skip


def is_padded(pads: Sequence[Extent]) -> bool:
    """Return whether any padding may differ from 0."""
    return any(pad != 0 for pad in pads)


@dataclass(frozen=True)
class Product:
    """Sizes of a batch of matrix products ``out[b] = a[b] @ weights[b]``."""

    rows: Any  # the first matrix is (rows, reduction), the result (rows, columns)
    reduction: Any
    columns: Any
    transpose_a: bool = False  # whether the stored matrix is (reduction, rows)
    transpose_b: bool = True  # whether the stored matrix is (columns, reduction)
    a_zero: int = 0  # zero points that are subtracted from the elements of quantized operands
    b_zero: int = 0


def strip_columns(conv: Conv, pixels: int) -> dict[int, list[tuple[int, int]]]:
    """Return the columns that a strip reads, relative to its first, each with the (pixel, tap) pairs that use it."""
    uses: dict[int, list[tuple[int, int]]] = {}
    for pixel, tap in product(range(pixels), range(conv.kernel[1])):
        uses.setdefault(pixel * conv.strides[1] + tap * conv.dilation[1], []).append((pixel, tap))
    return dict(sorted(uses.items()))


# (image, y, x, channel) -> indices into the tensor
Frame: TypeAlias = Callable[[Any, Any, Any, Any], Sequence[Expr]]


def planar(image: Any, y: Any, x: Any, channel: Any) -> Sequence[Expr]:
    """Index (batch, height, width, channels)."""
    return (image, y, x, channel)


def linear(image: Any, y: Any, x: Any, channel: Any) -> Sequence[Expr]:  # noqa: ARG001  (height is 1)
    """Index (batch, width, channels)."""
    return (image, x, channel)


def frame_of(spatial: int) -> Frame:
    """Return the frame of a convolution over one or two dimensions."""
    return planar if spatial == 2 else linear


def line(batch: Extent, pixels: Extent, channels: Extent, filters: Extent, groups: int = 1) -> Conv:
    """Return the convolution of one tap over a line of pixels, which is a matrix product."""
    return Conv(batch, (1, pixels), channels, filters, (1, 1), (1, 1), (1, 1), ((0, 0), (0, 0)), groups)


def rows_as_pixels(shape: Sequence[Extent], columns: int) -> tuple[Conv, Frame]:
    """Return a dense layer of data of `shape` as a convolution of one tap over a line of pixels, one per row."""
    *leading, reduction = shape

    def frame(_image: Any, _y: Any, row: Any, channel: Any) -> Sequence[Expr]:
        return [*unflattened(tb.as_expr(row), leading), channel]

    return line(1, prod(leading), reduction, columns), frame


def unflattened(index: Expr, shape: Sequence[Extent]) -> list[Expr]:
    """Return the indices of the element `index` of an array of `shape`, in row-major order."""
    found: list[Expr] = []
    for extent in reversed(shape[1:]):
        found.insert(0, index % extent)
        index = index // extent
    return [index, *found] if shape else []


Array = npt.NDArray[Any]
WINOGRAD = "winograd"
"""The family of convolutions by transforms, whose order of additions differs."""
Emitter = TypeVar("Emitter", bound=Callable[..., None])


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights, and the zero points of quantized operands.

    Weights that are computed at run time are in `runtime_tensor`, and `values` are positions in it: code that
    rearranges weights rearranges the positions.
    """

    values: Array  # (kernel..., group channels, filters) of a convolution, (reduction, columns) of a dense layer
    data_zero: int = 0  # subtracted from each element of the data before it is multiplied
    zero: int | Array = 0  # subtracted from each weight: one for all, or one for each filter
    runtime_tensor: Tensor | None = None
    codes: WeightCodes | None = None  # quantization parameters if `values` are codes of real numbers, counted from 0

    def centered(self) -> Array:
        """Return the weights less their zero points: integers in the narrowest signed dtype that can represent them."""
        if self.runtime_tensor is not None or self.codes is not None:
            return self.values
        if dtypes.is_float(dtypes.from_numpy(self.values.dtype)):  # numpy does not classify bfloat16 as a float
            return self.values
        wide = self.values.astype(np.int64) - np.asarray(self.zero, np.int64)
        for dtype in (np.int8, np.int16, np.int32):
            limits = np.iinfo(dtype)
            if not wide.size or (wide.min() >= limits.min and wide.max() <= limits.max):
                return wide.astype(dtype)
        return wide


@dataclass(frozen=True)
class KernelTemplate:
    """An emitter of loops and its preconditions."""

    accepts: Callable[..., bool]  # whether this template supports the arguments of `emit`
    emit: Callable[..., None]


TEMPLATES: Registry[list[KernelTemplate]] = Registry("kernel template", "mlfc.isa", "templates")

FITTING: Registry[Callable[[Stmt], Stmt]] = Registry("fitting pass", "mlfc.isa", "templates")
"""The pass that rewrites a finished kernel to an instruction set's shorter forms, by instruction set."""


def template(kind: str, family: str, accepts: Callable[..., bool] = lambda *_: True) -> Callable[[Emitter], Emitter]:
    """Return a decorator that registers an emitter for `kind` of work on targets of `family`.

    Several may be registered under one key; the first one that accepts is used, in order of registration.
    """

    def register(emit: Emitter) -> Emitter:
        TEMPLATES.setdefault(f"{kind}/{family}", []).append(KernelTemplate(accepts, emit))
        return emit

    return register


def families(features: Features) -> tuple[str, ...]:
    """Return the families of templates for a target, in order of preference."""
    kind = ("gpu",) if features.gpu else ()
    vectors = ((WINOGRAD,) if features.winograd else ()) + (("vector",) if features.vector_bytes else ())
    return (*kind, *features.instruction_sets, *vectors, "plain")


def emit(kind: str, ctx: Context, *args: Any) -> None:
    """Write the loops of `kind` with the first template of the target's families that accepts."""
    taking = _taking(kind, ctx, *args)
    family, entry = next(taking, (None, None))
    if family == "plain" and _has_vectors(ctx.features) and isinstance(args[-1], Output):
        wide = tuple(map(_widened, args))
        if wide != args:
            args, taking = wide, _taking(kind, ctx, *wide)
            family, entry = next(taking, (None, None))
    if family is None or entry is None:
        raise InternalError(f"no template of '{kind}' accepts these sizes")

    def others() -> list[Value]:
        # a device's kernels are launched by its templates, and vectors beat plain loops; transforms change bits
        if ctx.features.gpu or family == WINOGRAD:
            return [family]
        slow = {family, "plain"} if ctx.features.vector_bytes else {family}
        return [family, *dict.fromkeys(name for name, _ in _taking(kind, ctx, *args) if name not in slow)]

    chosen = ctx.choose("template", family, others)
    if chosen != family:
        entry = next(other for name, other in taking if name == chosen)
    entry.emit(ctx, *args)


def _widened(arg: Any) -> Any:
    """Return 16-bit float weights as float32, and an output of that dtype as a float32 output; otherwise `arg`."""
    if isinstance(arg, Weights) and dtypes.from_numpy(arg.values.dtype) in dtypes.HALVES:
        return replace(arg, values=arg.values.astype(np.float32))
    if not isinstance(arg, Output) or arg.dtype not in dtypes.HALVES:
        return arg
    bias = None if arg.bias is None else arg.bias.astype(np.float32)
    return Output(arg.shape, "float32", lambda at, value: arg.store(at, tb.cast(value, arg.dtype)), bias)


def in_float(ctx: Context, tensor: Tensor) -> Tensor:
    """Return a float32 copy of a tensor of 16-bit floats, for vector templates; other tensors unchanged."""
    if tensor.dtype not in dtypes.HALVES or not _has_vectors(ctx.features):
        return tensor
    buffer = ctx.scratch("wide", tensor.shape, "float32")
    ctx.stmts.refill(buffer)
    with ctx.loops(tensor.shape) as at:
        ctx.stmts.store(buffer, at, tb.cast(tensor.read(at), "float32"))
    return from_buffer(buffer)


def _has_vectors(features: Features) -> bool:
    return features.vector_bytes > 0 and not features.gpu


def _taking(kind: str, ctx: Context, *args: Any) -> Iterator[tuple[str, KernelTemplate]]:
    """Yield the templates that accept the arguments with their families, in order of preference."""
    for name in families(ctx.features):
        key = f"{kind}/{name}"
        for entry in TEMPLATES.get(key) if key in TEMPLATES else ():
            if _takes(entry, key, ctx, *args):
                yield name, entry


def _takes(entry: KernelTemplate, key: str, ctx: Context, *args: Any) -> bool:
    """Return whether a template accepts the arguments; those of instruction sets require static image sizes."""
    is_general = key.endswith(("/gpu", "/winograd", "/vector", "/plain"))
    if not is_general and any(isinstance(arg, Conv) and not is_static(arg.spatial) for arg in args):
        return False
    try:
        return entry.accepts(ctx, *args)
    except UndecidedError:
        if is_general:
            raise
        return False


def _in_words(ctx: Context, data: Buffer, weights: Weights, out: Output) -> Output:
    """Return an int32 output that is widened to int64, if no partial sum can overflow int32; otherwise `out`."""
    if out.dtype != "int64" or weights.runtime_tensor is not None or not dtypes.is_integer(data.dtype):
        return out
    low, high = dtypes.limits(data.dtype)
    largest = max(high - weights.data_zero, weights.data_zero - low)
    centred = np.abs(weights.centered().astype(np.int64))
    sums = centred.reshape(-1, centred.shape[-1]).sum(axis=0)
    most, bias = int(sums.max()) * largest, out.bias
    if most > dtypes.limits("int32")[1]:
        return out
    if bias is None or most + max(int(bias.max()), -int(bias.min())) <= dtypes.limits("int32")[1]:
        narrow = None if bias is None else bias.astype(np.int32)
        return Output(out.shape, "int32", lambda at, value: out.store(at, tb.cast(value, "int64")), narrow)
    table = ctx.constant("bias", bias)  # the bias, which does not fit

    def store(at: Sequence[Expr], value: Expr) -> None:
        out.store(at, tb.cast(value, "int64") + tb.load(table, [at[-1]]))

    return Output(out.shape, "int32", store)


def _plainly(kind: str, ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution with the target's template, or with the plain one if padding affects the result.

    Padding adds nothing. The plain templates skip it; the others multiply zeros by weights, so infinite weights result
    in NaN. Only the plain templates support weights that are computed at run time.
    """
    values, out = weights.values, _in_words(ctx, data, weights, out)
    is_float = weights.runtime_tensor is None and dtypes.is_float(dtypes.from_numpy(values.dtype))
    is_padded = conv.padded or kind == "transposed"  # windows on the input extend beyond its borders
    is_infinite = is_float and is_padded and not np.all(np.isfinite(values.astype(np.float64)))
    if is_infinite or weights.runtime_tensor is not None:
        TEMPLATES.get(f"{kind}/plain")[0].emit(ctx, conv, data, weights, out)
    else:
        emit(kind, ctx, conv, data, weights, out)


def convolution(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write a convolution of channels-last `data`; `out` is also channels-last."""
    _plainly("depthwise" if conv.depthwise else "convolution", ctx, conv, data, weights, out)


def transposed(ctx: Context, conv: Conv, data: Buffer, weights: Weights, out: Output) -> None:
    """Write the transpose of `conv`; its weights are (kernel..., input channels, group's output channels)."""
    _plainly("transposed", ctx, conv, data, weights, out)


def dense(ctx: Context, data: Buffer, weights: Weights, out: Output) -> None:
    """Write rows of `data` (..., reduction) times constant weights (reduction, columns)."""
    emit("dense", ctx, data, weights, _in_words(ctx, data, weights, out))

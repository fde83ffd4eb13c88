"""Selection of the template that writes an operator's loops for a target.

A template is looked up by the kind of work and the target's families, in order of preference. Every kind has a
``plain`` template, which is used if no other family has a template that accepts the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mlfc.errors import InternalError
from mlfc.kernels.codes import WeightCodes
from mlfc.kernels.geometry import Conv
from mlfc.registry import Registry
from mlfc.support import dtypes
from mlfc.support.dims import UndecidedError, is_static
from mlfc.target.features import Features, Value
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor, from_buffer
from mlfc.tir.ir import Buffer, Expr, Stmt

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

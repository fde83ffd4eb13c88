"""Time of kernels of extents that the run decides, over that of kernels compiled for one extent.

Both are built by the C compiler of this machine for its processor, and take turns. The layers are those of ResNet-50
and of a MobileNet with an open batch, and those of a transformer's encoder and decoder with an open length.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from benchmarks.recurrent import interleaved
from mlfc.codegen.c import print_file, print_function
from mlfc.library.toolchain import NATIVE
from mlfc.relay import ir
from mlfc.support import dtypes
from mlfc.support.dims import Symbol
from mlfc.target.target import parse_target
from mlfc.tir.specialize import with_numbers
from mlfc.transform.lower_group import LoweredGroup, lower_group
from tests.native.kernel_runner import aligned, group_of
from tests.shared_library import compile_shared

Array = npt.NDArray[Any]
SYMBOL = Symbol("n")
IMAGES = (1, 8)
TOKENS = (1, 16, 100, 128)


@dataclass(frozen=True)
class Layer:
    """A layer by its open extent, and the extents at which it is timed."""

    name: str
    make: Callable[[Any], tuple[ir.Expr, list[ir.Var]]]
    extents: tuple[int, ...]


def _weights(*shape: int, dtype: str = "float32") -> ir.Expr:
    rng = np.random.default_rng(1)
    if dtype == "int8":
        return ir.const(rng.integers(-128, 128, shape).astype(np.int8))
    return ir.const((rng.standard_normal(shape) * 0.1).astype(np.float32))


def _var(name: str, *shape: Any, dtype: str = "float32") -> ir.Var:
    return ir.Var(name, ir.TensorType(shape, dtype))


def _conv(side: Any, channels: int, filters: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Any:
    """Return a layer of images of `side`; where that is None, of one image whose side is open."""

    def make(open_extent: Any) -> tuple[ir.Expr, list[ir.Var]]:
        shape = (1, open_extent, open_extent, channels) if side is None else (open_extent, side, side, channels)
        x = _var("x", *shape)
        depthwise = groups == channels
        last = (channels, filters // channels) if depthwise else (channels // groups, filters)
        call = ir.call(
            "nn.conv2d", [x, _weights(kernel, kernel, *last)], strides=(stride,) * 2, padding=(kernel // 2,) * 4,
            groups=groups, data_layout="NHWC", kernel_layout="HWOI" if depthwise else "HWIO",
        )  # fmt: skip
        biased = ir.call("nn.bias_add", [call, _weights(filters)], axis=3)
        return ir.call("nn.relu", [biased]), [x]

    return make


def _quantized(side: int, channels: int, filters: int, kernel: int) -> Any:
    def make(batch: Any) -> tuple[ir.Expr, list[ir.Var]]:
        x = _var("x", batch, side, side, channels, dtype="int8")
        zeros = [ir.const(-3), ir.const(0), ir.const(0.5), ir.const(0.25)]
        call = ir.call(
            "qnn.conv2d", [x, _weights(kernel, kernel, channels, filters, dtype="int8"), *zeros],
            padding=(kernel // 2,) * 4, data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32",
            kernel_size=(kernel,) * 2, channels=filters,
        )  # fmt: skip
        return call, [x]

    return make


def _dense(inner: int, units: int, *, batched: bool = False) -> Any:
    def make(rows: Any) -> tuple[ir.Expr, list[ir.Var]]:
        x = _var("x", rows, 1, inner) if batched else _var("x", 1, rows, inner)
        call = ir.call("nn.dense", [x, _weights(units, inner)], units=units)
        return ir.call("nn.bias_add", [call, _weights(units)], axis=2), [x]

    return make


def _packed(inner: int, units: int) -> Any:
    def make(rows: Any) -> tuple[ir.Expr, list[ir.Var]]:
        x, rng = _var("x", rows, inner), np.random.default_rng(2)
        codes = ir.const(rng.integers(-128, 128, (units, inner)).astype(np.int8))
        scales = ir.const(rng.uniform(0.01, 0.1, (units, 1)).astype(np.float32))
        zeros = ir.const(np.zeros((units, 1), np.int32))
        return ir.call("qnn.weight_only_dense", [x, codes, scales, zeros], units=units), [x]

    return make


def _attention(heads: int, size: int, *, causal: bool = False, decode: bool = False) -> Any:
    def make(length: Any) -> tuple[ir.Expr, list[ir.Var]]:
        queries = 1 if decode else length
        parts = [_var(name, 1, heads, own, size) for name, own in (("q", queries), ("k", length), ("v", length))]
        right = {"right": 0} if causal else {}
        return ir.call("nn.attention", parts, scale=size**-0.5, **right), parts

    return make


def _matmul(heads: int, size: int, *, mixes: bool = False) -> Any:
    def make(length: Any) -> tuple[ir.Expr, list[ir.Var]]:
        first = _var("a", heads, length, length if mixes else size)
        second = _var("b", heads, length, size)
        return ir.call("nn.batch_matmul", [first, second], transpose_b=not mixes), [first, second]

    return make


def _rows(operator: str, width: int) -> Any:
    def make(rows: Any) -> tuple[ir.Expr, list[ir.Var]]:
        x = _var("x", 12, rows, rows) if operator == "nn.softmax" else _var("x", 1, rows, width)
        more = [] if operator == "nn.softmax" else [_weights(width), _weights(width)]
        return ir.call(operator, [x, *more], axis=-1), [x]

    return make


def _pool(side: int, channels: int) -> Any:
    def make(batch: Any) -> tuple[ir.Expr, list[ir.Var]]:
        x = _var("x", batch, side, side, channels)
        sizes = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}
        return ir.call("nn.max_pool2d", [x], layout="NHWC", **sizes), [x]

    return make


LAYERS = (
    Layer("first 7x7 of 224, 3-64", _conv(224, 3, 64, 7, 2), IMAGES),
    Layer("3x3 of 56, 64-64", _conv(56, 64, 64, 3), IMAGES),
    Layer("1x1 of 56, 64-256", _conv(56, 64, 256), IMAGES),
    Layer("3x3 of 14, 256-256", _conv(14, 256, 256, 3), IMAGES),
    Layer("1x1 of 7, 2048-512", _conv(7, 2048, 512), IMAGES),
    Layer("depthwise 3x3 of 14, 384", _conv(14, 384, 384, 3, 1, 384), IMAGES),
    Layer("int8 3x3 of 28, 64-64", _quantized(28, 64, 64, 3), IMAGES),
    Layer("largest of 3x3 of 112, 64", _pool(112, 64), IMAGES),
    Layer("classifier, 2048-1000", _dense(2048, 1000, batched=True), IMAGES),
    Layer("dense, 768-768", _dense(768, 768), TOKENS),
    Layer("dense, 768-3072", _dense(768, 3072), TOKENS),
    Layer("packed dense of int8, 768-768", _packed(768, 768), TOKENS),
    Layer("attention, 12 heads of 64", _attention(12, 64), TOKENS),
    Layer("causal attention, 12 heads of 64", _attention(12, 64, causal=True), TOKENS),
    Layer("attention of one query", _attention(12, 64, decode=True), (16, 100, 1000)),
    Layer("scores, 12 heads of 64", _matmul(12, 64), TOKENS),
    Layer("mixed values, 12 heads of 64", _matmul(12, 64, mixes=True), TOKENS),
    Layer("softmax of 12 heads", _rows("nn.softmax", 0), TOKENS),
    Layer("layer norm of 768", _rows("nn.layer_norm", 768), TOKENS),
    Layer("3x3 of an open side, 32-32", _conv(None, 32, 32, 3), (14, 56, 100)),
    Layer("1x1 of an open side, 64-64", _conv(None, 64, 64), (14, 56, 100)),
    Layer("depthwise 3x3 of an open side, 64", _conv(None, 64, 64, 3, 1, 64), (14, 56, 100)),
)


def _lowered(layer: Layer, extent: Any) -> LoweredGroup:
    body, params = layer.make(extent)
    return lower_group(group_of(body, params), parse_target("c -mcpu=native").features)


def _bound(kernel: Any, group: LoweredGroup, extent: int, *, is_open: bool) -> Callable[[], object]:
    """Return a call of a kernel on fixed arrays."""
    prim = with_numbers(group.prim, [extent] * len(group.prim.symbols))
    arrays: list[Array] = []
    for index, buffer in enumerate((*prim.inputs, *prim.constants, prim.output)):
        array = aligned(buffer.shape, dtypes.to_numpy(buffer.dtype))
        constant = index - len(prim.inputs)
        known = group.constants[constant] if 0 <= constant < len(prim.constants) else None
        array[...] = np.ones(buffer.shape) if known is None else known
        arrays.append(array)
    if prim.scratch:
        arrays.append(aligned((prim.scratch_bytes,), np.uint8))
    numbers = [ctypes.c_int32(extent)] if is_open else []
    arguments = [*(ctypes.c_void_p(array.ctypes.data) for array in arrays), *numbers]

    def run(_kept: Sequence[Array] = arrays) -> int:  # pointers do not keep their arrays alive
        return int(kernel(*arguments))

    return run


def ratios(layer: Layer, seconds: float) -> Iterator[tuple[int, float, float]]:
    """Yield (extent, seconds of the static kernel, ratio of the open one) of a layer."""
    groups = {"open": _lowered(layer, SYMBOL.dim), **{f"of_{n}": _lowered(layer, n) for n in layer.extents}}
    with tempfile.TemporaryDirectory() as folder:
        text = print_file([print_function(group.prim, name) for name, group in groups.items()])
        library = ctypes.CDLL(str(compile_shared({"k.c": text.encode()}, Path(folder) / "k.so", (NATIVE,))))
    for extent in layer.extents:
        runners = {
            name: _bound(getattr(library, name), groups[name], extent, is_open=name == "open")
            for name in ("open", f"of_{extent}")
        }
        times = interleaved(runners, seconds)
        yield extent, times[f"of_{extent}"], times["open"] / times[f"of_{extent}"]


def table(seconds: float, layers: Sequence[Layer] = LAYERS) -> Table:
    """Return the table of all layers."""
    result = Table(title="Kernels of open extents: median of the thread's time over that of static kernels")
    for name in ("layer", "extent", "static, us", "ratio"):
        result.add_column(name, justify="left" if name == "layer" else "right")
    for layer in layers:
        for extent, static, ratio in ratios(layer, seconds):
            result.add_row(layer.name, str(extent), f"{static * 1e6:,.1f}", f"{ratio:.2f}")
    return result

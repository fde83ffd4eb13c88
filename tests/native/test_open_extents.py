"""Templates with dynamic dimensions compute the bits of kernels compiled for each static shape, by LLVM and in C."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlfc.codegen.c import print_function
from mlfc.kernels import conv_tile, winograd
from mlfc.kernels.tiling import DynamicSplit
from mlfc.ops import normalization
from mlfc.relay import ir
from mlfc.support import dtypes
from mlfc.support.dims import Symbol, maximum
from mlfc.target.features import Features
from mlfc.tir.ir import Const, For, Prefetch, PrimFunc
from mlfc.tir.parameters import with_numbers
from mlfc.tir.visitor import walk
from mlfc.transform.lower_group import LoweredGroup, lower_group
from tests.c_files import print_file
from tests.native.kernel_runner import FUSING, aligned, group_of
from tests.native.llvm_functions import beside_c
from tests.shared_library import compile_shared
from tests.verify_tir import verify

Array = npt.NDArray[Any]
Made = tuple[ir.Expr, list[ir.Var]]
TARGETS = {
    "default": Features(),
    "wide": Features(vector_registers=32, prefetches=True),
    "plain": Features(vector_bytes=0, dot4=False),
    "transforms": Features(vector_registers=32, winograd=True),
    "far": Features(prefetches=True),
}


@dataclass(frozen=True)
class Case:
    """A layer with named dynamic dimensions, and sizes to try."""

    make: Callable[..., Made]
    sizes: Sequence[Mapping[str, int]]


def of(names: Sequence[str], *sizes: Sequence[int]) -> list[dict[str, int]]:
    return [dict(zip(names, size, strict=True)) for size in sizes]


def var(name: str, *shape: Any, dtype: str = "float32") -> ir.Var:
    return ir.Var(name, ir.TensorType(shape, dtype))


def floats(*shape: int) -> ir.Expr:
    return ir.const(np.random.default_rng(2).standard_normal(shape).astype(np.float32))


def codes(*shape: int) -> ir.Expr:
    return ir.const(np.random.default_rng(2).integers(-128, 128, shape).astype(np.int8))


def conv(
    shape: Sequence[Any], filters: int, kernel: int = 3, groups: int = 1, *, quantized: bool = False, **more: Any
) -> Made:
    channels = shape[-1]
    depthwise = groups == channels
    last = (channels, filters // channels) if depthwise else (channels // groups, filters)
    attrs = {
        "groups": groups, "data_layout": "NHWC", "kernel_layout": "HWOI" if depthwise else "HWIO",
        "padding": (kernel // 2,) * 4, **more,
    }  # fmt: skip
    if quantized:
        x, zeros = var("x", *shape, dtype="int8"), [ir.const(-3), ir.const(0), ir.const(0.5), ir.const(0.25)]
        attrs.update(kernel_size=(kernel,) * 2, channels=filters, out_dtype="int32")
        return ir.call("qnn.conv2d", [x, codes(kernel, kernel, *last), *zeros], attrs), [x]
    x = var("x", *shape)
    call = ir.call("nn.conv2d", [x, floats(kernel, kernel, *last)], attrs)
    return ir.call("nn.relu", [ir.call("nn.bias_add", [call, floats(filters)], axis=3)]), [x]


def scaled_softmax(rows: Any, length: Any, operator: str = "nn.softmax") -> Made:
    x = var("x", 3, rows, length)
    return ir.call(operator, [ir.call("multiply", [x, ir.const(np.float32(3.3))])]), [x]


def relu_of(made: Made) -> Made:
    body, params = made
    return ir.call("nn.relu", [body]), params


def transposed(shape: Sequence[Any], filters: int) -> Made:
    x = var("x", *shape)
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    weights = floats(3, 3, shape[-1], filters)
    return ir.call("nn.conv2d_transpose", [x, weights], strides=(2, 2), padding=(1,) * 4, **layouts), [x]


def dense(shape: Sequence[Any], units: int, *, quantized: bool = False) -> Made:
    if quantized:
        x, zeros = var("x", *shape, dtype="int8"), [ir.const(-3), ir.const(2), ir.const(0.5), ir.const(0.5)]
        return ir.call("qnn.dense", [x, codes(units, shape[-1]), *zeros], units=units, out_dtype="int32"), [x]
    x = var("x", *shape)
    call = ir.call("nn.dense", [x, floats(units, shape[-1])], units=units)
    return ir.call("nn.bias_add", [call, floats(units)], axis=len(shape) - 1), [x]


def packed(shape: Sequence[Any], units: int) -> Made:
    x, blocks = var("x", *shape), -(-shape[-1] // 32)
    scales = ir.const(np.random.default_rng(3).uniform(0.01, 0.1, (units, blocks)).astype(np.float32))
    weights = [codes(units, shape[-1]), scales, ir.const(np.full((units, blocks), 3, np.int32))]
    return ir.call("qnn.weight_only_dense", [x, *weights], units=units, block_size=32), [x]


def matmul(rows: Any, reduction: Any, columns: Any, *, turned: bool) -> Made:
    a = var("a", 2, *((reduction, rows) if turned else (rows, reduction)))
    b = var("b", 2, *((reduction, columns) if turned else (columns, reduction)))
    return ir.call("nn.batch_matmul", [a, b], transpose_a=turned, transpose_b=not turned), [a, b]


def attention(queries: Any, keys: Any, groups: int = 2, **attrs: Any) -> Made:
    parts = [var("q", 1, 2, queries, 20), var("k", 1, groups, keys, 20), var("v", 1, groups, keys, 20)]
    return ir.call("nn.attention", parts, scale=0.25, **attrs), parts


def rows(operator: str, *shape: Any, axis: int = -1) -> Made:
    x = var("x", *shape)
    more = [floats(shape[-1]), floats(shape[-1])] if operator.endswith("norm") else []
    return ir.call(operator, [x, *more], axis=axis), [x]


def pool(operator: str, shape: Sequence[Any], kernel: int, dtype: str = "float32", **attrs: Any) -> Made:
    x = var("x", *shape, dtype=dtype)
    layout = {3: "NWC", 4: "NHWC", 5: "NDHWC"}[len(shape)]
    return ir.call(operator, [x], pool_size=(kernel,) * (len(shape) - 2), layout=layout, **attrs), [x]


def same(extent: Any, kernel: int, stride: int) -> tuple[Any, Any]:
    total = maximum((-(-extent // stride) - 1) * stride + kernel - extent, 0)
    return total // 2, total - total // 2


def same_pool(operator: str, h: Any, w: Any, kernel: int, stride: int) -> Made:
    pads = zip(same(h, kernel, stride), same(w, kernel, stride), strict=True)
    padding = tuple(pad for pair in pads for pad in pair)
    return pool(operator, (1, h, w, 5), kernel, strides=(stride,) * 2, padding=padding)


def turned(shape: Sequence[Any], axes: Sequence[int], dtype: str = "float32") -> Made:
    x = var("x", *shape, dtype=dtype)
    return ir.call("transpose", [x], axes=tuple(axes)), [x]


def turned_sum(rows: Any, columns: Any) -> Made:
    x, y = var("x", rows, columns), var("y", columns, rows)
    return ir.call("add", [ir.call("transpose", [x], axes=(1, 0)), y]), [x, y]


def lstm(steps: Any, batch: Any, *, directions: int, bounded: bool) -> Made:
    units, count = 9, 3 * directions
    x, h, c = var("x", steps, batch, directions * 36), *(var(name, directions, batch, units) for name in "hc")
    lengths: ir.Expr = var("l", batch, dtype="int32") if bounded else ir.const(np.full(1, 2**31 - 1, np.int32))
    call = ir.call(
        "nn.lstm_steps", [x, floats(directions, 36, units), h, lengths, c, floats(directions, 27)],
        activations=("sigmoid", "tanh", "tanh") * directions, alphas=(0.0,) * count, betas=(0.0,) * count,
        direction="bidirectional" if directions == 2 else "forward", returns=("all", "hidden", "cell"),
    )  # fmt: skip
    return call, [x, h, c, *([lengths] if isinstance(lengths, ir.Var) else [])]


BATCHES = of("n", [1], [2], [5])
ROWS = of("n", [1], [2], [5], [7], [8], [33])
PAIRS = of("nm", [1, 1], [1, 7], [3, 5], [9, 1], [2, 33])
IMAGES = of("hw", [1, 4], [4, 5], [9, 6], [13, 33])
WIDTHS = of("w", *([width] for width in (1, 2, 5, 6, 11, 14, 31)))
QUERIES = of("nm", [1, 5], [7, 140], [33, 65])

CASES = {
    "conv, batch": Case(lambda n: conv((n, 9, 11, 5), 20), BATCHES),
    "depthwise, batch": Case(lambda n: conv((n, 9, 6, 20), 20, groups=20), BATCHES),
    "int8 conv, batch": Case(lambda n: conv((n, 6, 5, 5), 20, quantized=True), BATCHES),
    "conv, sides": Case(lambda h, w: conv((2, h, w, 20), 24), IMAGES),
    "grouped, sides": Case(lambda h, w: conv((1, h, w, 8), 16, groups=2, strides=(2, 2)), IMAGES),
    "dilated, sides": Case(lambda h, w: conv((1, h, w, 8), 8, dilation=(2, 2), padding=(2,) * 4), IMAGES),
    "1x1, sides": Case(lambda h, w: conv((1, h, w, 33), 40, kernel=1), IMAGES),
    "depthwise, sides": Case(lambda h, w: conv((1, h, w, 20), 40, groups=20, strides=(2, 2)), IMAGES),
    "int8 conv, sides": Case(lambda h, w: conv((1, h, w, 5), 20, quantized=True), IMAGES),
    "int8 depthwise, sides": Case(lambda h, w: conv((1, h, w, 20), 20, groups=20, quantized=True), IMAGES),
    "conv in bands": Case(lambda h: conv((1, h, 70, 200), 4), of("h", [1], [3], [8])),
    "conv, width": Case(lambda w: conv((1, 3, w, 20), 72), WIDTHS),
    "depthwise, width": Case(lambda w: conv((1, 3, w, 20), 20, groups=20), WIDTHS),
    "transposed, sides": Case(lambda h, w: transposed((1, h, w, 4), 20), IMAGES),
    "transposed to few, sides": Case(lambda h, w: transposed((2, h, w, 9), 3), IMAGES),
    "dense": Case(lambda n: dense((n, 40), 150), ROWS),
    "dense of two": Case(lambda n, m: dense((n, m, 40), 50), PAIRS),
    "dense of a few": Case(lambda n: dense((n, 4, 40), 20), BATCHES),
    "int8 dense": Case(lambda n: dense((n, 40), 150, quantized=True), ROWS),
    "packed dense": Case(lambda n: packed((1, n, 70), 100), ROWS[:4]),
    "packed dense of two": Case(lambda n, m: packed((n, m, 40), 20), PAIRS[1:4]),
    "matmul": Case(
        lambda n, m, k: matmul(n, k, m, turned=False),
        of("nmk", [1, 7, 3], [9, 33, 17], [2, 16, 1100], [5, 3, 1537], [2, 1, 1024]),
    ),
    "turned matmul": Case(
        lambda n, m, k: matmul(n, k, m, turned=True), of("nmk", [1, 1, 1], [17, 18, 5], [7, 40, 1025], [1, 3, 2039])
    ),
    "attention": Case(attention, of(["queries", "keys"], [1, 5], [7, 140], [8, 66], [33, 65], [64, 3])),
    "causal attention": Case(lambda n, m: attention(n, n + m, right=0, offset=m), QUERIES[1:]),
    "attention with shared keys": Case(lambda n, m: attention(n, m, groups=1, softcap=3.0), QUERIES[:2]),
    "softmax": Case(
        lambda n, m: rows("nn.softmax", n, m),
        [*PAIRS[1:], *of("nm", [2, 600], [1, 8192], [2, 8200], [16, 16], [70, 7], [130, 2])],
    ),
    "softmax of scaled rows": Case(lambda n: scaled_softmax(n, 11), ROWS),
    "log softmax of scaled rows": Case(
        lambda n, m: scaled_softmax(n, m, "nn.log_softmax"), of("nm", [2, 7], [40, 10], [70, 16], [20, 20])
    ),
    "softmax, side by side": Case(
        lambda n, m: rows("nn.softmax", 2, n, m, axis=1), [*PAIRS, {"n": 3, "m": 65}, {"n": 600, "m": 1}]
    ),
    "softmax of images": Case(
        lambda n, m: rows("nn.softmax", 2, 5, n, m, axis=1), [*PAIRS, {"n": 3, "m": 65}, {"n": 70, "m": 1}]
    ),
    "layer norm": Case(lambda n, m: rows("nn.layer_norm", n, m, 70), PAIRS),
    "instance norm": Case(
        lambda h, w: rows("nn.instance_norm", 2, h, w, 70, axis=3), [*IMAGES, {"h": 1, "w": 1}, {"h": 40, "w": 700}]
    ),
    "channels first": Case(lambda h, w: turned((2, h, w, 5), (0, 3, 1, 2)), IMAGES),
    "channels last": Case(lambda h, w: turned((1, 3, h, w), (0, 2, 3, 1), "int8"), IMAGES),
    "rows become columns": Case(lambda n, m: turned((n, m), (1, 0)), [*PAIRS, {"n": 21, "m": 19}, {"n": 32, "m": 8}]),
    "sum with columns": Case(turned_sum, of(["rows", "columns"], [1, 1], [3, 9], [8, 6])),
    "largest, sides": Case(
        lambda h, w: pool("nn.max_pool2d", (2, h, w, 3), 3, strides=(2, 1), padding=(1,) * 4), IMAGES
    ),
    "mean, sides": Case(
        lambda h, w: pool("nn.avg_pool2d", (1, h, w, 20), 3, padding=(1, 0, 1, 2), count_include_pad=True), IMAGES
    ),
    "mean of few": Case(lambda h, w: pool("nn.avg_pool2d", (1, h, w, 5), 3, padding=(2,) * 4), IMAGES),
    "mean, rounded up": Case(
        lambda h, w: pool("nn.avg_pool2d", (1, h, w, 5), 2, strides=(3, 2), padding=(1, 0, 0, 1), ceil_mode=True),
        IMAGES,
    ),
    "apart, sides": Case(
        lambda h, w: pool("nn.max_pool2d", (1, h, w, 5), 3, "int8", dilation=(2, 3), padding=(4,) * 4), IMAGES
    ),
    "mean of 5x5": Case(lambda h, w: pool("nn.avg_pool2d", (1, h, w, 5), 5, strides=(2, 2), padding=(2,) * 4), IMAGES),
    "mean of 7x7": Case(lambda h, w: pool("nn.avg_pool2d", (1, h, w, 5), 7, padding=(3,) * 4), IMAGES),
    "largest as `same`": Case(lambda h, w: same_pool("nn.max_pool2d", h, w, 3, 2), IMAGES),
    "mean as `same`": Case(lambda h, w: same_pool("nn.avg_pool2d", h, w, 2, 1), IMAGES),
    "mean of a line": Case(lambda n: pool("nn.avg_pool1d", (2, n, 5), 4, strides=(3,), padding=(2, 1)), ROWS[:5]),
    "largest of a space": Case(
        lambda h, w: pool("nn.max_pool3d", (1, h, 3, w, 5), 2, strides=(1, 2, 2), padding=(1,) * 6), IMAGES[:3]
    ),
    "LSTM": Case(lambda t, n: lstm(t, n, directions=1, bounded=False), of("tn", [1, 1], [5, 2], [3, 9])),
    "LSTM both ways": Case(lambda t, n: lstm(t, n, directions=2, bounded=True), of("tn", [1, 1], [5, 2], [3, 9])),
}  # fmt: skip
IN_C = ("conv, sides", "dense of two", "matmul", "attention")


def lowered(case: Case, target: str, sizes: Mapping[str, Any]) -> LoweredGroup:
    body, params = case.make(**sizes)
    return lower_group(group_of(body, params), TARGETS[target])


def filled(buffer: Any, place: int) -> Array:
    rng, dtype = np.random.default_rng(place + 7), dtypes.to_numpy(buffer.dtype)
    if dtypes.is_float(buffer.dtype):
        return rng.standard_normal(buffer.shape).astype(dtype)
    low, high = (0, 6) if buffer.dtype == "int32" else dtypes.limits(buffer.dtype)
    return rng.integers(low, high + 1, buffer.shape).astype(dtype)


def result(function: Any, group: LoweredGroup, prim: PrimFunc, numbers: Sequence[int]) -> bytes:
    """Run a kernel with values for its symbols, which are substituted in `prim`."""
    arrays = [filled(buffer, place) for place, buffer in zip(group.used, prim.inputs, strict=True)]
    kept = []
    for array in (*arrays, *group.constants):
        copy = aligned(array.shape, array.dtype)
        copy[...] = array
        kept.append(copy)
    output = aligned(prim.output.shape, dtypes.to_numpy(prim.output.dtype))
    output.reshape(-1).view(np.uint8)[...] = 0x5A
    workspace = aligned((prim.scratch_bytes,), np.uint8)
    workspace[...] = 0xA5
    pointers = [array.ctypes.data for array in (*kept, output, *([workspace] if prim.scratch else []))]
    assert function(*map(ctypes.c_void_p, pointers), *map(ctypes.c_int32, numbers)) == 0
    return output.tobytes()


def assert_same_bits(case: Case, target: str, load: Callable[[dict[str, PrimFunc]], Any]) -> None:
    is_open = lowered(case, target, {name: Symbol(name).dim for name in case.sizes[0]})
    static = [lowered(case, target, sizes) for sizes in case.sizes]
    library = load({"open_": is_open.prim, **{f"static{place}": group.prim for place, group in enumerate(static)}})
    for place, (sizes, group) in enumerate(zip(case.sizes, static, strict=True)):
        numbers = [sizes[symbol.name] for symbol in is_open.prim.symbols]
        prim = with_numbers(is_open.prim, numbers)
        verify(prim)
        verify(group.prim)
        ours = result(library.open_, is_open, prim, numbers)
        assert ours == result(getattr(library, f"static{place}"), group, group.prim, ()), (sizes, target)


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_open_extents_give_the_bits_of_static_ones(name: str) -> None:
    for target in ("default", "plain") if name in IN_C else ("default",):
        assert_same_bits(CASES[name], target, lambda prims: beside_c(prims, FUSING, optimizes=False))


@pytest.mark.parametrize("name", ["attention", "dense", "matmul"])
def test_kernels_for_many_registers_do_so_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_tile, "LEAST_BYTES", 0)
    assert_same_bits(CASES[name], "wide", lambda prims: beside_c(prims, FUSING, optimizes=False))


@pytest.mark.parametrize("large", [0, 1 << 40])
def test_convolutions_by_transforms_do_so_too(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "LARGE_WEIGHTS", large)
    case = Case(lambda h, w: conv((2, h, w, 16), 24), [*IMAGES, {"h": 19, "w": 22}])
    assert_same_bits(case, "transforms", lambda prims: beside_c(prims, FUSING, optimizes=False))


def test_rows_beyond_near_caches_do_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalization, "_FAR_BYTES", 0)
    sizes = of("nm", [1, 40], [3, 77], [17, 40])
    for operator in ("nn.softmax", "nn.log_softmax"):
        case = Case(lambda n, m, name=operator: rows(name, n, m, 1, axis=1), sizes)
        assert_same_bits(case, "far", lambda prims: beside_c(prims, FUSING, optimizes=False))
        static = lowered(case, "far", sizes[1]).prim
        assert not static.scratch
        assert any(isinstance(stmt, Prefetch) for stmt in walk(static.body))
    fused = Case(lambda n, m: relu_of(rows("nn.softmax", n, m)), sizes)
    assert lowered(fused, "far", sizes[1]).prim.scratch


@pytest.mark.parametrize("name", IN_C)
def test_kernels_of_open_extents_do_so_in_c(name: str, tmp_path: Path) -> None:
    def load(prims: dict[str, PrimFunc]) -> Any:
        text = print_file([print_function(prim, symbol) for symbol, prim in prims.items()])
        return ctypes.CDLL(str(compile_shared({"kernels.c": text.encode()}, tmp_path / "kernels.so", FUSING)))

    case = CASES[name]
    assert_same_bits(Case(case.make, case.sizes[3:4]), "default", load)


def test_static_attention_of_many_queries_is_that_of_panels() -> None:
    names = [buffer.name for buffer in lowered(CASES["attention"], "default", {"queries": 8, "keys": 9}).prim.scratch]
    assert "queries" in names


@pytest.mark.parametrize(("rows", "columns", "extents"), [
    (Symbol("n").dim, 20, ["5", "4", "4", "5", "4"]),
    (17, 9, ["2", "4", "4", "4", "2", "4", "4", "4"]),
    (16, 9, ["9", "16"]),
    (Symbol("n").dim, 7, ["7"]),
])  # fmt: skip
def test_long_transposes_are_cut_into_tiles(rows: Any, columns: int, extents: list[str]) -> None:
    """Leave transposes of few rows, and short ones, to the compiler."""
    group = lowered(Case(lambda: turned((rows, columns), (1, 0)), ()), "default", {})
    loops = [stmt for stmt in walk(group.prim.body) if isinstance(stmt, For)]
    assert [str(loop.extent.value) for loop in loops if isinstance(loop.extent, Const)] == extents


@pytest.mark.parametrize("largest", [1, 2, 4, 6, 7, 8])
def test_few_sizes_of_pieces_cover_rows_of_every_width(largest: int) -> None:
    split = DynamicSplit(None, largest)
    for width in range(1, 64):
        pieces = split.pieces_of(width)
        assert len(pieces) <= 3  # each is a copy of the kernel's code
        assert all(size <= width for size, count in pieces if count)
        assert width <= sum(size * count for size, count in pieces) < width + largest / 2

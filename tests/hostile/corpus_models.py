"""Models of a few hundred bytes that require gigabytes or hours: growing constants, multiplying graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.onnx_models import model
from tests.tflite_builder import Op, T, build

BOMBS: dict[str, Callable[[], bytes]] = {}
_node = helper.make_node


def _bomb(make: Callable[[], bytes]) -> Callable[[], bytes]:
    BOMBS[make.__name__] = make
    return make


def _integers(*values: int) -> Any:
    return np.array(values, np.int64)


def _added(nodes: Sequence[onnx.NodeProto], last: str, weights: dict[str, Any], **more: Any) -> bytes:
    """Return a model that adds the tensor `last` to its input."""
    both = [*nodes, _node("Add", ["x", last], ["y"])]
    return model(both, {"x": (1,)}, ["y"], weights, **more).SerializeToString()


@_bomb
def tiles_of_tiles() -> bytes:
    """Return Tiles that each make their input four times larger: 4 GiB after six."""
    steps = [_node("Tile", [f"t{i}", "repeats"], [f"t{i + 1}"]) for i in range(6)]
    filled = _node("ConstantOfShape", ["shape"], ["t0"])
    return _added([filled, *steps], "t6", {"shape": _integers(1 << 18), "repeats": _integers(4)})


@_bomb
def joins_of_joins() -> bytes:
    """Return Concats that each double their input."""
    steps = [_node("Concat", [f"t{i}"] * 2, [f"t{i + 1}"], axis=0) for i in range(14)]
    filled = _node("ConstantOfShape", ["shape"], ["t0"])
    return _added([filled, *steps], "t14", {"shape": _integers(1 << 16)})


@_bomb
def many_filled_constants() -> bytes:
    """Return sixty constants of 64 MiB, all different."""
    nodes = [
        _node("ConstantOfShape", ["shape"], [f"t{i}"], value=numpy_helper.from_array(np.array([i], np.float32)))
        for i in range(60)
    ]
    joined = _node("Concat", [f"t{i}" for i in range(60)], ["all"], axis=0)
    return _added([*nodes, joined], "all", {"shape": _integers(1 << 24)})


@_bomb
def many_ranges() -> bytes:
    """Return forty ranges of 128 MiB."""
    nodes = [_node("Range", [f"from{i}", "to", "one"], [f"r{i}"]) for i in range(40)]
    summed = [_node("Sum", [f"r{i}" for i in range(40)], ["sum"]), _node("Cast", ["sum"], ["all"], to=1)]
    weights = {f"from{i}": np.array(0) for i in range(40)}
    return _added([*nodes, *summed], "all", {**weights, "to": np.array(1 << 24), "one": np.array(1)})


@_bomb
def long_work_on_constants() -> bytes:
    """Return two hundred error functions of 100,000 elements, computed at import."""
    steps = [_node("Erf", [f"t{i}"], [f"t{i + 1}"]) for i in range(200)]
    filled = _node("ConstantOfShape", ["shape"], ["t0"])
    return _added([filled, *steps], "t200", {"shape": _integers(100, 1000)})


def _nested(levels: int, calls: int) -> bytes:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = []
    for level in range(levels):
        names = ["a", *(f"t{index}" for index in range(calls - 1)), "r"]
        operator, domain = (f"F{level + 1}", "f") if level < levels - 1 else ("Relu", "")
        body = [_node(operator, [u], [v], domain=domain) for u, v in pairwise(names)]
        functions.append(helper.make_function("f", f"F{level}", ["a"], ["r"], body, opsets))
    node = _node("F0", ["x"], ["y"], domain="f")
    more = {"domains": opsets[1:], "functions": functions}
    return model([node], {"x": (1,)}, ["y"], **more).SerializeToString()


@_bomb
def nested_functions() -> bytes:
    """Return nested functions with 3**9 nodes."""
    return _nested(9, 3)


@_bomb
def deeply_nested_functions() -> bytes:
    """Return deeply nested functions with 16**12 nodes."""
    return _nested(12, 16)


def _resized(mode: str, shape: Sequence[int], sizes: Sequence[int], **attributes: Any) -> bytes:
    node = _node("Resize", ["x", "", "", "sizes"], ["y"], mode=mode, **attributes)
    return model([node], {"x": shape}, ["y"], {"sizes": _integers(*sizes)}, opset=18).SerializeToString()


@_bomb
def resize_of_an_image() -> bytes:
    """Return a resize with tables of eight million columns."""
    return _resized("linear", (1, 1, 4, 4), (1, 1, 1, 1 << 23))


@_bomb
def resize_of_a_row() -> bytes:
    """Return a resize with tables of eight million elements and four neighbours for each."""
    return _resized("cubic", (1, 4), (1, 1 << 23))


@_bomb
def antialiased_resize() -> bytes:
    """Return a resize with a million neighbours per element, each of them an operator."""
    return _resized("cubic", (1, 1 << 20), (1, 4), antialias=1)


@_bomb
def masks_of_a_long_sequence() -> bytes:
    """Return a mask of 2^30 queries and keys, whose size only the inputs' shapes declare."""
    shapes = dict.fromkeys(("q", "k", "v"), (1, 1, 1 << 30, 1))
    return model([_node("Attention", [*shapes], ["y"], is_causal=1)], shapes, ["y"], opset=24).SerializeToString()


@_bomb
def grid_whose_size_wraps() -> bytes:
    """Return a grid of 2^32 x 2^32 positions, a product that wraps to 0 in 64 bits."""
    nodes = [_node("AffineGrid", ["x", "size"], ["y"])]
    weights = {"size": _integers(1, 1, 1 << 32, 1 << 32)}
    return model(nodes, {"x": (1, 2, 3)}, ["y"], weights, opset=20).SerializeToString()


@_bomb
def enormous_activation() -> bytes:
    """Return an activation that needs 5 GiB of workspace."""
    nodes = [
        _node("Expand", ["x", "shape"], ["wide"]),
        _node("CumSum", ["wide", "axis"], ["sums"]),
        _node("CumSum", ["sums", "axis"], ["more"], reverse=1),
        _node("ReduceMax", ["more"], ["y"]),
    ]
    weights = {"shape": _integers(5 << 28), "axis": np.array(0)}
    return model(nodes, {"x": (1,)}, ["y"], weights).SerializeToString()


@_bomb
def one_weight_scaled_often() -> bytes:
    """Return sixty convolutions that share one weight of 4 MiB, each with a different scale to be folded into it."""
    nodes, tensor = [_node("ConstantOfShape", ["shape"], ["w"])], "x"
    for i in range(60):
        nodes.append(_node("Conv", [tensor, "w"], [f"c{i}"]))
        nodes.append(_node("Mul", [f"c{i}", f"s{i}"], [f"m{i}"]))
        tensor = f"m{i}"
    weights = {f"s{i}": np.full((1024, 1, 1), 1 + i, np.float32) for i in range(60)}
    last = [*nodes, _node("Relu", [tensor], ["y"])]
    given = {"shape": _integers(1024, 1024, 1, 1), **weights}
    return model(last, {"x": (1, 1024, 1, 1)}, ["y"], given).SerializeToString()


@_bomb
def everything_live_at_once() -> bytes:
    """Return 375 branches whose results are all live at the end."""
    first = [_node("Sin", ["x"], [f"t{i}"]) for i in range(375)]
    second = [_node("CumSum", [f"t{i}", "axis"], [f"u{i}"]) for i in range(375)]
    last = _node("Sum", [f"u{i}" for i in range(375)], ["y"])
    return model([*first, *second, last], {"x": (4,)}, ["y"], {"axis": np.array(0)}).SerializeToString()


@_bomb
def wide_lookup_tables() -> bytes:
    """Return sigmoids of 16-bit integers, each of which may become a lookup table."""
    nodes, tensor = [], "q"
    for i in range(40):
        nodes.append(_node("DequantizeLinear", [tensor, f"s{i}", "zero"], [f"d{i}"]))
        nodes.append(_node("Sigmoid", [f"d{i}"], [f"g{i}"]))
        nodes.append(_node("QuantizeLinear", [f"g{i}", f"s{i}", "zero"], [f"q{i}"]))
        tensor = f"q{i}"
    weights = {**{f"s{i}": np.array(0.001 * (i + 1), np.float32) for i in range(40)}, "zero": np.array(0, np.int16)}
    return model(nodes, {"q": (64,)}, [tensor], weights, opset=21, dtype=TensorProto.INT16).SerializeToString()


@_bomb
def padded_pool() -> bytes:
    """Return a pool with windows of a million elements, mostly padding, on an image of a million elements."""
    node = _node("AveragePool", ["x"], ["y"], kernel_shape=[1000, 1000], pads=[500] * 4, count_include_pad=1)
    return model([node], {"x": (1, 1, 1000, 1000)}, ["y"]).SerializeToString()


@_bomb
def split_into_hundreds() -> bytes:
    """Return a node with 400 outputs that are all live until the last one is used."""
    names = [f"o{i}" for i in range(400)]
    nodes = [_node("Split", ["x"], names, axis=0), _node("Concat", names[::-1], ["y"], axis=0)]
    return model(nodes, {"x": (400,)}, ["y"], opset=13).SerializeToString()


@_bomb
def tflite_broadcasts() -> bytes:
    """Return repeated BROADCAST_TO of a constant and TILE of the result."""
    tensors = [T("x", (1,)), T("one", (1,), "float32", np.ones(1, np.float32))]
    tensors += [T("shape", (1,), "int32", np.array([1 << 18])), T("repeats", (1,), "int32", np.array([4]))]
    tensors += [T(f"t{i}", ((1 << 18) * 4**i,)) for i in range(7)] + [T("y", (1 << 30,))]
    steps = [Op("TILE", [f"t{i}", "repeats"], [f"t{i + 1}"]) for i in range(6)]
    ops = [Op("BROADCAST_TO", ["one", "shape"], ["t0"]), *steps, Op("ADD", ["x", "t6"], ["y"], "AddOptions")]
    return build(tensors, ops, ["x"], ["y"])


@_bomb
def tflite_resize() -> bytes:
    """Return a resize with tables of eight million columns."""
    sizes = T("sizes", (2,), "int32", np.array([1, 1 << 23]))
    op = Op("RESIZE_BILINEAR", ["x", "sizes"], ["y"], "ResizeBilinearOptions")
    return build([T("x", (1, 4, 4, 1)), sizes, T("y", (1, 1, 1 << 23, 1))], [op], ["x"], ["y"])

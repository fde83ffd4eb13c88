"""The operators of random dynamic graphs, each with operands that fit for all sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from fuzz.open_graphs import Graph, ImpossibleError, Value

_EXACT_UNARY = ("Relu", "Neg", "Abs", "Ceil", "Sign", "Identity")
_INEXACT_UNARY = ("Sigmoid", "Tanh", "Erf", "Softplus", "HardSwish", "Elu")
_BINARY = ("Add", "Sub", "Mul", "Min", "Max")
_COMPARISONS = ("Equal", "Less", "GreaterOrEqual")


def _is_float(value: Value) -> bool:
    return value.dtype == "float32"


def _is_number(value: Value) -> bool:
    return value.dtype != "bool"


def _has_rank(low: int, high: int = 5) -> Callable[[Value], bool]:
    return lambda value: _is_float(value) and low <= value.rank <= high


def _axis(graph: Graph, value: Value) -> int:
    if not value.rank:
        raise ImpossibleError
    return graph.number(-value.rank, value.rank - 1) if graph.chance(0.3) else graph.number(0, value.rank - 1)


def _unary(graph: Graph) -> None:
    x = graph.value(_is_float)
    if graph.chance(0.7):
        graph.add(graph.pick(_EXACT_UNARY), [x.name])
    else:
        graph.add(graph.pick(_INEXACT_UNARY), [x.name], exact=False)


def _declared(graph: Graph, x: Value) -> list[int | str]:
    """Return a shape of symbols and static sizes that broadcasts with a tensor."""
    shape: list[int | str] = []
    for axis in range(x.rank):
        extents = tuple(array.shape[axis] for array in x.arrays)
        names = [name for name, sizes in graph.sizes.items() if sizes == extents]
        same: int | str = names[0] if names else extents[0] if len(set(extents)) == 1 else 1
        shape.append(1 if graph.chance(0.3) else same)
    return shape[graph.number(0, len(shape)) :] if graph.chance(0.3) else shape


def _binary(graph: Graph) -> None:
    x = graph.value(_is_number)
    like = [
        other
        for other in graph.values.values()
        if other is not x and other.dtype == x.dtype
        and all(_broadcasts(a.shape, b.shape) for a, b in zip(x.arrays, other.arrays, strict=True))
    ]  # fmt: skip
    if like and graph.chance(0.6):
        other = graph.pick(like)
    else:
        other = graph.new_input(tuple(_declared(graph, x)), x.dtype)
    graph.add(graph.pick((*_BINARY, *_COMPARISONS)), [x.name, other.name][:: graph.pick((1, -1))])


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    pairs = zip(a[::-1], b[::-1], strict=False)
    return all(one == other or 1 in (one, other) for one, other in pairs)


def _where(graph: Graph) -> None:
    flag = graph.value(lambda value: value.dtype == "bool")
    x = graph.new_input(tuple(_declared(graph, flag)))
    y = graph.constant(graph.number(-3, 3), "float32")
    graph.add("Where", [flag.name, x.name, y])


def _cast(graph: Graph) -> None:
    x = graph.value(lambda value: value.is_exact)
    graph.add("Cast", [x.name], to=graph.pick((TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32)))


def _slice(graph: Graph) -> None:
    x = graph.value(lambda value: value.rank > 0)
    axis = _axis(graph, x)
    start, end, step = graph.number(-4, 4), graph.pick((-2, -1, 1, 2, 3, 5, 9, 2**40)), graph.pick((1, 1, 2, 3, -1))
    if step < 0:
        start, end = graph.pick((-1, 3, 100)), graph.pick((0, -5, -(2**40)))
    operands = [graph.constant([item]) for item in (start, end, axis, step)]
    graph.add("Slice", [x.name, *operands])


def _late_slice(graph: Graph) -> None:
    """Cut an axis in half, at an end that is computed from its shape."""
    x = graph.value(lambda value: value.rank > 0)
    axis = graph.number(0, x.rank - 1)
    extent = _extent(graph, x, axis)
    (half,) = graph.add("Div", [extent, graph.constant([2])])
    bounds = [graph.constant([0]), half.name][:: graph.pick((1, -1))]
    if graph.chance(0.5):
        bounds[1] = extent
    graph.add("Slice", [x.name, *bounds, graph.constant([axis])])


def _extent(graph: Graph, x: Value, axis: int) -> str:
    """Return a dimension size as a tensor of one element, as exporters write it."""
    (shape,) = graph.add("Shape", [x.name])
    return graph.add("Gather", [shape.name, graph.constant([axis])], axis=0)[0].name


def _reshape(graph: Graph) -> None:
    x = graph.value(lambda value: value.rank > 0)
    if not all(array.size for array in x.arrays):
        raise ImpossibleError  # in a shape, 0 would copy another dimension
    axis = graph.number(0, x.rank - 1)
    kind = graph.number(0, 3)
    if kind == 0:
        graph.add("Reshape", [x.name, graph.constant([*([0] * axis), -1])])
    elif kind == 1:
        graph.add("Flatten", [x.name], axis=axis)
    elif kind == 2:  # split a static axis into two
        parts = [part for part in (1, 2, 3) if x.extent(axis) % part == 0]
        part = graph.pick(parts)
        rest = [graph.pick((-1, x.extent(axis) // part)), *([0] * 0)]
        graph.add("Reshape", [x.name, graph.constant([*([0] * axis), part, *rest, *_rest(x, axis + 1)])])
    else:
        extents = [_extent(graph, x, index) for index in range(x.rank)]
        last = graph.number(0, x.rank - 1)
        extents[last] = graph.constant([-1])
        if graph.chance(0.5):
            extents.reverse()
        (shape,) = graph.add("Concat", extents, axis=0)
        graph.add("Reshape", [x.name, shape.name])


def _rest(x: Value, axis: int) -> list[int]:
    return [x.extent(index) for index in range(axis, x.rank)]


def _dimensions(graph: Graph) -> None:
    x = graph.value(lambda value: value.rank > 0)
    if graph.chance(0.4):
        graph.add("Unsqueeze", [x.name, graph.constant([graph.number(0, x.rank)])])
    elif graph.chance(0.3):
        ones = [axis for axis in range(x.rank) if all(array.shape[axis] == 1 for array in x.arrays)]
        graph.add("Squeeze", [x.name, graph.constant([graph.pick(ones)])])
    else:
        graph.add("Transpose", [x.name], perm=[int(axis) for axis in graph.rng.permutation(x.rank)])


def _reduce(graph: Graph) -> None:
    x = graph.value(_has_rank(1))
    axes = sorted({graph.number(0, x.rank - 1) for _ in range(graph.number(1, 2))})
    keepdims = graph.number(0, 1)
    operator = graph.pick(("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceL2", "ReduceLogSumExp"))
    if min(x.least(axis) for axis in axes) < 1:
        raise ImpossibleError
    exact = operator in ("ReduceSum", "ReduceMax", "ReduceMin")
    graph.add(operator, [x.name, graph.constant(axes)], exact=exact, keepdims=keepdims)


def _position(graph: Graph) -> None:
    x = graph.value(lambda value: _is_float(value) and value.rank > 0 and value.is_exact)
    axis = _axis(graph, x)
    graph.add(graph.pick(("ArgMax", "ArgMin")), [x.name], axis=axis, keepdims=graph.number(0, 1),
              select_last_index=graph.number(0, 1))  # fmt: skip


def _window(graph: Graph) -> None:
    """Add a convolution or a pool over the last one or two axes."""
    x = graph.value(_has_rank(3, 4))
    sides = x.rank - 2
    # where a window does not fit, ONNX Runtime rounds towards zero and returns one result
    kernel = [graph.number(1, min(3, max(1, x.least(axis)))) for axis in range(2, x.rank)]
    attrs = {"kernel_shape": kernel, "strides": [graph.number(1, 3) for _ in range(sides)]}
    if graph.chance(0.7):
        attrs["pads"] = [graph.number(0, min(kernel) - 1) for _ in range(2 * sides)]
    else:
        attrs["auto_pad"] = graph.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    kind = graph.number(0, 5)
    if kind == 0:
        if "pads" in attrs:
            attrs["ceil_mode"] = graph.number(0, 1)
        graph.add("MaxPool", [x.name], outputs=graph.number(1, 2), **attrs)
    elif kind == 1:
        graph.add("AveragePool", [x.name], exact=False, count_include_pad=graph.number(0, 1), **attrs)
    elif kind == 2:
        graph.add(graph.pick(("GlobalAveragePool", "GlobalMaxPool")), [x.name], exact=False)
    else:
        channels = max(1, x.extent(1))
        group = graph.pick([part for part in (1, 1, 2, channels) if channels % part == 0])
        given = group * graph.number(1, 2) if group > 1 else graph.number(1, 5)
        if kind == 3 and "pads" in attrs:
            graph.add("ConvTranspose", [x.name, graph.weights(channels, given // group, *kernel)], group=group, **attrs)
            return
        names = [x.name, graph.weights(given, channels // group, *kernel)]
        names += [graph.weights(given)] if graph.chance(0.5) else []
        graph.add("Conv", names, group=group, **attrs)


def _product(graph: Graph) -> None:
    x = graph.value(_has_rank(2))
    if graph.chance(0.6):
        graph.add("MatMul", [x.name, graph.weights(x.extent(-1), graph.number(1, 5))])
        return
    order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    (turned,) = graph.add("Transpose", [x.name], perm=order)
    graph.add("MatMul", [x.name, turned.name][:: graph.pick((1, -1))])


def _gemm(graph: Graph) -> None:
    x = graph.value(_has_rank(2, 2))
    count = graph.number(1, 5)
    graph.add("Gemm", [x.name, graph.weights(count, x.extent(1)), graph.weights(count)], transB=1)


def _normalize(graph: Graph) -> None:
    x = graph.value(_has_rank(1))
    kind = graph.number(0, 2)
    if kind < 2:
        graph.add(graph.pick(("Softmax", "LogSoftmax")), [x.name], exact=False, axis=_axis(graph, x))
    elif x.rank > 2 and graph.chance(0.5):
        weights = [graph.weights(x.extent(1)) for _ in range(2)]
        graph.add("InstanceNormalization", [x.name, *weights], exact=False, epsilon=0.01)
    else:
        weights = [graph.weights(x.extent(-1)) for _ in range(2)]
        graph.add("LayerNormalization", [x.name, *weights], exact=False, epsilon=0.01)


def _concat(graph: Graph) -> None:
    x = graph.value(lambda value: value.rank > 0)
    axis = graph.number(0, x.rank - 1)

    def fits(other: Value) -> bool:
        return other.dtype == x.dtype and all(
            a.ndim == b.ndim and a.shape[:axis] == b.shape[:axis] and a.shape[axis + 1 :] == b.shape[axis + 1 :]
            for a, b in zip(x.arrays, other.arrays, strict=True)
        )

    names = [graph.value(fits).name for _ in range(graph.number(1, 2))]
    graph.add("Concat", [x.name, *names], axis=axis)


def _pad(graph: Graph) -> None:
    x = graph.value(_has_rank(1, 4))
    mode = graph.pick(("constant", "constant", "edge", "reflect", "wrap"))
    most = [2 if mode == "constant" else min(2, x.least(axis) - 1) for axis in range(x.rank)] * 2
    least = -1 if mode == "constant" and graph.chance(0.2) else 0
    pads = [graph.number(least, max(0, limit)) for limit in most]
    graph.add("Pad", [x.name, graph.constant(pads), graph.constant(graph.number(-2, 2), "float32")], mode=mode)


def _resize(graph: Graph) -> None:
    x = graph.value(_has_rank(4, 4))
    if not all(array.size for array in x.arrays):
        raise ImpossibleError
    mode = graph.pick(("nearest", "linear", "cubic"))
    places = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    attrs = {"mode": mode, "coordinate_transformation_mode": graph.pick(places)}
    if mode == "nearest":
        attrs["nearest_mode"] = graph.pick(("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
    scales = [1, 1, *(graph.pick((0.5, 1, 1.5, 2, 3)) for _ in range(2))]
    if any(scales[axis] * x.least(axis) < 1 for axis in (2, 3)):
        raise ImpossibleError
    if graph.chance(0.7):
        graph.add("Resize", [x.name, "", graph.constant(scales, "float32")], exact=mode == "nearest", **attrs)
        return
    parts = [_extent(graph, x, axis) for axis in range(2)]
    (sizes,) = graph.add("Concat", [*parts, graph.constant([graph.number(1, 7), graph.number(1, 7)])], axis=0)
    graph.add("Resize", [x.name, "", "", sizes.name], exact=mode == "nearest", **attrs)


def _counted(graph: Graph) -> None:
    """Add an operator with a data-dependent number of results."""
    x = graph.value(lambda value: value.is_exact and value.rank > 0)
    kind = graph.number(0, 3)
    if kind == 0:
        (places,) = graph.add("NonZero", [x.name])
        if graph.chance(0.5):
            (turned,) = graph.add("Transpose", [places.name], perm=[1, 0])
            graph.add("GatherND", [x.name, turned.name])
    elif kind == 1:
        (flat,) = graph.add("Reshape", [x.name, graph.constant([-1])])
        if x.dtype == "bool":
            graph.add("Compress", [flat.name, flat.name], axis=0)
        else:
            (flag,) = graph.add("Greater", [flat.name, graph.constant(0, x.dtype)])
            graph.add("Compress", [flat.name, flag.name], axis=0)
    elif kind == 2 and x.dtype == "float32":
        (flat,) = graph.add("Reshape", [x.name, graph.constant([-1])])
        graph.add("Unique", [flat.name], outputs=graph.number(1, 4), sorted=1)
    elif x.dtype == "float32":
        axis = graph.number(0, x.rank - 1)
        count = graph.number(1, max(1, x.least(axis)))
        name = graph.constant([count])
        if graph.chance(0.4):
            (half,) = graph.add("Div", [_extent(graph, x, axis), graph.constant([2])])
            name = half.name
        graph.add("TopK", [x.name, name], outputs=2, axis=axis, largest=graph.number(0, 1))


def _fill(graph: Graph) -> None:
    x = graph.value(lambda value: value.rank > 0)
    kind = graph.number(0, 3)
    if kind == 0:
        (shape,) = graph.add("Shape", [x.name])
        graph.add("ConstantOfShape", [shape.name])
    elif kind == 1:
        extent = _extent(graph, x, graph.number(0, x.rank - 1))
        (count,) = graph.add("Squeeze", [extent, graph.constant([0])])
        (row,) = graph.add("Range", [graph.constant(0), count.name, graph.constant(graph.number(1, 2))])
        graph.add("Cast", [row.name], to=TensorProto.FLOAT)
    elif kind == 2:
        (shape,) = graph.add("Shape", [x.name])
        graph.add("Expand", [graph.constant([[2.0]], "float32"), shape.name])
    else:
        graph.add("Tile", [x.name, graph.constant([graph.number(1, 2) for _ in range(x.rank)])])


def _choose(graph: Graph) -> None:
    x = graph.value(lambda value: value.rank > 0)
    axis = graph.number(0, x.rank - 1)
    least = x.least(axis)
    if least < 1:
        raise ImpossibleError
    indices = [graph.number(-least, least - 1) for _ in range(graph.number(1, 3))]
    graph.add("Gather", [x.name, graph.constant(indices if graph.chance(0.7) else indices[0])], axis=axis)


def _split(graph: Graph) -> None:
    x = graph.value(lambda value: value.rank > 0)
    axis = graph.number(0, x.rank - 1)
    parts = graph.number(2, 3)
    graph.add("Split", [x.name], outputs=parts, axis=axis, num_outputs=parts)


def _sum_along(graph: Graph) -> None:
    x = graph.value(_has_rank(1))
    axis = graph.constant(graph.number(0, x.rank - 1))
    graph.add("CumSum", [x.name, axis], exclusive=graph.number(0, 1), reverse=graph.number(0, 1))


def _triangle(graph: Graph) -> None:
    x = graph.value(_has_rank(2))
    graph.add("Trilu", [x.name, graph.constant(graph.number(-2, 2))], upper=graph.number(0, 1))


def _sum_of_products(graph: Graph) -> None:
    x = graph.value(_has_rank(2, 3))
    letters = "abc"[: x.rank]
    equation = graph.pick((f"{letters},{letters}->{letters[::-1]}", f"{letters},{letters[:-1]}z->{letters[-1]}z"))
    graph.add("Einsum", [x.name, x.name], equation=equation)


def _branch(graph: Graph) -> None:
    x = graph.value(_has_rank(1))
    y = graph.new_input(tuple(graph.pick([*graph.sizes, 2]) for _ in range(x.rank)))
    (total,) = graph.add("ReduceSum", [y.name], keepdims=0)
    (flag,) = graph.add("Greater", [total.name, graph.constant(0, "float32")])
    bodies = []
    for name, operator in (("_a", "Relu"), ("_b", "Neg")):
        read = graph.pick((x.name, y.name))
        node = helper.make_node(operator, [read], [name])
        bodies.append(helper.make_graph([node], name[1:], [], [_info(name, x.rank)]))
    (both,) = graph.add("If", [flag.name], then_branch=bodies[0], else_branch=bodies[1])
    graph.add("Abs", [both.name])


def _info(name: str, rank: int, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, [None] * rank)


def _loop(graph: Graph) -> None:
    """Add a loop whose state grows or stays, and which may end early."""
    x = graph.value(_has_rank(1, 3))
    if graph.chance(0.5):
        turns = graph.constant(graph.number(0, 4))
    else:
        (count,) = graph.add("Squeeze", [_extent(graph, x, 0), graph.constant([0])])
        turns = count.name
    one = graph.constant(graph.number(1, 2), "float32")
    nodes = [helper.make_node("Sub", ["_s", one], ["_t"])]
    if graph.chance(0.4):
        nodes.append(helper.make_node("Concat", ["_t", x.name], ["_u"], axis=graph.number(0, x.rank - 1)))
    else:
        nodes.append(helper.make_node("Max", ["_t", x.name], ["_u"]))
    if graph.chance(0.5):
        nodes += [
            helper.make_node("ReduceSum", ["_u"], ["_v"], keepdims=0),
            helper.make_node("Greater", ["_v", graph.constant(-30, "float32")], ["_go2"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["_go"], ["_go2"]))
    nodes.append(helper.make_node("ReduceMax", ["_t"], ["_row"], keepdims=0))
    body = helper.make_graph(
        nodes,
        "body",
        [_info("_i", 0, TensorProto.INT64), _info("_go", 0, TensorProto.BOOL), _info("_s", x.rank)],
        [_info("_go2", 0, TensorProto.BOOL), _info("_u", x.rank), _info("_row", 0)],
    )
    graph.add("Loop", [turns, "", x.name], outputs=2, body=body)


def _scan(graph: Graph) -> None:
    x = graph.value(_has_rank(2, 3))
    axis = graph.number(0, x.rank - 1)
    taken = [graph.constant(graph.number(0, 0)), graph.constant(axis)]
    (start,) = graph.add("Gather", [x.name, taken[0]], axis=axis)
    nodes = [helper.make_node("Add", ["_s", "_e"], ["_t"]), helper.make_node("Identity", ["_t"], ["_row"])]
    body = helper.make_graph(
        nodes, "body", [_info("_s", x.rank - 1), _info("_e", x.rank - 1)],
        [_info("_t", x.rank - 1), _info("_row", x.rank - 1)],
    )  # fmt: skip
    graph.add("Scan", [start.name, x.name], outputs=2, body=body, num_scan_inputs=1, scan_input_axes=[axis],
              scan_input_directions=[graph.number(0, 1)], scan_output_axes=[graph.number(0, x.rank - 1)],
              scan_output_directions=[graph.number(0, 1)])  # fmt: skip


def _sequence(graph: Graph) -> None:
    x = graph.value(_has_rank(1, 3))
    axis = graph.number(0, x.rank - 1)
    split = graph.constant(graph.number(1, 3))
    # ONNX Runtime computes each node separately, so values between nodes must be tensors
    length = np.array(0)
    nodes = [
        helper.make_node("SplitToSequence", [x.name, split], ["_p"], axis=axis),
        helper.make_node("SequenceAt", ["_p", graph.constant(-1)], ["_l"]),
        helper.make_node("SequenceInsert", ["_p", "_l", graph.constant(length)], ["_q"]),
        helper.make_node("ConcatFromSequence", ["_q"], ["_r"], axis=axis),
    ]
    y = graph.new_input((), "float32")
    (flag,) = graph.add("Less", [y.name, graph.constant(0, "float32")])
    then = helper.make_graph(nodes, "then", [], [_info("_r", x.rank)])
    other = helper.make_graph([helper.make_node("Neg", [x.name], ["_o"])], "other", [], [_info("_o", x.rank)])
    graph.add("If", [flag.name], then_branch=then, else_branch=other)


def _spectrum(graph: Graph) -> None:
    x = graph.value(lambda value: _has_rank(1, 3)(value) and all(array.size for array in value.arrays))
    (numbers,) = graph.add("Unsqueeze", [x.name, graph.constant([-1])])
    length = graph.pick(("", graph.constant(graph.number(1, 6))))
    graph.add("DFT", [numbers.name, length], exact=False, axis=graph.number(0, x.rank - 1), onesided=graph.number(0, 1))


def _crop(graph: Graph) -> None:
    x = graph.value(_has_rank(1, 3))
    axis = graph.number(0, x.rank - 1)
    other = graph.value(_has_rank(1, 3))
    size = graph.pick((graph.constant([graph.number(1, 6)]), _extent(graph, other, graph.number(0, other.rank - 1))))
    graph.add("CenterCropPad", [x.name, size], axes=[axis])


def _recurrent(graph: Graph) -> None:
    x = graph.value(_has_rank(3, 3))
    hidden, size = graph.number(1, 3), x.extent(2)
    operator, gates = graph.pick((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    weights = [graph.weights(1, gates * hidden, size), graph.weights(1, gates * hidden, hidden)]
    graph.add(operator, [x.name, *weights], exact=False, hidden_size=hidden, outputs=2)


STEPS: tuple[Callable[[Graph], None], ...] = (
    _unary, _unary, _binary, _binary, _binary, _where, _where, _cast, _slice, _slice, _late_slice, _reshape, _reshape,
    _dimensions, _dimensions, _reduce, _reduce, _position, _window, _window, _window, _product, _product, _gemm,
    _normalize, _normalize, _concat, _concat, _pad, _pad, _resize, _resize, _counted, _counted, _fill, _choose, _split,
    _sum_along, _triangle, _sum_of_products, _branch, _loop, _scan, _sequence, _recurrent,
    _spectrum, _crop, _crop,
)  # fmt: skip

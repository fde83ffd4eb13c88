"""QuantizeLinear, DequantizeLinear, and integer operators; all round half to even (`rounding="TONEVEN"`)."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.conv import WindowAttributes, as_image, conv_attributes, conv_window, middle, without_lift
from mlfc.frontend.onnx.elementwise import narrowed
from mlfc.frontend.onnx.linear import batches, matmul
from mlfc.frontend.onnx.node import Node, dtype_of, is_float, shape_of
from mlfc.frontend.onnx.table import MICROSOFT, importer
from mlfc.frontend.onnx.tensors import dtype_name
from mlfc.ops.weight_only import STORED
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, Quantization
from mlfc.support import dtypes
from mlfc.support.dims import Extent, bounds

_INTEGERS = ("int8", "uint8", "int16", "uint16", *dtypes.NARROW_INTEGERS)
_EXACT_TERMS = 1 << 13  # up to this number of byte products, all sums that include zero point terms fit int32
_EXACT_CENTRED_TERMS = 1 << 15  # the same if weights are centred beforehand
_FLOATS = tuple(dtype for dtype in dtypes.NARROW_FLOATS if dtype != "float8_e8m0fnu")

_QLINEAR_NUMBERS = (1, 2, 4, 5, 6, 7)  # scales and zero points of QLinearMatMul


def scale_of(node: Node, index: int, what: str) -> Constant | None:
    """Return a scale as a float32 scalar or vector; None if it is only known at run time."""
    node.input(index)
    values = node.known(index)
    return None if values is None else node.constant(_flat(node, values, what).astype(np.float32), "float32")


def zero_point_of(node: Node, index: int, like: Constant) -> Constant:
    """Return a zero point as an int32 scalar or vector; 0 if it is omitted."""
    if not node.has(index):
        return node.constant(np.zeros(like.data.shape), "int32")
    values = node.value(index, "zero_point")
    if is_float(node.input(index)):
        node.unsupported(f"to {dtype_of(node.input(index))} is not supported", "Supported: int8, uint8, int16, uint16")
    return node.constant(_flat(node, values, "zero_point"), "int32")


def _flat(node: Node, values: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    if values.size == 1:
        return values.reshape(())
    if values.ndim != 1:
        node.unsupported(f"with '{what}' of shape {values.shape} is not supported", "Quantize per tensor or per axis")
    return values


def _channel_axis(node: Node, shape: tuple[Extent, ...], *numbers: Constant) -> int:
    """Return the axis along which scales or zero points vary; -1 if they do not."""
    axis = node.integer("axis", 1)
    sizes = {number.data.size for number in numbers if number.data.ndim}
    if not sizes:
        return -1
    axis = node.axis(axis, len(shape))
    if not all(node.has_shape((size,), shape[axis : axis + 1]) for size in sizes):
        node.wrong(f"{max(sizes)} scales or zero points do not fit axis {axis} of data of shape {shape}")
    return axis


@importer("QuantizeLinear", ignores=("precision",), folds=False)
@importer("QuantizeLinear", domain=MICROSOFT, folds=False)
def _quantize_linear(node: Node) -> Expr:
    x, shape, code = node.cast(node.input(0), "float32"), node.shape(0), node.integer("output_dtype", 0)
    dtype = node.dtype(2) if node.has(2) else dtype_name(code, node.name) if code else "uint8"
    if dtype not in (*_INTEGERS, *_FLOATS):
        node.unsupported(f"to {dtype} is not supported", f"Supported: {', '.join((*_INTEGERS, *_FLOATS))}")
    block, saturate = node.integer("block_size", 0), bool(node.integer("saturate", 1))
    scale = scale_of(node, 1, "y_scale") if not block and dtype not in _FLOATS else None
    if scale is None:
        scaled = node.call("divide", x, node.cast(_spread(node, 1, shape, block), "float32"))
        shift = _spread(node, 2, shape, block) if node.has(2) else node.constant(0, "int32")
        if dtype not in _FLOATS:
            return _saturated(node, scaled, shift, dtype)
        if dtype == "float4_e2m1fn" and node.has(2):  # 8-bit formats only have zero points of 0
            scaled = node.call("add", scaled, shift)
        return narrowed(node, scaled, dtype, saturate=saturate)
    zero_point = zero_point_of(node, 2, scale)
    axis = _channel_axis(node, shape, scale, zero_point)
    result = node.call("qnn.quantize", x, scale, zero_point, out_dtype=dtype, axis=axis, rounding="TONEVEN")
    note(node, result, scale, zero_point)
    return result


def _spread(node: Node, index: int, shape: tuple[int, ...], block: int) -> Expr:
    """Return scales or zero points in a shape that broadcasts to the data; narrow dtypes are widened."""
    numbers = node.input(index)
    if dtypes.is_narrow(dtype_of(numbers)):
        numbers = node.cast(numbers, "int32" if dtype_of(numbers) in dtypes.NARROW_INTEGERS else "float32")
    given, axis = shape_of(numbers), node.integer("axis", 1)
    if not block and prod(given) == 1:
        return node.reshape(numbers, ())
    axis = node.axis(axis, len(shape))
    if not block and node.has_shape(given, (shape[axis],)):
        return node.reshape(numbers, tuple(size if at == axis else 1 for at, size in enumerate(shape)))
    if not block or given != _blocks(node, shape, axis, block):
        node.wrong(f"scales of shape {given} do not fit blocks of {block} of a tensor of shape {shape}")
    return node.cut(node.call("repeat", numbers, repeats=block, axis=axis), axis, 0, shape[axis])


def _blocks(node: Node, shape: tuple[int, ...], axis: int, block: int) -> tuple[int, ...]:
    """Return the shape of scales for blocks of elements along an axis."""
    if block < 0:
        node.wrong(f"block_size is {block}")
    return tuple(-(-size // block) if at == axis else size for at, size in enumerate(shape))


def _saturated(node: Node, scaled: Expr, zero_point: Expr, dtype: str) -> Expr:
    """Return the nearest integers plus the zero point, saturated to `dtype`."""
    low, high = dtypes.limits(dtype)
    shifted = node.call("add", node.call("round", scaled), node.cast(zero_point, "float32"))
    return node.cast(node.call("clip", shifted, a_min=float(low), a_max=float(high)), dtype)


def note(node: Node, expr: Expr, scale: Constant, zero_point: Constant) -> None:
    """Record the quantization of an integer tensor if it is per tensor and finite."""
    if scale.data.ndim == 0 and zero_point.data.ndim == 0 and np.isfinite(scale.data):
        node.noted[expr] = Quantization(float(scale.data), int(zero_point.data))


@importer("DequantizeLinear", folds=False)
@importer("DequantizeLinear", domain=MICROSOFT, folds=False)
def _dequantize_linear(node: Node) -> Expr:
    x = node.input(0)
    code = node.integer("output_dtype", 0)
    result_dtype = dtype_name(code, node.name) if code else node.dtype(1)
    block = node.integer("block_size", 0)
    if block and all(not node.has(index) or node.known(index) is not None for index in range(3)):
        return node.cast(_blocks_dequantized(node, block), result_dtype)
    scale = scale_of(node, 1, "x_scale") if not block and dtype_of(x) not in _FLOATS else None
    if scale is None:
        spread, shape = _spread(node, 1, shape_of(x), block), shape_of(x)
        whole = x if dtype_of(x) in _FLOATS else node.cast(x, "int32")
        if node.has(2) and dtype_of(x) not in _FLOATS:
            whole = node.call("subtract", whole, node.cast(_spread(node, 2, shape, block), "int32"))
        return node.cast(node.call("multiply", node.cast(whole, dtype_of(spread)), spread), result_dtype)
    zero_point = zero_point_of(node, 2, scale)
    note(node, x, scale, zero_point)
    axis = _channel_axis(node, shape_of(x), scale, zero_point)
    return node.cast(node.call("qnn.dequantize", x, scale, zero_point, out_dtype="float32", axis=axis), result_dtype)


def _blocks_dequantized(node: Node, block: int) -> Expr:
    """Return dequantized weights with a scale per block; those of float formats are computed at import."""
    values, scales, dtype = node.value(0, "x"), node.value(1, "x_scale"), node.dtype(0)
    axis = node.axis(node.integer("axis", 1), values.ndim)
    shapes = {scales.shape, node.shape(2)} if node.has(2) else {scales.shape}
    if shapes != {_blocks(node, values.shape, axis, block)}:
        node.wrong(f"scales of shape {scales.shape} do not fit blocks of {block} of a tensor of shape {values.shape}")
    if dtype in STORED:
        zero = node.value(2, "x_zero_point").astype(np.int32) if node.has(2) else np.int32(0)
        return blocks_dequantized(node, node.input(0), (node.input(1), zero), axis, block)
    picked = np.arange(values.shape[axis]) // block
    whole = values.astype(np.float32 if dtype in _FLOATS else np.int32)
    if node.has(2) and dtype not in _FLOATS:
        whole = whole - np.take(node.value(2, "x_zero_point"), picked, axis).astype(np.int32)
    return node.constant(whole.astype(np.float32) * np.take(scales, picked, axis).astype(np.float32), "float32")


def blocks_dequantized(
    node: Node, codes: Expr, pair: tuple[Expr, npt.NDArray[Any] | np.int32], axis: int, block: int
) -> Expr:
    """Return codes with a scale per block as float32; `pair` is a constant scale and a zero point."""
    scale, zero_point = pair
    if not isinstance(scale, Constant):
        node.unsupported("with scales that are not constant is not supported")
    scales = scale if scale.type.dtype == "float32" else Constant(scale.data.astype(np.float32), scale.name, scale.span)
    zeros = node.constant(zero_point, "float32" if zero_point.dtype == np.float32 else "int32")
    # not `node.call`, which would fold it: operators that read it may keep the weights packed
    return ir.call("qnn.dequantize_blocks", [codes, scales, zeros], axis=axis, block_size=block, span=node.span)


@importer("DynamicQuantizeLinear")
def dynamic_quantize_linear(node: Node) -> list[Expr]:
    """Return input 0 quantized by its own range, the scale and the zero point."""
    x, every = node.input(0), {"axis": tuple(range(node.rank(0))), "keepdims": False}
    range_of = node.filled((1,) * node.rank(0), 0.0, dtype_of(x)) if 0 in node.shape(0) else x
    largest = node.call("maximum", node.call("max", range_of, **every), 0.0)
    smallest = node.call("minimum", node.call("min", range_of, **every), 0.0)
    scale = node.call("divide", node.call("subtract", largest, smallest), 255.0)
    # if all elements are zero, ONNX divides zero by zero; ONNX Runtime uses a scale of 1
    scale = node.call("where", node.call("equal", largest, smallest), 1.0, scale)
    below = node.call("divide", node.call("negative", smallest), scale)
    # not clip: for an infinite range or a scale that rounds to zero this is NaN, for which both yield 255
    place = node.call("where", node.call("less_equal", below, 255.0), below, 255.0)
    zero_point = node.cast(node.call("round", place), "uint8")
    return [_saturated(node, node.call("divide", x, scale), zero_point, "uint8"), scale, zero_point]


def scale_and_zero(node: Node, index: int, zero_index: int, what: str) -> tuple[Constant, Constant]:
    """Return a scale, which must be known at compile time, and its zero point."""
    node.value(index, what)
    scale = scale_of(node, index, what)
    assert scale is not None
    return scale, zero_point_of(node, zero_index, scale)


def requantized(
    node: Node, sums: Expr, scale: npt.NDArray[Any], axis: int, out_scale: Constant, out_zero: Constant, dtype: str
) -> Expr:
    """Requantize int32 sums with the scale `scale` to the scale of the output."""
    if out_scale.data.ndim or out_zero.data.ndim:
        node.unsupported("with an output scale for each channel is not supported", "Quantize outputs per tensor")
    unit, zero = node.constant(scale.astype(np.float32), "float32"), node.constant(0, "int32")
    result = node.call(
        "qnn.requantize", sums, unit, zero, out_scale, out_zero, axis=axis if scale.ndim else -1, rounding="TONEVEN",
        compute_dtype="float32", out_dtype=dtype,
    )  # fmt: skip
    note(node, result, out_scale, out_zero)
    return result


@importer("QLinearConv")
def _qlinear_conv(node: Node) -> Expr:
    x_pair, w_pair = scale_and_zero(node, 1, 2, "x_scale"), scale_and_zero(node, 4, 5, "w_scale")
    y_pair = scale_and_zero(node, 6, 7, "y_scale")
    note(node, node.input(0), *x_pair)
    sums, geometry = _integer_conv(node, node.input(0), node.input(3), x_pair, w_pair)
    if node.has(8):
        sums = node.call("nn.bias_add", sums, node.input(8), axis=1)
    unit = np.asarray(x_pair[0].data * w_pair[0].data)
    return without_lift(node, requantized(node, sums, unit, 1, *y_pair, node.dtype(7)), geometry)


def _integer_conv(
    node: Node, x: Expr, weight: Expr, x_pair: tuple[Constant, Constant], w_pair: tuple[Constant, Constant]
) -> tuple[Expr, WindowAttributes]:
    """Return the int32 sums of a 2-dimensional convolution, and its window."""
    geometry = conv_window(node, weight, node.inputs.index(x), (1, 2))
    attributes = conv_attributes(node, weight, geometry)
    sums = node.call(
        "qnn.conv2d", as_image(node, middle(node, x, geometry, 1)), as_image(node, weight), x_pair[1], w_pair[1],
        x_pair[0], w_pair[0], out_dtype="int32", **attributes,
    )  # fmt: skip
    return sums, geometry


@importer("ConvInteger")
def _conv_integer(node: Node) -> Expr:
    one, x, weight = node.constant(1.0, "float32"), node.input(0), node.input(1)
    known = {index: (one, zero_point_of(node, index, one)) for index in (2, 3) if _is_fixed(node, index)}
    is_late = 3 not in known or (known[3][1].data.ndim > 0 and not isinstance(weight, Constant))
    if len(known) == 2 and not is_late:
        return without_lift(node, *_integer_conv(node, x, weight, known[2], known[3]))
    if node.has(2) and prod(shape_of(node.input(2))) != 1:
        node.value(2, "zero_point")
        node.unsupported("with a zero point a channel of the data is not supported", "Quantize the data per tensor")
    terms = prod(shape_of(weight)[1:])
    if terms > (_EXACT_TERMS if is_late else _EXACT_CENTRED_TERMS):
        node.value(3 if 3 not in known else 2, "zero_point")
    geometry = conv_window(node, weight, 0, (1, 2))
    attributes = conv_attributes(node, weight, geometry)
    image, kernel = as_image(node, middle(node, x, geometry, 1)), as_image(node, weight)
    top, left, bottom, right = attributes["padding"]
    x_zero = node.input(2) if node.has(2) else node.constant(0, node.dtype(0))
    # the padding value represents zero
    image = node.call(
        "nn.pad", image, node.reshape(x_zero, ()), pad_mode="constant",
        pad_width=((0, 0), (0, 0), (top, bottom), (left, right)),
    )  # fmt: skip
    none = node.constant(0, "int32")
    attributes["padding"] = (0, 0, 0, 0)
    sums = node.call(
        "qnn.conv2d", image, kernel, none, none if is_late else known[3][1], one, one, out_dtype="int32", **attributes
    )
    zero = node.cast(node.input(3), "int32") if is_late else known[3][1]
    zeros = node.reshape(zero, (-1, 1, 1, 1)) if prod(shape_of(zero)) > 1 else node.reshape(zero, ())
    if is_late:
        sums = node.call("subtract", sums, _times_window_sums(node, image, kernel, zeros, attributes))
    centre = node.call("subtract", node.cast(kernel, "int32"), zeros)
    weights = node.reshape(node.call("sum", centre, axis=(1, 2, 3), keepdims=False), (1, shape_of(kernel)[0], 1, 1))
    sums = node.call("subtract", sums, node.call("multiply", weights, node.reshape(node.cast(x_zero, "int32"), ())))
    return without_lift(node, sums, geometry)


def _times_window_sums(node: Node, image: Expr, kernel: Expr, zeros: Expr, attributes: dict[str, Any]) -> Expr:
    """Return the sum of the data in each window, times the zero point of each filter."""
    groups, filters = attributes["groups"], shape_of(kernel)[0]
    ones = node.constant(np.ones((groups, *shape_of(kernel)[1:])), dtype_of(kernel))
    none, unit = node.constant(0, "int32"), node.constant(1.0, "float32")
    sums = node.call(
        "qnn.conv2d", image, ones, none, none, unit, unit, out_dtype="int32", **{**attributes, "channels": groups}
    )
    if 1 < groups < filters:
        sums = node.call("take", sums, node.constant(np.arange(filters) // (filters // groups), "int64"), axis=1)
    one_each = shape_of(zeros) != ()
    return node.call("multiply", sums, node.reshape(zeros, (1, filters, 1, 1)) if one_each else zeros)


def _is_fixed(node: Node, index: int) -> bool:
    """Return whether a zero point is omitted or known at compile time."""
    return not node.has(index) or node.known(index) is not None


@importer("QLinearMatMul")
def _qlinear_matmul(node: Node) -> Expr:
    if any(node.known(index) is None for index in _QLINEAR_NUMBERS):
        # multiply integers minus their zero points, then scale the sums and round to even
        if any(prod(node.shape(index)) != 1 for index in _QLINEAR_NUMBERS):
            index = next(index for index in _QLINEAR_NUMBERS if node.known(index) is None)
            raise node.unknown(index, ("a", "b", "y")[index // 3] + ("_scale" if index in (1, 4, 6) else "_zero_point"))
        sums = node.cast(matmul(node, centred(node, 0, 2), centred(node, 3, 5)), "float32")
        a, b, y = (node.cast(node.reshape(node.input(index), ()), "float32") for index in (1, 4, 6))
        real = node.call("multiply", sums, node.call("divide", node.call("multiply", a, b), y))
        return _saturated(node, real, node.reshape(node.input(7), ()), node.dtype(7))
    a_pair, b_pair = scale_and_zero(node, 1, 2, "a_scale"), scale_and_zero(node, 4, 5, "b_scale")
    y_pair = scale_and_zero(node, 6, 7, "y_scale")
    note(node, node.input(0), *a_pair)
    sums = integer_matmul(node, node.input(0), node.input(3), a_pair, b_pair)
    unit = np.asarray(a_pair[0].data * b_pair[0].data)
    return requantized(node, sums, unit, len(shape_of(sums)) - 1, *y_pair, node.dtype(7))


def integer_matmul(
    node: Node, a: Expr, b: Expr, a_pair: tuple[Constant, Constant], b_pair: tuple[Constant, Constant]
) -> Expr:
    """Return the int32 product of quantized matrices; `b` may have a scale and zero point per column."""
    is_matrix = len(shape_of(a)) >= 2 and len(shape_of(b)) >= 2
    if not is_matrix or not node.has_shape(shape_of(a)[-1:], shape_of(b)[-2:-1]):
        node.unsupported(
            f"of shapes {shape_of(a)} and {shape_of(b)} is not supported", "Use matrices or stacks of them"
        )
    if any(number.data.ndim for number in a_pair):
        node.unsupported("with one scale or zero point a row is not supported", "Quantize the first input per tensor")
    if not all(node.has_shape(number.data.shape, shape_of(b)[-1:]) for number in b_pair if number.data.ndim):
        node.wrong(f"scales or zero points of {b_pair[1].data.shape} do not fit the columns of {shape_of(b)}")
    numbers = (a_pair[1], b_pair[1], a_pair[0], b_pair[0])
    if len(shape_of(b)) == 2:
        weight = node.transpose(b, (1, 0))
        return node.call("qnn.dense", a, weight, *numbers, units=shape_of(weight)[0], out_dtype="int32")
    left, right, leading = batches(node, a, b)
    sums = node.call("qnn.batch_matmul", left, right, *numbers, transpose_a=False, transpose_b=False, out_dtype="int32")
    return node.reshape(sums, (*leading, *shape_of(sums)[1:]))


@importer("MatMulInteger")
def _matmul_integer(node: Node) -> Expr:
    a, b = node.input(0), node.input(1)
    one, nothing = node.constant(1.0, "float32"), node.constant(0, "int32")
    late = [index for index in (2, 3) if not _is_fixed(node, index)]
    if 2 not in late and node.has(2) and prod(node.shape(2)) > 1:  # kernels support a single zero point for all rows
        late.insert(0, 2)
    if 3 not in late and node.has(3) and prod(node.shape(3)) > 1 and not isinstance(b, Constant):
        late.append(3)
    if late and (min(node.rank(0), node.rank(1)) < 2 or bounds(shape_of(a)[-1])[1] > _EXACT_TERMS):
        return matmul(node, centred(node, 0, 2), centred(node, 1, 3))
    known = [nothing if index in late else zero_point_of(node, index, one) for index in (2, 3)]
    result = integer_matmul(node, a, b, (one, known[0]), (one, known[1]))
    # (a - p)(b - q) = ab - p sum(b) - q sum(a - p) = a(b - q) - p sum(b - q), summed over the reduction axis
    if 2 in late:
        columns = node.cast(b, "int32")
        columns = columns if 3 in late else node.call("subtract", columns, known[1])
        total = node.call("sum", columns, axis=(node.rank(1) - 2,), keepdims=True)
        result = node.call("subtract", result, node.call("multiply", total, _across(node, 0, 2)))
    if 3 in late:
        total = node.call("sum", centred(node, 0, 2), axis=(node.rank(0) - 1,), keepdims=True)
        result = node.call("subtract", result, node.call("multiply", total, _across(node, 1, 3)))
    return result


def _across(node: Node, index: int, zero_index: int) -> Expr:
    """Return an operand's zero points in a shape that broadcasts to the product."""
    zero_point = node.cast(node.input(zero_index), "int32")
    shape = shape_of(zero_point)
    if prod(shape) == 1:
        return node.reshape(zero_point, ())
    return node.reshape(zero_point, (*shape, 1)) if index == 0 and len(shape) == 1 else zero_point


def centred(node: Node, index: int, zero_index: int) -> Expr:
    """Return an operand minus its zero point, which is only known at run time, as int32."""
    whole = node.cast(node.input(index), "int32")
    return node.call("subtract", whole, _across(node, index, zero_index)) if node.has(zero_index) else whole

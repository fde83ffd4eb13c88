"""Requirements of TVM 0.14's type checker for the operators that mlfc prints: names, attributes, argument types.

They follow TVM's declarations. Attribute types list their fields in declared order; a field without a default in TVM
must be written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlfc.relay.ir import Call, Function, IRModule, TensorType, TupleType
from mlfc.relay.op import Operator
from mlfc.relay.visitor import post_order

BYTES = ("int8", "uint8")
_CONV = "strides padding dilation groups channels kernel_size data_layout kernel_layout out_layout out_dtype"
_TRANSPOSE = f"channels kernel_size strides output_padding padding {_CONV.partition('padding ')[2]}".replace(
    "channels kernel_size data_layout", "data_layout"
)
_POOL = "pool_size strides dilation padding layout out_layout ceil_mode"
_RESIZE = (
    "size roi layout method coordinate_transformation_mode rounding_method cubic_alpha cubic_exclude "
    "extrapolation_value out_dtype"
)
_REDUCE = "axis keepdims exclude"
_NORM = "axis epsilon center scale"

_PLAIN = """
nn.relu nn.batch_flatten abs ceil cos erf exp floor log negative round rsqrt sigmoid sign sin sqrt tan tanh logical_not
add subtract multiply divide power floor_mod floor_divide maximum minimum equal not_equal less less_equal greater
greater_equal logical_and logical_or where copy zeros_like ones_like bitwise_and bitwise_xor right_shift
"""
_SAME = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "equal", "less", "greater")
_TABLES = tuple(f"qnn.{name}" for name in ("sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "erf", "abs", "hardswish"))

# operators by the fields of their attributes
FIELDS: dict[str, str] = {
    **dict.fromkeys(("nn.conv1d", "nn.conv2d", "nn.conv3d", "qnn.conv2d"), _CONV),
    **dict.fromkeys(("nn.conv1d_transpose", "nn.conv2d_transpose", "qnn.conv2d_transpose"), _TRANSPOSE),
    **dict.fromkeys(("nn.dense", "qnn.dense"), "units out_dtype"),
    "nn.matmul": "units out_dtype transpose_a transpose_b",
    **dict.fromkeys(("nn.batch_matmul", "qnn.batch_matmul"), "out_dtype transpose_a transpose_b"),
    **dict.fromkeys(("nn.bias_add", "nn.prelu"), "axis"),
    **dict.fromkeys(("nn.leaky_relu", "qnn.leaky_relu"), "alpha"),
    "clip": "a_min a_max",
    **dict.fromkeys(("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"), _POOL),
    **dict.fromkeys(("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d"), f"{_POOL} count_include_pad"),
    "qnn.avg_pool2d": f"{_POOL} count_include_pad",
    **dict.fromkeys(("nn.global_avg_pool2d", "nn.global_max_pool2d"), "layout out_layout"),
    **dict.fromkeys(
        (f"nn.adaptive_{kind}_pool{n}d" for kind in ("avg", "max") for n in "123"), "output_size layout out_layout"
    ),
    **dict.fromkeys(("nn.softmax", "nn.log_softmax", "nn.fast_softmax", "qnn.softmax"), "axis"),
    **dict.fromkeys(("nn.batch_norm", "nn.layer_norm", "nn.instance_norm"), _NORM),
    "nn.group_norm": f"num_groups {_NORM}",
    "nn.l2_normalize": "eps axis",
    "nn.lrn": "size axis bias alpha beta",
    "nn.dropout": "rate",
    "nn.pad": "pad_width pad_mode",
    "nn.mirror_pad": "mode pad_width",
    "nn.upsampling": "scale_h scale_w layout method align_corners",
    **dict.fromkeys(("nn.depth_to_space", "nn.space_to_depth"), "block_size layout mode"),
    **dict.fromkeys(("image.resize1d", "image.resize2d", "image.resize3d"), _RESIZE),
    "reshape": "newshape allowzero",
    "transpose": "axes",
    "squeeze": "axis",
    "expand_dims": "axis num_newaxis",
    **dict.fromkeys(("concatenate", "stack", "qnn.concatenate"), "axis"),
    "split": "indices_or_sections axis",
    "strided_slice": "begin end strides slice_mode axes",
    "take": "batch_dims axis mode",
    "gather": "axis",
    "gather_nd": "batch_dims index_rank",
    "tile": "reps",
    "repeat": "repeats axis",
    "reverse": "axis",
    "cast": "dtype",
    "one_hot": "depth axis dtype",
    **dict.fromkeys(("broadcast_to", "full", "zeros", "ones"), "shape dtype"),
    **dict.fromkeys(("sum", "mean", "max", "min", "prod", "all", "any"), _REDUCE),
    **dict.fromkeys(("argmax", "argmin"), "axis keepdims select_last_index exclude"),
    "variance": f"{_REDUCE} unbiased",
    "qnn.requantize": "axis rounding compute_dtype out_dtype",
    **dict.fromkeys(("qnn.quantize", "qnn.dequantize"), "out_dtype axis"),
    **dict.fromkeys(("qnn.add", "qnn.subtract", "qnn.mul"), "lhs_axis rhs_axis"),
    **dict.fromkeys(_TABLES, ""),
    **dict.fromkeys(_PLAIN.split(), ""),
}  # fmt: skip

_OTHERS = """
acos acosh arange asin asinh atan atanh bitwise_not bitwise_or broadcast_to_like cast_like cosh cumprod cumsum fast_erf
fast_exp fast_tanh fixed_point_multiply image.grid_sample isfinite isinf isnan left_shift log10 log2 logical_xor mod
nn.conv3d_transpose reinterpret reshape_like reverse_sequence scatter_elements scatter_nd sinh slice_like topk trilu
trunc trunc_divide trunc_mod vision.roi_align
"""
OPERATORS_OF_TVM = frozenset((*FIELDS, *_OTHERS.split()))
"""The names of TVM 0.14's operators, of those that mlfc has, too."""

ROUNDINGS = ("None", "UPWARD", "TONEAREST")
Check = Callable[[Call, Sequence[Any]], "str | None"]


def is_scalar(kind: Any, dtype: str) -> bool:
    """Return whether a type is a scalar of a dtype."""
    return kind == TensorType((), dtype)


def _fits(kind: Any, dtype: str, extent: int) -> bool:
    """Return whether a type is valid for scales and zero points: a scalar, or a vector with one number per channel."""
    return kind in (TensorType((), dtype), TensorType((extent,), dtype))


def _axis(data: TensorType, axis: int) -> int:
    """Return the size of the axis of per-axis scales."""
    return data.shape[axis] if data.shape else 1


def _pairs(kinds: Sequence[Any], first: int) -> str | None:
    for index in range(first, len(kinds), 2):
        if not is_scalar(kinds[index], "float32"):
            return f"argument {index} is a scale: a float32 scalar, not {kinds[index]}"
        if not is_scalar(kinds[index + 1], "int32"):
            return f"argument {index + 1} is a zero point: an int32 scalar, not {kinds[index + 1]}"
    return None


def _unary(call: Call, kinds: Sequence[Any]) -> str | None:
    allowed = ("int8",) if call.op.name == "qnn.softmax" else BYTES
    return f"data of {kinds[0].dtype}" if kinds[0].dtype not in allowed else _pairs(kinds, 1)


def _binary(call: Call, kinds: Sequence[Any]) -> str | None:
    lhs, rhs = kinds[:2]
    if lhs.dtype != rhs.dtype:
        return f"operands of {lhs.dtype} and {rhs.dtype}"
    for data, index, axis in ((lhs, 2, call.attrs["lhs_axis"]), (rhs, 4, call.attrs["rhs_axis"])):
        extent = _axis(data, axis)
        if not _fits(kinds[index], "float32", extent) or not _fits(kinds[index + 1], "int32", extent):
            return f"arguments {index}, {index + 1} are {kinds[index]}, {kinds[index + 1]} for {data}"
    return _pairs(kinds, 6)


def _filters(call: Call, weight: TensorType) -> int:
    """Return the number of scales that the weights may have."""
    layout, groups = call.attrs["kernel_layout"], call.attrs["groups"]
    out, into = weight.shape[layout.index("O")], weight.shape[layout.index("I")]
    if call.op.name == "qnn.conv2d_transpose":
        return out if groups == 1 else out * into
    if groups == 1:
        return out
    return out * into if into == call.attrs["channels"] else int(call.attrs["channels"])


def _product(call: Call, kinds: Sequence[Any]) -> str | None:
    name, (data, weight) = call.op.name, kinds[:2]
    wide = {"qnn.conv2d": ("int16",), "qnn.batch_matmul": ()}.get(name, ("int16", "uint16"))
    heavy = ("int16",) if name == "qnn.conv2d" else ()
    if data.dtype not in (*BYTES, *wide) or weight.dtype not in (*BYTES, *heavy):
        return f"operands of {data.dtype} and {weight.dtype}"
    if call.attrs["out_dtype"] != "int32":
        return f"out_dtype is {call.attrs['out_dtype']}"
    if not is_scalar(kinds[2], "int32") or not is_scalar(kinds[4], "float32"):
        return f"the data's zero point and scale are {kinds[2]} and {kinds[4]}, not scalars"
    if kinds[3].dtype != "int32":
        return f"the weights' zero point is {kinds[3]}"
    if name == "qnn.batch_matmul":
        return None if is_scalar(kinds[5], "float32") and is_scalar(kinds[3], "int32") else "scales are vectors"
    filters = call.attrs["units"] if name == "qnn.dense" else _filters(call, weight)
    return None if _fits(kinds[5], "float32", filters) else f"the weights' scale is {kinds[5]}, not of {filters}"


def _requantize(call: Call, kinds: Sequence[Any]) -> str | None:
    data = kinds[0]
    if data.dtype not in (*BYTES, "int16", "int32", "int64"):
        return f"data of {data.dtype}"
    if call.attrs["out_dtype"] not in (*BYTES, "int16", "int32"):
        return f"out_dtype is {call.attrs['out_dtype']}"
    if call.attrs["rounding"] not in ROUNDINGS:
        return f"rounding is {call.attrs['rounding']}"
    if call.attrs["compute_dtype"] not in ("None", "int64", "float32", "float64"):
        return f"compute_dtype is {call.attrs['compute_dtype']}"
    extent = _axis(data, call.attrs["axis"])
    if not _fits(kinds[1], "float32", extent) or not _fits(kinds[2], "int32", extent):
        return f"the data's scale and zero point are {kinds[1]} and {kinds[2]} for {data}"
    return _pairs(kinds, 3)


def _quantize(call: Call, kinds: Sequence[Any]) -> str | None:
    data, extent = kinds[0], 0
    to_integers = call.op.name == "qnn.quantize"
    integers = (*BYTES, "int16", "uint16", "int32")
    if data.dtype not in (("float32",) if to_integers else integers):
        return f"data of {data.dtype}"
    if call.attrs["out_dtype"] not in (integers if to_integers else ("float16", "float32")):
        return f"out_dtype is {call.attrs['out_dtype']}"
    extent = _axis(data, call.attrs["axis"]) if any(kind.shape for kind in kinds[1:]) else 1
    good = _fits(kinds[1], "float32", extent) and _fits(kinds[2], "int32", extent)
    return None if good else f"scale and zero point are {kinds[1]} and {kinds[2]} for {data}"


def _concatenate(_: Call, kinds: Sequence[Any]) -> str | None:
    scales, zero_points = kinds[1], kinds[2]
    if not isinstance(scales, TupleType) or not all(is_scalar(kind, "float32") for kind in scales.fields):
        return f"scales are {scales}"
    if not isinstance(zero_points, TupleType) or not all(is_scalar(kind, "int32") for kind in zero_points.fields):
        return f"zero points are {zero_points}"
    return _pairs(kinds, 3)


def _same_dtypes(_: Call, kinds: Sequence[Any]) -> str | None:
    return None if kinds[0].dtype == kinds[1].dtype else f"operands of {kinds[0].dtype} and {kinds[1].dtype}"


CHECKS: Mapping[str, Check] = {
    **dict.fromkeys(("qnn.add", "qnn.subtract", "qnn.mul"), _binary),
    **dict.fromkeys(_TABLES, _unary),
    **dict.fromkeys(("qnn.softmax", "qnn.avg_pool2d", "qnn.leaky_relu"), _unary),
    **dict.fromkeys(("qnn.conv2d", "qnn.conv2d_transpose", "qnn.dense", "qnn.batch_matmul"), _product),
    **dict.fromkeys(("qnn.quantize", "qnn.dequantize"), _quantize),
    "qnn.requantize": _requantize,
    "qnn.concatenate": _concatenate,
    **dict.fromkeys(_SAME, _same_dtypes),
}


def faults(module: IRModule) -> list[str]:
    """Return the type errors that TVM reports for a module that was read without mlfc's comments."""
    found = []
    for function in module.functions.values():
        for expr in _calls(function):
            fault = _fault(expr)
            if fault:
                found.append(f"{expr.op.name}: {fault}" if isinstance(expr.op, Operator) else fault)
    return found


def _calls(function: Function) -> list[Call]:
    inner: list[Call] = []
    for expr in post_order(function.body):
        if isinstance(expr, Call):
            inner.append(expr)
            if isinstance(expr.op, Function):
                inner += _calls(expr.op)
    return inner


def _fault(call: Call) -> str | None:
    if not isinstance(call.op, Operator):
        return None
    name = call.op.name
    if name not in FIELDS:
        return "there is no such operator, or none that this table knows"
    known = FIELDS[name].split()
    for attr in call.op.attrs:
        if attr.name not in known and call.attrs[attr.name] != attr.default:
            return f"it has no attribute {attr.name}"
    check = CHECKS.get(name)
    return check(call, [arg.type for arg in call.args]) if check else None

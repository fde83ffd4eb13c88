"""Sweep of TFLite's builtin operators over every dtype: mlfc's results compared with LiteRT's reference kernels.

``python -m tests.tflite_sweep`` prints the differences and writes the equal cases to ``golden/tflite_sweep.json``, the
source of the table on the page of TFLite's operators. Each case is a model of one operator. LiteRT runs in a child
process, because some kernels abort the process for dtypes that they do not support.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import mlfc
from mlfc.errors import MlfcError
from mlfc.verify.litert import LiteRtReference
from tests.tflite_builder import Op, T, build
from tests.tflite_cases import SAME, ints

Array = npt.NDArray[Any]
_CODES = ("int8", "uint8", "int16")
_PLAIN = ("float32", "float16", "int8", "uint8", "int16", "int32", "int64", "uint32", "uint64", "bool")
FILE = Path(__file__).parent / "golden" / "tflite_sweep.json"
TOLERANCE = 4e-6
# operators that compute with codes and scales, or read the scale of the output
_SCALED = {
    "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "ELU", "LOGISTIC", "TANH", "HARD_SWISH", "ABS", "EXP", "LOG",
    "SQRT", "RSQRT", "GELU", "LEAKY_RELU", "QUANTIZE", "DEQUANTIZE", "SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION",
    "PRELU", "ADD", "SUB", "MUL", "DIV", "SQUARED_DIFFERENCE", "EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER",
    "GREATER_EQUAL", "AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D", "RESIZE_BILINEAR", "MEAN", "SUM", "REDUCE_PROD",
}  # fmt: skip
_UNKNOWN = ("float16", "uint32", "uint64", "bool")  # not supported by the kernels of MATRIX_DIAG and MATRIX_SET_DIAG
# operators that move or compare codes unchanged
_SAME_SCALE = {
    "MAXIMUM",
    "MINIMUM",
    "SELECT",
    "SELECT_V2",
    "PAD",
    "PADV2",
    "MIRROR_PAD",
    "AVERAGE_POOL_2D",
    "MAX_POOL_2D",
    "RESIZE_BILINEAR",
    "RESIZE_NEAREST_NEIGHBOR",
    "REDUCE_MAX",
    "REDUCE_MIN",
    "SPACE_TO_BATCH_ND",
    "BATCH_TO_SPACE_ND",
    "CUMSUM",
}
_MEANINGLESS = {
    "no scale": "codes without a scale, which the kernel multiplies by 0",
    "other scales": "tensors of different scales, which the kernel takes for equal ones",
    "undefined": "results of a kernel that does not know the dtype, or reads uninitialized memory",
}
_AT_ONCE = 80  # operators of one compiled model


@dataclass(frozen=True)
class Kind:
    """A dtype, with or without scales; `rescales` gives each tensor a different scale."""

    dtype: str
    quantized: bool = False
    rescales: bool = False

    def __str__(self) -> str:
        return f"{'quantized ' if self.quantized else ''}{self.dtype}{', other scales' if self.rescales else ''}"

    def t(self, *shape: int, number: int = 0, value: Any = None) -> T:
        """Return a tensor; with `rescales`, the scale depends on `number`."""
        if not self.quantized:
            return T("", shape, self.dtype, value)
        scale, zero = {"int8": (0.1, 4), "uint8": (0.1, 124), "int16": (0.001, 0)}[self.dtype]
        if self.rescales and number:
            scale *= (1, 1.3, 0.7)[number]
            zero += 0 if self.dtype == "int16" else 5 * number
        return T("", shape, self.dtype, value, scale, zero)


KINDS = [
    *(Kind(dtype) for dtype in _PLAIN),
    *(Kind(dtype, quantized=True, rescales=rescales) for dtype in _CODES for rescales in (False, True)),
]


@dataclass(frozen=True)
class Parts:
    """The tensors and the operator of a model."""

    tensors: list[T]
    op: Op
    fed: list[T]


@dataclass(frozen=True)
class Form:
    """An operator on tensors of one kind: inputs (arrays are constants) and outputs, options and their fields."""

    code: str
    inputs: Sequence[Any]
    outputs: Sequence[T]
    options: str | None = None
    fields: Mapping[str, Any] | None = None
    name: str = ""
    limits: tuple[float, float] | None = None

    @property
    def title(self) -> str:
        """The operator and the form's own name."""
        return f"{self.code} {self.name}".strip()

    def parts(self) -> Parts:
        """Return the tensors and the operator."""
        tensors, names = [], []
        for place, item in enumerate(self.inputs):
            if item is None:
                names.append("")
                continue
            tensor = item if isinstance(item, T) else T("", np.shape(item), str(item.dtype), item)
            tensors.append(replace(tensor, name=f"x{place}"))
            names.append(f"x{place}")
        results = [replace(item, name=f"y{place}") for place, item in enumerate(self.outputs)]
        fields = dict(self.fields or {})
        op = Op(self.code, names, [item.name for item in results], self.options, fields)
        return Parts([*tensors, *results], op, [tensor for tensor in tensors if tensor.value is None])

    def model(self) -> bytes:
        """Return the file of a model of this operator."""
        parts = self.parts()
        return build(parts.tensors, [parts.op], [tensor.name for tensor in parts.fed], parts.op.outputs)

    def feeds(self) -> dict[str, Array]:
        """Return values for the inputs."""
        rng = np.random.default_rng(len(self.code))
        return {tensor.name: _values(rng, tensor, self.limits) for tensor in self.parts().fed}


def _values(rng: np.random.Generator, tensor: T, limits: tuple[float, float] | None) -> Array:
    shape = tuple(tensor.shape)
    if tensor.dtype.startswith("float"):
        return np.asarray(rng.uniform(*(limits or (-3.0, 3.0)), shape), tensor.dtype)
    if tensor.dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    info = np.iinfo(tensor.dtype)
    low, high = (int(limits[0]), int(limits[1])) if limits else (info.min, info.max)
    if tensor.dtype in ("int32", "int64") and tensor.scale is not None and not limits:
        low, high = -900, 900  # a bias
    if tensor.scale is None and not limits:
        low, high = max(low, -11), min(high, 12)
    return np.asarray(rng.integers(max(low, info.min), min(high, info.max), shape, endpoint=True)).astype(tensor.dtype)


def forms(k: Kind) -> Iterator[Form]:
    """Yield the operators on tensors of a kind."""
    for family in (_elementwise, _binary, _moves, _picks, _windows, _reductions, _linear, _others):
        yield from family(k)


def _elementwise(k: Kind) -> Iterator[Form]:
    x, y = k.t(3, 40), k.t(3, 40, number=1)
    for code in ("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "ELU", "LOGISTIC", "TANH", "FLOOR", "CEIL", "ROUND",
                 "SIN", "LOGICAL_NOT"):  # fmt: skip
        yield Form(code, [x], [y])
    for code in ("HARD_SWISH", "ABS", "NEG", "EXP", "COS", "SQUARE", "ZEROS_LIKE", "SIGN"):
        yield Form(code, [x], [y], f"{code.title().replace('_', '')}Options")
    for code in ("LOG", "SQRT", "RSQRT"):
        yield Form(code, [x], [y], limits=(1, 100) if not k.quantized else ({"uint8": 130}.get(k.dtype, 10), 120))
    for exact in (False, True):
        yield Form("GELU", [x], [y], "GeluOptions", {"Approximate": not exact}, "exact" if exact else "")
    yield Form("LEAKY_RELU", [x], [y], "LeakyReluOptions", {"Alpha": 0.2})
    for target in _PLAIN:
        if not k.rescales:
            yield Form("CAST", [x], [T("", (3, 40), target)], "CastOptions", {}, f"to {target}")
    for dtype in _CODES:
        for scale in (0.11, 0.002):
            zero = 0 if dtype == "int16" else 128 if dtype == "uint8" else 3
            yield Form("QUANTIZE", [x], [T("", (3, 40), dtype, None, scale, zero)], "QuantizeOptions", {},
                       f"to {dtype} {scale}")  # fmt: skip
    yield Form("DEQUANTIZE", [x], [T("", (3, 40))], "DequantizeOptions")
    result = {"int8": (1 / 256, -128), "uint8": (1 / 256, 0), "int16": (1 / 32768, 0)}.get(k.dtype, (None, 0))
    probability = T("", (3, 40), k.dtype, None, *(result if k.quantized else (None, 0)))
    yield Form("SOFTMAX", [x], [probability], "SoftmaxOptions", {"Beta": 1.0})
    if k.dtype == "int8" and k.quantized:
        wide = T("", (3, 40), "int16", None, 1 / 65536, -32768)
        yield Form("SOFTMAX", [x], [wide], "SoftmaxOptions", {"Beta": 1.0}, "to int16")
    zero = {"int8": 127, "uint8": 255}.get(k.dtype, 0)
    logs = T("", (3, 40), k.dtype, None, 1 / 16 if k.quantized else None, zero if k.quantized else 0)
    yield Form("LOG_SOFTMAX", [x], [logs], "LogSoftmaxOptions")
    half = {"uint8": 128}.get(k.dtype, 0)
    unit = T("", (3, 40), k.dtype, None, 1 / 128 if k.quantized else None, half if k.quantized else 0)
    yield Form("L2_NORMALIZATION", [x], [unit], "L2NormOptions")
    shaped, slopes = k.t(1, 4, 5, 6), k.t(1, 1, 6, number=2)
    if k.dtype == "int16":  # LiteRT reads the slopes as bytes
        slopes = replace(slopes, dtype="int8")
    yield Form("PRELU", [shaped, slopes], [k.t(1, 4, 5, 6, number=1)])
    fixed = _constant(slopes)
    yield Form("PRELU", [shaped, fixed], [k.t(1, 4, 5, 6, number=1)], name="of constants")
    yield Form("FAKE_QUANT", [x], [y], "FakeQuantOptions", {"Min": -1.0, "Max": 2.0, "NumBits": 8})
    image = k.t(1, 3, 4, 7)
    fields = {"Radius": 1, "Bias": 1.5, "Alpha": 0.3, "Beta": 0.5}
    yield Form("LOCAL_RESPONSE_NORMALIZATION", [image], [image], "LocalResponseNormalizationOptions", fields)


def _constant(tensor: T, limits: tuple[float, float] | None = None) -> T:
    return replace(tensor, value=_values(np.random.default_rng(7), tensor, limits))


_FUSED = ("ADD", "SUB", "MUL", "DIV")
_TWO = {
    "MAXIMUM": "MaximumMinimumOptions", "MINIMUM": "MaximumMinimumOptions", "POW": "PowOptions", "ATAN2": None,
    "FLOOR_DIV": "FloorDivOptions", "FLOOR_MOD": "FloorModOptions", "SQUARED_DIFFERENCE": "SquaredDifferenceOptions",
    "EQUAL": "EqualOptions", "NOT_EQUAL": "NotEqualOptions", "LESS": "LessOptions", "LESS_EQUAL": "LessEqualOptions",
    "GREATER": "GreaterOptions", "GREATER_EQUAL": "GreaterEqualOptions", "LOGICAL_AND": "LogicalAndOptions",
    "LOGICAL_OR": "LogicalOrOptions", "BITWISE_XOR": "BitwiseXorOptions", "RIGHT_SHIFT": "RightShiftOptions",
}  # fmt: skip


def _binary(k: Kind) -> Iterator[Form]:
    pairs = {"": ((3, 40), (3, 40)), "broadcast": ((2, 1, 5), (4, 1)), "scalar": ((3, 40), ())}
    for name, (left, right) in pairs.items():
        shape = np.broadcast_shapes(left, right)
        for code, options in (*((code, f"{code.title()}Options") for code in _FUSED), *_TWO.items()):
            x, y = k.t(*left), k.t(*right, number=2)
            z, limits = k.t(*shape, number=1), None
            if options and ("EQUAL" in code or code in ("LESS", "GREATER")):
                z = T("", shape, "bool")
            if code in ("DIV", "FLOOR_DIV", "FLOOR_MOD", "POW"):
                limits = (1.0, 3.0) if code == "POW" else (1, 100) if not k.quantized else (130, 250)
                limits = limits if k.dtype == "uint8" or not k.quantized else (10, 120)
            if code == "RIGHT_SHIFT":
                limits = (0, 7)
            for function in (0, 1, 3) if code in _FUSED and not name else (0,):
                fields = {"FusedActivationFunction": function} if code in _FUSED else {}
                title = f"{name} {['', 'relu', '', 'relu6'][function]}".strip()
                yield Form(code, [x, y], [z], options, fields, title, limits)
    for code in ("ADD", "MULTIPLY", "MAXIMUM", "MINIMUM"):
        if not k.quantized and k.dtype != "bool":
            yield Form(f"STABLEHLO_{code}", [k.t(3, 40), k.t(3, 40)], [k.t(3, 40)])
    yield Form("ADD_N", [k.t(3, 40), k.t(3, 40), k.t(3, 40, number=2)], [k.t(3, 40, number=1)])
    condition = T("", (3, 40), "bool")
    for code, options in (("SELECT", "SelectOptions"), ("SELECT_V2", "SelectV2Options")):
        yield Form(code, [condition, k.t(3, 40), k.t(3, 40, number=2)], [k.t(3, 40, number=1)], options)
    rows = [T("", (4, 1), "bool"), k.t(2, 1, 5), k.t(5, number=2)]
    yield Form("SELECT_V2", rows, [k.t(2, 4, 5, number=1)], "SelectV2Options", {}, "broadcast")


def _moves(k: Kind) -> Iterator[Form]:
    x = k.t(2, 3, 4)

    def y(*shape: int) -> T:
        return k.t(*shape, number=1)

    yield Form("RESHAPE", [x, ints(4, 6)], [y(4, 6)], "ReshapeOptions", {"NewShape": [4, 6]})
    yield Form("SQUEEZE", [k.t(1, 3, 1, 4)], [y(3, 4)], "SqueezeOptions", {"SqueezeDims": [0, 2]})
    yield Form("EXPAND_DIMS", [x, ints(1)], [y(2, 1, 3, 4)], "ExpandDimsOptions")
    yield Form("TRANSPOSE", [x, ints(2, 0, 1)], [y(4, 2, 3)], "TransposeOptions")
    widths = np.array([[0, 0], [1, 2], [0, 1]], np.int32)
    yield Form("PAD", [x, widths], [y(2, 6, 5)], "PadOptions")
    yield Form("PADV2", [x, widths, _constant(k.t(1))], [y(2, 6, 5)], "PadV2Options")
    yield Form("PADV2", [x, widths, k.t(1)], [y(2, 6, 5)], "PadV2Options", {}, "by a computed number")
    for mode in (0, 1):
        yield Form("MIRROR_PAD", [x, widths], [y(2, 6, 5)], "MirrorPadOptions", {"Mode": mode}, str(mode))
    for function in (0, 1):
        yield Form("CONCATENATION", [k.t(2, 3), k.t(2, 4, number=2)], [y(2, 7)], "ConcatenationOptions",
                   {"Axis": 1, "FusedActivationFunction": function}, "relu" if function else "")  # fmt: skip
    yield Form("SPLIT", [ints(1), k.t(2, 6)], [y(2, 3), y(2, 3)], "SplitOptions", {"NumSplits": 2})
    yield Form("SPLIT_V", [k.t(2, 6), ints(2, 4), ints(1)], [y(2, 2), y(2, 4)], "SplitVOptions", {"NumSplits": 2})
    yield Form("SLICE", [k.t(4, 6), ints(1, 2), ints(2, -1)], [y(2, 4)], "SliceOptions")
    yield Form("STRIDED_SLICE", [k.t(4, 6, 3), ints(1, 5, 1), ints(4, 0, 2), ints(2, -2, 1)], [y(2, 3)],
               "StridedSliceOptions", {"BeginMask": 1, "ShrinkAxisMask": 4})  # fmt: skip
    yield Form("PACK", [k.t(2, 3), k.t(2, 3)], [y(2, 2, 3)], "PackOptions", {"Axis": 1, "ValuesCount": 2})
    yield Form("UNPACK", [k.t(2, 3)], [y(3), y(3)], "UnpackOptions", {"Axis": 0, "Num": 2})
    block = {"BlockSize": 2}
    yield Form("SPACE_TO_DEPTH", [k.t(1, 4, 6, 3)], [y(1, 2, 3, 12)], "SpaceToDepthOptions", block)
    yield Form("DEPTH_TO_SPACE", [k.t(1, 2, 3, 12)], [y(1, 4, 6, 3)], "DepthToSpaceOptions", block)
    yield Form("TILE", [k.t(2, 3), ints(2, 3)], [y(4, 9)], "TileOptions")
    yield Form("BROADCAST_TO", [k.t(1, 3), ints(4, 3)], [y(4, 3)], "BroadcastToOptions")
    around = np.array([[1, 0], [1, 3]], np.int32)
    yield Form("SPACE_TO_BATCH_ND", [k.t(2, 3, 5, 2), ints(2, 3), around], [y(12, 2, 3, 2)], "SpaceToBatchNDOptions")
    yield Form("BATCH_TO_SPACE_ND", [k.t(12, 2, 3, 2), ints(2, 3), around], [y(2, 3, 5, 2)], "BatchToSpaceNDOptions")
    yield Form("REVERSE_V2", [x, ints(1)], [y(2, 3, 4)], "ReverseV2Options")
    yield Form("REVERSE_SEQUENCE", [k.t(3, 4, 2), ints(2, 1, 4)], [y(3, 4, 2)], "ReverseSequenceOptions",
               {"SeqDim": 1, "BatchDim": 0})  # fmt: skip
    yield Form("SHAPE", [x], [T("", (3,), "int32")], "ShapeOptions", {"OutType": 2})
    yield Form("RANK", [x], [T("", (), "int32")], "RankOptions")
    yield Form("FILL", [ints(3, 2), k.t()], [k.t(3, 2)], "FillOptions")
    same = {"float32": "int32", "int8": "uint8", "uint8": "int8", "int64": "uint64"}.get(k.dtype, k.dtype)
    yield Form("BITCAST", [k.t(2, 4)], [T("", (2, 4), same)], "BitcastOptions")


def _picks(k: Kind) -> Iterator[Form]:
    def y(*shape: int) -> T:
        return k.t(*shape, number=1)

    for dtype in ("int32", "int64", "int16"):
        title = f"by {dtype}"
        picked = np.array([3, 0, 1], dtype)
        yield Form("GATHER", [k.t(4, 6), picked], [y(4, 3)], "GatherOptions", {"Axis": 1}, title)
        yield Form("GATHER_ND", [k.t(4, 6, 3), np.array([[3, 0], [1, 5]], dtype)], [y(2, 3)], "GatherNdOptions", {},
                   title)  # fmt: skip
        yield Form("DYNAMIC_UPDATE_SLICE", [k.t(4, 5), k.t(2, 2), T("", (2,), dtype)], [y(4, 5)], name=title)
        places = [np.array([0, 3, -1, 2, 7], dtype), ints(4)[0], _constant(k.t()), _constant(k.t(number=0))]
        yield Form("ONE_HOT", places, [y(5, 4)], "OneHotOptions", {"Axis": -1}, title)
    yield Form("EMBEDDING_LOOKUP", [ints(2, 0, 1, 2), _constant(k.t(3, 4))], [y(4, 4)])
    yield Form("EMBEDDING_LOOKUP", [ints(2, 0, 1, 2), k.t(3, 4)], [y(4, 4)], name="in computed rows")
    yield Form("SCATTER_ND", [np.array([[3], [1], [0]], np.int32), k.t(3, 2), ints(5, 2)], [y(5, 2)],
               "ScatterNdOptions")  # fmt: skip
    yield Form("TOPK_V2", [k.t(3, 9), ints(4)[0]], [y(3, 4), T("", (3, 4), "int32")], "TopKV2Options")
    for code in ("ARG_MAX", "ARG_MIN"):
        for number, dtype in ((2, "int32"), (4, "int64")):
            yield Form(code, [k.t(4, 9), ints(1)], [T("", (4,), dtype)], f"Arg{code[4:].title()}Options",
                       {"OutputType": number}, f"to {dtype}")  # fmt: skip
    yield Form("MATRIX_DIAG", [k.t(2, 3)], [y(2, 3, 3)], "MatrixDiagOptions")
    yield Form("MATRIX_SET_DIAG", [k.t(2, 3, 4), k.t(2, 3)], [y(2, 3, 4)], "MatrixSetDiagOptions")
    yield Form("SPARSE_TO_DENSE", [np.array([[0, 1], [2, 3]], np.int32), ints(3, 4), k.t(2), _constant(k.t())],
               [y(3, 4)], "SparseToDenseOptions")  # fmt: skip
    yield Form("SEGMENT_SUM", [k.t(4, 3), ints(0, 0, 1, 2)], [y(3, 3)], "SegmentSumOptions")
    for code in ("MAX", "MIN", "PROD", "SUM"):
        yield Form(f"UNSORTED_SEGMENT_{code}", [k.t(4, 3), ints(1, 0, 1, 3), ints(4)[0]], [y(4, 3)],
                   f"UnsortedSegment{code.title()}Options")  # fmt: skip


def _windows(k: Kind) -> Iterator[Form]:
    data = k.t(1, 7, 6, 5)
    fields = {"Padding": SAME, "StrideH": 2, "StrideW": 2, "FilterHeight": 3, "FilterWidth": 2}
    for function, name in ((0, ""), (1, "relu"), (3, "relu6")):
        for code in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
            yield Form(code, [data], [k.t(1, 4, 3, 5, number=1)], "Pool2DOptions",
                       {**fields, "FusedActivationFunction": function}, name)  # fmt: skip
    for name, fields in {"": {}, "align": {"AlignCorners": True}, "half": {"HalfPixelCenters": True}}.items():
        for code, options in (("RESIZE_BILINEAR", "ResizeBilinearOptions"),
                              ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions")):  # fmt: skip
            yield Form(code, [data, ints(10, 9)], [k.t(1, 10, 9, 5, number=1)], options, fields, name)


def _reductions(k: Kind) -> Iterator[Form]:
    for code in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL"):
        for name, axes, shape in (("", (1, 2), (2, 5)), ("last", (-1,), (2, 3, 4)), ("all", (0, 1, 2, 3), ())):
            limits = (0.5, 2.0) if code == "REDUCE_PROD" and k.dtype.startswith("float") else None
            yield Form(code, [k.t(2, 3, 4, 5), ints(*axes)], [k.t(*shape, number=1)], "ReducerOptions", {}, name,
                       limits)  # fmt: skip
    for exclusive in (False, True):
        yield Form("CUMSUM", [k.t(4, 9), ints(1)[0]], [k.t(4, 9, number=1)], "CumsumOptions",
                   {"Exclusive": exclusive, "Reverse": exclusive}, "exclusive" if exclusive else "")  # fmt: skip


_STRIDES = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1, "Padding": SAME}


# weights and biases by the dtype of the data; LiteRT reads the bytes of other dtypes as if they were these
_WEIGHTS = {
    "float32": (("float32", "int8", "int4"), ("none", "float32")), "int8": (("int8", "int4"), ("none", "int32")),
    "uint8": (("uint8",), ("none", "int32")), "int16": (("int8", "int16"), ("none", "int32", "int64")),
}  # fmt: skip


def _linear(k: Kind) -> Iterator[Form]:
    if k.rescales or k.quantized != (k.dtype in _CODES) or k.dtype not in _WEIGHTS:
        return
    for weights, bias, late in itertools.product(*_WEIGHTS[k.dtype], (False, True)):
        if not (late and weights == "int4"):
            yield from _linear_forms(k, weights, bias, late=late)
    yield Form("BATCH_MATMUL", [k.t(2, 3, 4), k.t(2, 4, 5)], [k.t(2, 3, 5)], "BatchMatMulOptions")
    rhs = T("", (2, 4, 5), "int8", None, 0.02, 0)
    yield Form("BATCH_MATMUL", [k.t(2, 3, 4), rhs], [k.t(2, 3, 5)], "BatchMatMulOptions", {}, "by int8")
    rhs = _constant(rhs, (-127, 127))
    yield Form("BATCH_MATMUL", [k.t(2, 3, 4), rhs], [k.t(2, 3, 5)], "BatchMatMulOptions", {}, "by constant int8")


def _linear_forms(k: Kind, dtype: str, bias: str, *, late: bool) -> Iterator[Form]:
    scale = None if dtype == "float32" else 0.02
    zero = 130 if dtype == "uint8" else 0
    limits = (-7, 7) if dtype == "int4" else (-127, 127) if dtype == "int8" else None

    def weights(*shape: int, channels: int = 0, axis: int = 0) -> T:
        # LiteRT reads a scale for each channel of some weights even if they have a single scale
        scales = np.linspace(0.01, 0.03, channels) if channels and k.dtype == "float32" and scale else scale
        tensor = T("", shape, "int8" if dtype == "int4" else dtype, None, scales, zero, axis)
        return tensor if late else replace(_constant(tensor, limits), dtype=dtype)

    def biases(count: int) -> list[Any]:
        if bias == "none":
            return []
        facts = (None, 0) if bias == "float32" else (float(np.float32(k.t(1).scale or 1) * np.float32(scale or 1)), 0)
        tensor = T("", (count,), bias, None, *facts)
        value = _values(np.random.default_rng(7), tensor, (-900, 900))
        return [tensor if late else replace(tensor, value=value)]

    def y(*shape: int) -> T:
        result = k.t(*shape)
        return result if result.scale is None else replace(result, scale=result.scale * 6)

    title = f"{dtype} weights, {bias} bias" + (" computed" if late else "")
    more = {"QuantizedBiasType": {"int32": 2, "int64": 4}[bias]} if k.dtype == "int16" and bias != "none" else {}
    yield Form("FULLY_CONNECTED", [k.t(2, 20), weights(5, 20), *(biases(5) or [None])], [y(2, 5)],
               "FullyConnectedOptions", more, title)  # fmt: skip
    if dtype == "int16":
        return
    yield Form("CONV_2D", [k.t(1, 6, 5, 4), weights(3, 3, 3, 4), *biases(3)], [y(1, 6, 5, 3)], "Conv2DOptions",
               {**_STRIDES, **more}, title)  # fmt: skip
    inputs = [k.t(1, 6, 5, 4), weights(1, 3, 3, 4, channels=4, axis=3), *biases(4)]
    yield Form("DEPTHWISE_CONV_2D", inputs, [y(1, 6, 5, 4)], "DepthwiseConv2DOptions",
               {**_STRIDES, "DepthMultiplier": 1}, title)  # fmt: skip
    fields = {"StrideH": 2, "StrideW": 2, "Padding": SAME, **more}
    inputs = [ints(1, 6, 8, 3), weights(3, 3, 3, 4, channels=3), k.t(1, 3, 4, 4), *biases(3)]
    yield Form("TRANSPOSE_CONV", inputs, [y(1, 6, 8, 3)], "TransposeConvOptions", fields, title)
    steps = {f"Stride{axis}": 1 for axis in "DHW"} | {f"Dilation{axis}Factor": 1 for axis in "DHW"}
    yield Form("CONV_3D", [k.t(1, 4, 5, 4, 2), weights(2, 2, 2, 2, 3), *biases(3)], [y(1, 4, 5, 4, 3)],
               "Conv3DOptions", {**steps, "Padding": SAME}, title)  # fmt: skip
    yield Form("CONV_3D_TRANSPOSE", [ints(1, 4, 5, 4, 2), weights(2, 2, 2, 2, 3), k.t(1, 4, 5, 4, 3), *biases(2)],
               [y(1, 4, 5, 4, 2)], "Conv3DOptions", {**steps, "Padding": SAME}, title)  # fmt: skip


def _others(k: Kind) -> Iterator[Form]:
    yield Form("RANGE", [_constant(k.t(), (2, 2)), _constant(k.t(), (9, 9)), _constant(k.t(), (3, 3))],
               [k.t(3)], "RangeOptions")  # fmt: skip
    yield Form("BROADCAST_ARGS", [_constant(k.t(2), (1, 1)), _constant(k.t(2), (3, 3))], [k.t(2)])
    yield Form("BUCKETIZE", [k.t(3, 7)], [T("", (3, 7), "int32")], "BucketizeOptions", {"Boundaries": [0.0]})
    yield Form("REDUCE_WINDOW", [k.t(4, 6), _constant(k.t(), (0, 0)), *(np.array([2, 2], np.int64) for _ in range(2)),
               np.ones(2, np.int64)], [k.t(2, 3)], None)  # fmt: skip
    yield Form("DILATE", [k.t(2, 3), ints(2, 3), _constant(k.t(), (0, 0))], [k.t(3, 7)], None)


def meaningless(kind: Kind, form: Form) -> str:
    """Return the key of `_MEANINGLESS` for why LiteRT's result is meaningless; an empty string if it is not."""
    if kind.dtype in _CODES and not kind.quantized and form.code in _SCALED:
        return "no scale"
    if form.code == "QUANTIZE" and not kind.quantized and kind.dtype == "int32":
        return "no scale"
    is_undefined = {
        "LOCAL_RESPONSE_NORMALIZATION": True, "SUM": kind.quantized and kind.dtype != "uint8",
        "MATRIX_DIAG": kind.dtype in _UNKNOWN, "MATRIX_SET_DIAG": kind.dtype in _UNKNOWN,
    }  # fmt: skip
    if is_undefined.get(form.code):
        return "undefined"
    return "other scales" if kind.rescales and form.code in _SAME_SCALE else ""


def cases() -> Iterator[tuple[Kind, Form]]:
    """Yield every case."""
    for kind in KINDS:
        for form in forms(kind):
            yield kind, form


def late_forms() -> list[Form]:
    """Return the linear operators whose weights and biases are runtime values."""
    return [form for kind in KINDS for form in _linear(kind) if form.name.endswith("computed")]


def litert(form: Form) -> list[Array] | None:
    """Return the results of LiteRT's reference kernels; None if they fail or abort the process."""
    return _apart(lambda: _litert(form))


def litert_of(chosen: Sequence[Form]) -> list[list[Array] | None]:
    """Return LiteRT's results for each form: many in one process, and each in a separate one if that process aborts."""
    found: list[list[Array] | None] = []
    for first in range(0, len(chosen), _AT_ONCE):
        part = chosen[first : first + _AT_ONCE]
        together = _apart(lambda part=part: [_or_none(form) for form in part])
        found += together if together is not None else [litert(form) for form in part]
    return found


def _or_none(form: Form) -> list[Array] | None:
    try:
        return _litert(form)
    except Exception:  # LiteRT raises various exceptions
        return None


def _apart(function: Callable[[], Any]) -> Any:
    """Return the result of a function run in a child process; None if it raises or aborts."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            data = pickle.dumps(function())
        except BaseException:
            os._exit(1)
        with os.fdopen(writer, "wb") as file:
            file.write(data)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(data) if status == 0 else None


def _litert(form: Form) -> list[Array]:
    found = LiteRtReference(form.model()).run(form.feeds())
    return [found[f"y{place}"] for place in range(len(form.outputs))]


def refusal(form: Form) -> str:
    """Return mlfc's reason for not importing a form; an empty string if it does import it."""
    try:
        mlfc.import_model(form.model())
    except MlfcError as error:
        return str(error).splitlines()[0] or type(error).__name__
    return ""


def computed(chosen: Sequence[Form]) -> list[list[Array]]:
    """Return mlfc's results for forms, which are compiled as operators of one model."""
    tensors, ops, feeds = [], [], {}
    for number, form in enumerate(chosen):
        front = f"n{number}/"
        parts = form.parts()
        tensors += [replace(tensor, name=front + tensor.name) for tensor in parts.tensors]
        inputs, outputs = ([name and front + name for name in names] for names in (parts.op.inputs, parts.op.outputs))
        ops.append(replace(parts.op, inputs=inputs, outputs=outputs))
        feeds |= {front + name: value for name, value in form.feeds().items()}
    outputs = [name for op in ops for name in op.outputs]
    found = mlfc.compile(build(tensors, ops, list(feeds), outputs), target="llvm").run(feeds)
    return [[np.asarray(found[name]) for name in op.outputs] for op in ops]


def difference(found: Sequence[Array], expected: Sequence[Array]) -> str:
    """Describe how results differ from those of LiteRT; return an empty string if they are equal or close floats."""
    for ours, theirs in zip(found, expected, strict=True):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return f"{ours.dtype}{ours.shape} for {theirs.dtype}{theirs.shape}"
        if theirs.dtype.kind == "f":
            largest = max(float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0)), 1e-6)
            limit = largest * (TOLERANCE if theirs.dtype == np.float32 else 2e-3)
            if not np.allclose(ours, theirs, rtol=0, atol=limit, equal_nan=True):
                return f"up to {np.abs(ours - theirs).max():g}"
        elif not np.array_equal(ours, theirs):
            wrong = ours != theirs
            return f"{np.count_nonzero(wrong)} of {ours.size}: {ours[wrong][:4]} for {theirs[wrong][:4]}"
    return ""


def main(words: Sequence[str]) -> None:
    """Print every form that LiteRT runs and mlfc does not, and the counts; without `words`, write the equal cases."""
    asked = [(kind, form) for kind, form in cases() if not words or form.code in words]
    results = litert_of([form for _, form in asked])
    run = [(*item, found) for item, found in zip(asked, results, strict=True) if found is not None]
    left_out = {reason: sum(meaningless(kind, form) == reason for kind, form, _ in run) for reason in _MEANINGLESS}
    run = [(kind, form, found) for kind, form, found in run if not meaningless(kind, form)]
    _show(f"LiteRT runs {len(run)}, and {left_out} that mean nothing")
    kept, equal, other = [], [], []
    for kind, form, expected in run:
        reason = refusal(form)
        if reason:
            other.append(f"{form.title} | {kind}")
            _show(f"{form.title} | {kind} | {reason}")
        else:
            kept.append((kind, form, expected))
    for first in range(0, len(kept), _AT_ONCE):
        part = kept[first : first + _AT_ONCE]
        for (kind, form, expected), found in zip(part, computed([form for _, form, _ in part]), strict=True):
            wrong = difference(found, expected)
            (other if wrong else equal).append(f"{form.title} | {kind}")
            if wrong:
                _show(f"{form.title} | {kind} | {wrong}")
    _show(f"{len(equal)} of {len(run)} that LiteRT runs")
    if not words:
        FILE.write_text(json.dumps(_record(equal, other, left_out), indent=1) + "\n", encoding="utf-8")


def _record(equal: Sequence[str], other: Sequence[str], left_out: Mapping[str, int]) -> dict[str, Any]:
    """Return the content of the file: kinds by operator, and counts."""
    kinds: dict[str, list[str]] = {}
    for item in equal:
        title, kind = item.split(" | ")
        found = kinds.setdefault(title.split(" ")[0], [])
        kind = kind.removesuffix(", other scales")
        found += [kind] if kind not in found else []
    return {
        "equal": len(equal),
        "run": len(equal) + len(other),
        "other": sorted(other),
        "left_out": {_MEANINGLESS[reason]: count for reason, count in left_out.items()},
        "kinds": {code: kinds[code] for code in sorted(kinds)},
    }


def _show(line: str) -> None:
    sys.stdout.write(f"{line[:230]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])

"""One small TFLite operator per case, with seeded random quantization, for comparison with LiteRT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.tflite_builder import Op, T

RELU, RELU_N1, RELU6 = 1, 2, 3
SAME, VALID = 0, 1


@dataclass
class Case:
    """An operator with its tensors; `inputs` are fed, constants have values. `tolerance` 0 means bit for bit."""

    name: str
    op: Op
    tensors: list[T]
    inputs: list[str]
    tolerance: float = 0.0
    ranges: tuple[float, float] = (-3.0, 3.0)


@dataclass
class Cases:
    """Collector of cases; tensor names have the case's name as a prefix, so that many cases fit in one model.

    `many` is the element count of the tensors of elementwise operators.
    """

    rng: np.random.Generator
    found: list[Case] = field(default_factory=list)
    many: int = 700

    def add(
        self, name: str, code: str, inputs: Sequence[Any], outputs: Sequence[T] | T,
        options: str | None = None, fields: dict[str, Any] | None = None,
        *, tolerance: float = 0.0, ranges: tuple[float, float] = (-3.0, 3.0),
    ) -> None:  # fmt: skip
        """Add a case; an input is a T, an ndarray (an unquantized constant) or None (absent)."""
        outputs = [outputs] if isinstance(outputs, T) else list(outputs)
        tensors, names = [], []
        for position, item in enumerate(inputs):
            if item is None:
                names.append("")
                continue
            tensor = item if isinstance(item, T) else T("", item.shape, str(item.dtype), item)
            tensor = replace(tensor, name=f"{name}/in{position}")
            tensors.append(tensor)
            names.append(tensor.name)
        for position, tensor in enumerate(outputs):
            tensor.name = f"{name}/out{position}"
        version = 2 if code == "BROADCAST_TO" else 1
        op = Op(code, names, [tensor.name for tensor in outputs], options, fields or {}, version)
        fed = [tensor.name for tensor in tensors if tensor.value is None]
        self.found.append(Case(name, op, [*tensors, *outputs], fed, tolerance, ranges))

    def scale(self) -> float:
        """Return a random scale."""
        return float(np.float32(self.rng.uniform(0.01, 0.2)))

    def codes(self, *shape: int, dtype: str = "int8", **facts: Any) -> T:
        """Return a quantized tensor with a random scale and zero point, or the given ones."""
        low = -20 if dtype == "int8" else 108
        facts.setdefault("scale", self.scale())
        facts.setdefault("zero", int(self.rng.integers(low, low + 40)))
        return T("", shape, dtype, **facts)

    def weights(self, *shape: int, channels: int = 0, axis: int = 0) -> T:
        """Return constant int8 weights with one scale, or one per channel."""
        value = self.rng.integers(-127, 128, shape).astype(np.int8)
        scale = self.rng.uniform(0.002, 0.02, channels or 1).astype(np.float32)
        return T("", shape, "int8", value, scale, 0, axis)

    def bias(self, data: T, weights: T, count: int) -> T:
        """Return an int32 bias with the scale of the accumulators."""
        value = self.rng.integers(-2000, 2000, count).astype(np.int32)
        scale = np.float32(data.scale) * np.asarray(weights.scale, np.float32)
        return T("", (count,), "int32", value, scale, 0, 0)

    def floats(self, *shape: int) -> np.ndarray:
        """Return constant float32 numbers."""
        return self.rng.normal(size=shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    """Return an int32 vector."""
    return np.array(values, np.int32)


def quantized_cases(seed: int, many: int = 700) -> list[Case]:
    """Return cases with integer results, which must be LiteRT's bit for bit."""
    cases = Cases(np.random.default_rng(seed), many=many)
    _linear(cases)
    _arithmetic(cases)
    _activations(cases)
    _windows_and_reductions(cases)
    _moves(cases)
    _comparisons(cases)
    return cases.found


def _linear(c: Cases) -> None:
    conv = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}
    for name, size, padding, more in (
        ("same", 3, SAME, {}), ("valid", 3, VALID, {"FusedActivationFunction": RELU}),
        ("strided", 3, SAME, {"StrideH": 2, "StrideW": 2, "FusedActivationFunction": RELU6}),
        ("pointwise", 1, SAME, {}), ("dilated", 3, SAME, {"DilationHFactor": 2, "DilationWFactor": 2}),
    ):  # fmt: skip
        data, weights = c.codes(1, 8, 7, 5), c.weights(6, size, size, 5, channels=6)
        fields = {**conv, "Padding": padding, **more}
        height, width = (4, 4) if "StrideH" in more else (6, 5) if padding == VALID else (8, 7)
        result = c.codes(1, height, width, 6, scale=0.3)
        c.add(f"conv_{name}", "CONV_2D", [data, weights, c.bias(data, weights, 6)], result, "Conv2DOptions", fields)
    for name, multiplier, channels in (("plain", 1, 6), ("multiplied", 2, 3), ("one_channel", 4, 1)):
        data, weights = c.codes(1, 8, 7, channels), c.weights(1, 3, 3, 6 * (channels > 1) or 4, channels=0, axis=3)
        count = weights.shape[3]
        weights.scale = c.rng.uniform(0.002, 0.02, count).astype(np.float32)
        fields = {**conv, "Padding": SAME, "DepthMultiplier": multiplier}
        inputs = [data, weights, c.bias(data, weights, count)]
        c.add(f"depthwise_{name}", "DEPTHWISE_CONV_2D", inputs, c.codes(1, 8, 7, count, scale=0.2),
              "DepthwiseConv2DOptions", fields)  # fmt: skip
    for name, batch, units, fused in (("one", 1, 9, 0), ("batch", 4, 33, RELU)):
        data, weights = c.codes(batch, 20), c.weights(units, 20)
        fields = {"FusedActivationFunction": fused}
        inputs = [data, weights, c.bias(data, weights, units)]
        c.add(f"dense_{name}", "FULLY_CONNECTED", inputs, c.codes(batch, units, scale=0.2), "FullyConnectedOptions",
              fields)  # fmt: skip
    # weights outside of int8 after their zero point is subtracted
    for name, shape, count in (("conv", (16, 3, 3, 5), 16), ("pointwise", (16, 1, 1, 5), 16), ("dense", (16, 20), 16)):
        value = c.rng.integers(0, 256, shape).astype(np.uint8)
        value.flat[:2] = 0, 255
        weights = T("", shape, "uint8", value, 0.01, 120)
        data = c.codes(*((1, 8, 7, 5) if len(shape) > 2 else (3, 20)), dtype="uint8")
        strides = {"StrideH": 1 + (name == "conv"), "StrideW": 1 + (name == "conv")}
        fields = {**conv, "Padding": SAME, **strides} if len(shape) > 2 else {}
        result = {"conv": (1, 4, 4, 16), "pointwise": (1, 8, 7, 16), "dense": (3, 16)}[name]
        code = "CONV_2D" if len(shape) > 2 else "FULLY_CONNECTED"
        c.add(f"{name}_uint8", code, [data, weights, c.bias(data, weights, count)],
              c.codes(*result, dtype="uint8", scale=0.4), "Conv2DOptions" if fields else "FullyConnectedOptions",
              fields)  # fmt: skip
    for zero, width in ((120, 7), (255, 6)):
        value = c.rng.integers(0, 256, (1, 3, 3, 16)).astype(np.uint8)
        value.flat[:2] = 0, 255
        data, weights = c.codes(1, 8, width, 16, dtype="uint8"), T("", value.shape, "uint8", value, 0.01, zero)
        c.add(f"depthwise_uint8_{zero}", "DEPTHWISE_CONV_2D", [data, weights, c.bias(data, weights, 16)],
              c.codes(1, 8, width, 16, dtype="uint8", scale=0.3), "DepthwiseConv2DOptions",
              {**conv, "Padding": SAME, "DepthMultiplier": 1})  # fmt: skip
    data, weights = c.codes(2, 20), c.weights(5, 20)
    c.add("dense_no_bias", "FULLY_CONNECTED", [data, weights, None], c.codes(2, 5, scale=0.2),
          "FullyConnectedOptions", {})  # fmt: skip
    for name, padding, size in (("same", SAME, (10, 8)), ("valid", VALID, (11, 9))):
        data, weights = c.codes(1, 5, 4, 3), c.weights(6, 3, 3, 3, channels=6)
        fields = {"StrideH": 2, "StrideW": 2, "Padding": padding}
        inputs = [ints(1, *size, 6), weights, data, c.bias(data, weights, 6)]
        c.add(f"transpose_conv_{name}", "TRANSPOSE_CONV", inputs, c.codes(1, *size, 6, scale=0.3),
              "TransposeConvOptions", fields)  # fmt: skip
    for adjoint in (False, True):
        rhs = c.codes(2, 6, 5) if adjoint else c.codes(2, 5, 6)
        c.add(f"batch_matmul_{adjoint}", "BATCH_MATMUL", [c.codes(2, 3, 5), rhs], c.codes(2, 3, 6, scale=0.5),
              "BatchMatMulOptions", {"AdjY": adjoint})  # fmt: skip


def _arithmetic(c: Cases) -> None:
    for dtype in ("int8", "uint8"):
        for code, options in (("ADD", "AddOptions"), ("SUB", "SubOptions"), ("MUL", "MulOptions")):
            for fused in (0, RELU6):
                pair = [c.codes(1, c.many // 56, 8, 7, dtype=dtype), c.codes(1, c.many // 56, 8, 7, dtype=dtype)]
                result = c.codes(1, c.many // 56, 8, 7, dtype=dtype)
                c.add(f"{code}_{dtype}_{fused}", code, pair, result, options, {"FusedActivationFunction": fused})
    c.add("add_channel", "ADD", [c.codes(1, 4, 5, 6), c.codes(6)], c.codes(1, 4, 5, 6), "AddOptions", {})
    c.add("mul_scalar", "MUL", [c.codes(1, 4, 5, 6), c.codes(1)], c.codes(1, 4, 5, 6), "MulOptions", {})
    for dtype, zero in (("int8", 3), ("uint8", 120)):  # quotients near zero, where LiteRT shifts by too many bits
        divisor = zero + 1 + np.arange(64) % 100
        facts = {"dtype": dtype, "scale": 0.13, "zero": zero}
        c.add(f"div_{dtype}", "DIV", [c.codes(5, 64, **facts), c.codes(64, value=divisor, **facts)],
              c.codes(5, 64, **facts), "DivOptions", {})  # fmt: skip
    same = {"scale": 0.1, "zero": 4}
    for code in ("MAXIMUM", "MINIMUM"):
        pair = [c.codes(3, 5, **same), c.codes(3, 5, **same)]
        c.add(code, code, pair, c.codes(3, 5, **same), "MaximumMinimumOptions", {})
    c.add("requantize", "QUANTIZE", [c.codes(c.many)], c.codes(c.many), "QuantizeOptions", {})
    c.add("to_uint8", "QUANTIZE", [c.codes(c.many)], c.codes(c.many, dtype="uint8"), "QuantizeOptions", {})
    c.add("quantize", "QUANTIZE", [T("", (c.many,))], c.codes(c.many), "QuantizeOptions", {})
    c.add("quantize_uint8", "QUANTIZE", [T("", (c.many,))], c.codes(c.many, dtype="uint8"), "QuantizeOptions", {})
    c.add("dequantize", "DEQUANTIZE", [c.codes(c.many)], T("", (c.many,)), "DequantizeOptions", {})


def _activations(c: Cases) -> None:
    for number in range(3):
        for code, scale, zero in (("LOGISTIC", 1 / 256, -128), ("TANH", 1 / 128, 0)):
            c.add(f"{code}_{number}", code, [c.codes(c.many)], c.codes(c.many, scale=scale, zero=zero))
        c.add(f"hard_swish_{number}", "HARD_SWISH", [c.codes(c.many)], c.codes(c.many), "HardSwishOptions", {})
        c.add(f"leaky_{number}", "LEAKY_RELU", [c.codes(c.many)], c.codes(c.many), "LeakyReluOptions", {"Alpha": 0.13})
        c.add(f"elu_{number}", "ELU", [c.codes(c.many)], c.codes(c.many))
        for code in ("RELU", "RELU6", "RELU_N1_TO_1"):
            c.add(f"{code}_{number}", code, [c.codes(c.many)], c.codes(c.many))
        c.add(f"exp_{number}", "EXP", [c.codes(c.many, scale=0.02)], c.codes(c.many), "ExpOptions", {})
        c.add(f"abs_{number}", "ABS", [c.codes(c.many)], c.codes(c.many), "AbsOptions", {})
        for exact in (False, True):
            fields = {"Approximate": not exact}
            c.add(f"gelu_{exact}_{number}", "GELU", [c.codes(c.many)], c.codes(c.many), "GeluOptions", fields)
        result = c.codes(6, 11, scale=1 / 256, zero=-128)
        fields = {"Beta": float(number + 1) / 2}
        c.add(f"softmax_{number}", "SOFTMAX", [c.codes(6, 11, scale=0.05 + number)], result, "SoftmaxOptions", fields)
    # the quotient of these scales is a tie in float32 only
    for code in ("RELU", "RELU6", "RELU_N1_TO_1"):
        c.add(f"{code}_tie", code, [c.codes(c.many, scale=1 / 256, zero=3)], c.codes(c.many, scale=0.1, zero=-7))
    slopes = T("", (1, 1, 5), "int8", c.rng.integers(-128, 128, (1, 1, 5)).astype(np.int8), 0.01, 3)
    c.add("prelu", "PRELU", [c.codes(1, 6, 6, 5), slopes], c.codes(1, 6, 6, 5))
    result = c.codes(3, 40, dtype="uint8", scale=1 / 256, zero=0)
    c.add("softmax_uint8", "SOFTMAX", [c.codes(3, 40, dtype="uint8")], result, "SoftmaxOptions", {"Beta": 1.0})


def _windows_and_reductions(c: Cases) -> None:
    same = {"scale": 0.1, "zero": 4}
    for code in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
        for name, padding, size in (("same", SAME, (4, 4)), ("valid", VALID, (3, 3))):
            fields = {"Padding": padding, "StrideH": 2, "StrideW": 2, "FilterHeight": 3, "FilterWidth": 2,
                      "FusedActivationFunction": RELU}  # fmt: skip
            data, result = c.codes(1, 7, 7, 5, **same), c.codes(1, *size, 5, **same)
            c.add(f"{code}_{name}", code, [data], result, "Pool2DOptions", fields)
    plain = T("", (1, 7, 7, 5), "uint8")
    c.add("average_without_scale", "AVERAGE_POOL_2D", [plain], T("", (1, 4, 4, 5), "uint8"), "Pool2DOptions",
          {**fields, "Padding": SAME, "FusedActivationFunction": 0})  # fmt: skip
    for number, (axes, shape) in enumerate((((1, 2), (1, 1, 1, 5)), ((3,), (1, 6, 7, 1)), ((1,), (1, 1, 7, 5)))):
        result = c.codes(*shape)
        c.add(
            f"mean_{number}", "MEAN", [c.codes(1, 6, 7, 5), ints(*axes)], result, "ReducerOptions", {"KeepDims": True}
        )
    c.add("mean_flat", "MEAN", [c.codes(2, 6, 7, 5), ints(1, 2)], c.codes(2, 5), "ReducerOptions", {})
    c.add("reduce_max", "REDUCE_MAX", [c.codes(1, 6, 7, 5, **same), ints(1, 2)], c.codes(1, 5, **same),
          "ReducerOptions", {})  # fmt: skip
    for code, options in (("ARG_MAX", "ArgMaxOptions"), ("ARG_MIN", "ArgMinOptions")):
        kind = {"OutputType": 2}
        c.add(code, code, [c.codes(4, 9), ints(1)], T("", (4,), "int32"), options, kind)
    for number, fields in enumerate(({}, {"AlignCorners": True}, {"HalfPixelCenters": True})):
        for *size, channels in ((10, 12, 3), (7, 4, 21), (4, 1, 21)):
            result = c.codes(1, *size, channels, **same)
            c.add(f"bilinear_{number}_{size[0]}", "RESIZE_BILINEAR", [c.codes(1, 5, 6, channels, **same), ints(*size)],
                  result, "ResizeBilinearOptions", fields)  # fmt: skip
            result = c.codes(1, *size, 3, **same)
            c.add(f"nearest_{number}_{size[0]}", "RESIZE_NEAREST_NEIGHBOR", [c.codes(1, 5, 6, 3, **same), ints(*size)],
                  result, "ResizeNearestNeighborOptions", fields)  # fmt: skip


def _moves(c: Cases) -> None:
    same = {"scale": 0.1, "zero": 4}

    def t(*shape: int) -> T:
        return c.codes(*shape, **same)

    c.add("reshape", "RESHAPE", [t(2, 3, 4), ints(4, 6)], t(4, 6), "ReshapeOptions", {"NewShape": [4, 6]})
    c.add("squeeze", "SQUEEZE", [t(1, 3, 1, 4)], t(3, 4), "SqueezeOptions", {"SqueezeDims": [0, 2]})
    c.add("expand_dims", "EXPAND_DIMS", [t(3, 4), ints(1)], t(3, 1, 4), "ExpandDimsOptions", {})
    c.add("transpose", "TRANSPOSE", [t(2, 3, 4), ints(2, 0, 1)], t(4, 2, 3), "TransposeOptions", {})
    widths = np.array([[0, 0], [1, 2], [0, 1]], np.int32)
    c.add("pad", "PAD", [t(2, 3, 4), widths], t(2, 6, 5), "PadOptions", {})
    value = T("", (1,), "int8", np.array([7], np.int8), 0.1, 4)
    c.add("padv2", "PADV2", [t(2, 3, 4), widths, value], t(2, 6, 5), "PadV2Options", {})
    c.add("mirror_pad", "MIRROR_PAD", [t(2, 3, 4), widths], t(2, 6, 5), "MirrorPadOptions", {"Mode": 0})
    c.add("concatenation", "CONCATENATION", [t(2, 3), t(2, 4)], t(2, 7), "ConcatenationOptions", {"Axis": 1})
    parts = [c.codes(2, 30, dtype="uint8"), c.codes(2, 40, dtype="uint8")]
    c.add("concatenation_scaled", "CONCATENATION", parts, c.codes(2, 70, dtype="uint8"), "ConcatenationOptions",
          {"Axis": -1})  # fmt: skip
    c.add("split", "SPLIT", [ints(1), t(2, 6)], [t(2, 3), t(2, 3)], "SplitOptions", {"NumSplits": 2})
    c.add("split_v", "SPLIT_V", [t(2, 6), ints(2, 4), ints(1)], [t(2, 2), t(2, 4)], "SplitVOptions", {"NumSplits": 2})
    c.add("slice", "SLICE", [t(4, 6), ints(1, 2), ints(2, -1)], t(2, 4), "SliceOptions", {})
    masks = {"BeginMask": 1, "ShrinkAxisMask": 4}
    inputs = [t(4, 6, 3), ints(1, 5, 1), ints(4, 0, 2), ints(2, -2, 1)]
    c.add("strided_slice", "STRIDED_SLICE", inputs, t(2, 3), "StridedSliceOptions", masks)
    inputs = [t(4, 6, 3), ints(1, 2, 1), ints(4, 3, 2), ints(2, 1, 1)]
    c.add("strided_slice_masks", "STRIDED_SLICE", inputs, t(2, 1), "StridedSliceOptions",
          {"BeginMask": 2, "ShrinkAxisMask": 2})  # fmt: skip
    c.add("gather", "GATHER", [t(4, 6), ints(3, 0, 1)], t(4, 3), "GatherOptions", {"Axis": 1})
    c.add("pack", "PACK", [t(2, 3), t(2, 3)], t(2, 2, 3), "PackOptions", {"Axis": 1, "ValuesCount": 2})
    c.add("unpack", "UNPACK", [t(2, 3)], [t(3), t(3)], "UnpackOptions", {"Axis": 0, "Num": 2})
    block = {"BlockSize": 2}
    c.add("space_to_depth", "SPACE_TO_DEPTH", [t(1, 4, 6, 3)], t(1, 2, 3, 12), "SpaceToDepthOptions", block)
    c.add("depth_to_space", "DEPTH_TO_SPACE", [t(1, 2, 3, 12)], t(1, 4, 6, 3), "DepthToSpaceOptions", block)
    c.add("tile", "TILE", [t(2, 3), ints(2, 3)], t(4, 9), "TileOptions", {})
    c.add("broadcast_to", "BROADCAST_TO", [t(1, 3), ints(4, 3)], t(4, 3), "BroadcastToOptions", {})


def _comparisons(c: Cases) -> None:
    names = {"EQUAL": "EqualOptions", "NOT_EQUAL": "NotEqualOptions", "LESS": "LessOptions",
             "LESS_EQUAL": "LessEqualOptions", "GREATER": "GreaterOptions",
             "GREATER_EQUAL": "GreaterEqualOptions"}  # fmt: skip
    for code, options in names.items():
        for scale in (0.003, 0.1):
            pair = [c.codes(c.many, scale=scale), c.codes(c.many)]
            c.add(f"{code}_{scale}", code, pair, T("", (c.many,), "bool"), options, {})


def float_cases(seed: int) -> list[Case]:
    """Return float32 cases, compared within a few units in the last place of LiteRT."""
    c = Cases(np.random.default_rng(seed))
    x = (2, 7, 6, 5)

    def t(*shape: int) -> T:
        return T("", shape or x)

    def close(*args: Any, ranges: tuple[float, float] = (-3.0, 3.0)) -> None:
        c.add(*args, tolerance=2e-6, ranges=ranges)

    conv = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1, "Padding": SAME,
            "FusedActivationFunction": RELU}  # fmt: skip
    close("conv", "CONV_2D", [t(), c.floats(4, 3, 3, 5), c.floats(4)], t(2, 7, 6, 4), "Conv2DOptions", conv)
    close("depthwise", "DEPTHWISE_CONV_2D", [t(), c.floats(1, 3, 3, 5), c.floats(5)], t(), "DepthwiseConv2DOptions",
          {**conv, "DepthMultiplier": 1})  # fmt: skip
    close("dense", "FULLY_CONNECTED", [t(3, 20), c.floats(6, 20), c.floats(6)], t(3, 6), "FullyConnectedOptions", {})
    inputs = [ints(2, 14, 12, 4), c.floats(4, 3, 3, 5), t()]
    close("transpose_conv", "TRANSPOSE_CONV", inputs, t(2, 14, 12, 4), "TransposeConvOptions",
          {"StrideH": 2, "StrideW": 2, "Padding": SAME})  # fmt: skip
    close("batch_matmul", "BATCH_MATMUL", [t(2, 3, 4), t(2, 4, 5)], t(2, 3, 5), "BatchMatMulOptions", {})
    for code, options in (("ADD", "AddOptions"), ("SUB", "SubOptions"), ("MUL", "MulOptions"), ("DIV", "DivOptions")):
        close(code, code, [t(), t(5)], t(), options, {"FusedActivationFunction": RELU6})
    for code in ("MAXIMUM", "MINIMUM"):
        close(code, code, [t(), t()], t(), "MaximumMinimumOptions", {})
    close("sqdiff", "SQUARED_DIFFERENCE", [t(), t()], t(), "SquaredDifferenceOptions", {})
    close("pow", "POW", [t(), t()], t(), "PowOptions", {}, ranges=(0.1, 3.0))
    for code in ("LOGISTIC", "TANH", "RELU", "RELU6", "RELU_N1_TO_1", "ELU", "SIN", "FLOOR", "CEIL", "ROUND"):
        close(code, code, [t()], t())
    for code, options in (("HARD_SWISH", "HardSwishOptions"), ("ABS", "AbsOptions"), ("NEG", "NegOptions"),
                          ("EXP", "ExpOptions"), ("COS", "CosOptions"), ("SQUARE", "SquareOptions")):  # fmt: skip
        close(code, code, [t()], t(), options, {})
    for code in ("LOG", "SQRT", "RSQRT"):
        close(code, code, [t()], t(), ranges=(0.1, 5.0))
    for exact in (False, True):
        close(f"gelu_{exact}", "GELU", [t()], t(), "GeluOptions", {"Approximate": not exact})
    close("leaky", "LEAKY_RELU", [t()], t(), "LeakyReluOptions", {"Alpha": 0.2})
    close("prelu", "PRELU", [t(), c.floats(1, 1, 5)], t())
    close("softmax", "SOFTMAX", [t(3, 9)], t(3, 9), "SoftmaxOptions", {"Beta": 1.5})
    close("log_softmax", "LOG_SOFTMAX", [t(3, 9)], t(3, 9), "LogSoftmaxOptions", {})
    close("l2_norm", "L2_NORMALIZATION", [t(3, 9)], t(3, 9), "L2NormOptions", {})
    pool = {"Padding": SAME, "StrideH": 2, "StrideW": 2, "FilterHeight": 3, "FilterWidth": 2}
    for code in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
        close(code, code, [t()], t(2, 4, 3, 5), "Pool2DOptions", pool)
    for code in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"):
        close(code, code, [t(), ints(1, -2)], t(2, 5), "ReducerOptions", {})
    for number, fields in enumerate(({}, {"AlignCorners": True}, {"HalfPixelCenters": True})):
        close(f"bilinear_{number}", "RESIZE_BILINEAR", [t(), ints(9, 13)], t(2, 9, 13, 5), "ResizeBilinearOptions",
              fields)  # fmt: skip
    condition = c.rng.integers(0, 2, x).astype(bool)
    close("select", "SELECT_V2", [condition, t(), t()], t(), "SelectV2Options", {})
    close("cast", "CAST", [T("", (40,), "int8")], t(40), "CastOptions", {})
    weights = T("", (7, 20), "int8", c.rng.integers(-127, 128, (7, 20)).astype(np.int8), 0.01, 0)
    for asymmetric in (False, True):
        fields = {"AsymmetricQuantizeInputs": asymmetric}
        close(f"hybrid_dense_{asymmetric}", "FULLY_CONNECTED", [t(3, 20), weights, c.floats(7)], t(3, 7),
              "FullyConnectedOptions", fields)  # fmt: skip
    for channels in (0, 4):
        weights = c.weights(4, 3, 3, 5, channels=channels)
        close(f"hybrid_conv_{channels}", "CONV_2D", [t(), weights, c.floats(4)], t(2, 7, 6, 4), "Conv2DOptions", conv)
    weights = c.weights(1, 3, 3, 5, channels=5, axis=3)
    close("hybrid_depthwise", "DEPTHWISE_CONV_2D", [t(), weights, c.floats(5)], t(), "DepthwiseConv2DOptions",
          {**conv, "DepthMultiplier": 1})  # fmt: skip
    return c.found

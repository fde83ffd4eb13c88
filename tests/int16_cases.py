"""TFLite operators on int16 data, mostly symmetric: one small operator per case, for comparison with LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import tflite

from tests.tflite_builder import T
from tests.tflite_cases import RELU, RELU6, RELU_N1, SAME, VALID, Case, Cases, ints

_CONV = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}


class Int16Cases(Cases):
    """Cases with int16 data without zero points."""

    def t(self, *shape: int, **facts: Any) -> T:
        """Return an int16 tensor with a random scale."""
        return T("", shape, "int16", scale=facts.pop("scale", float(np.float32(self.rng.uniform(1e-4, 2e-3)))), **facts)

    def sums(self, data: T, weights: T, count: int, dtype: str = "int64", largest: int = 1 << 24) -> T:
        """Return a bias with the scale of the accumulators."""
        value = self.rng.integers(-largest, largest, count).astype(dtype)
        scale = np.float32(data.scale) * np.asarray(weights.scale, np.float32)
        return T("", (count,), dtype, value, scale, 0, 0)


def int16_cases(seed: int, many: int = 700) -> list[Case]:
    """Return cases with integer results, which must be LiteRT's bit for bit."""
    cases = Int16Cases(np.random.default_rng(seed), many=many)
    _linear(cases)
    _arithmetic(cases)
    _activations(cases)
    _windows_and_reductions(cases)
    _moves(cases)
    _rest(cases)
    return cases.found


def _linear(c: Int16Cases) -> None:
    for bias in ("int64", "int32", ""):  # CONV_2D requires a bias, DEPTHWISE_CONV_2D a 64-bit one
        kind = {"QuantizedBiasType": tflite.TensorType.INT32} if bias == "int32" else {}
        for name, size, padding, more in (
            ("same", 3, SAME, {}), ("strided", 3, SAME, {"StrideH": 2, "StrideW": 2, "FusedActivationFunction": RELU6}),
            ("pointwise", 1, VALID, {"FusedActivationFunction": RELU}),
        ):  # fmt: skip
            data, weights = c.t(1, 8, 7, 5), c.weights(6, size, size, 5, channels=6)
            shape = (4, 4) if "StrideH" in more else (8, 7)
            if not bias:
                continue
            c.add(f"conv_{name}_{bias}", "CONV_2D", [data, weights, c.sums(data, weights, 6, bias)],
                  c.t(1, *shape, 6, scale=0.002), "Conv2DOptions",
                  {**_CONV, "Padding": padding, **more, **kind})  # fmt: skip
        for multiplier, channels in ((1, 6), (2, 3), (4, 1)):
            data, count = c.t(1, 8, 7, channels), channels * multiplier
            weights = c.weights(1, 3, 3, count, channels=count, axis=3)
            if bias != "int64":
                continue
            inputs = [data, weights, c.sums(data, weights, count)]
            c.add(f"depthwise_{multiplier}_{bias}", "DEPTHWISE_CONV_2D", inputs, c.t(1, 8, 7, count, scale=0.002),
                  "DepthwiseConv2DOptions", {**_CONV, "Padding": SAME, "DepthMultiplier": multiplier})  # fmt: skip
        for name, batch, units, fused, channels in (("one", 1, 9, 0, 0), ("many", 4, 33, RELU, 0), ("per", 2, 5, 0, 5)):
            data, weights = c.t(batch, 20), c.weights(units, 20, channels=channels)
            inputs = [data, weights, c.sums(data, weights, units, bias) if bias else None]
            c.add(f"dense_{name}_{bias}", "FULLY_CONNECTED", inputs, c.t(batch, units, scale=0.002),
                  "FullyConnectedOptions", {"FusedActivationFunction": fused, **kind})  # fmt: skip
        for name, padding, size in (("same", SAME, (10, 8)), ("valid", VALID, (11, 9))):
            data, weights = c.t(1, 5, 4, 3), c.weights(6, 3, 3, 3, channels=6)
            inputs = [ints(1, *size, 6), weights, data]
            inputs += [c.sums(data, weights, 6, bias)] if bias else []
            c.add(f"transpose_conv_{name}_{bias}", "TRANSPOSE_CONV", inputs, c.t(1, *size, 6, scale=0.002),
                  "TransposeConvOptions", {"StrideH": 2, "StrideW": 2, "Padding": padding, **kind})  # fmt: skip
    for bias in ("int64", ""):
        for channels in (0, 5):
            data, weights = c.t(3, 20), c.weights(5, 20, channels=channels)
            weights.dtype, weights.value = "int16", c.rng.integers(-32768, 32768, (5, 20)).astype(np.int16)
            weights.scale = c.rng.uniform(1e-5, 4e-5, channels or 1).astype(np.float32)
            inputs = [data, weights, c.sums(data, weights, 5, bias, 1 << 30) if bias else None]
            kind = {"QuantizedBiasType": tflite.TensorType.INT64} if bias else {}
            c.add(f"dense_wide_{channels}_{bias}", "FULLY_CONNECTED", inputs, c.t(3, 5, scale=0.002),
                  "FullyConnectedOptions", kind)  # fmt: skip
    c.add("batch_matmul_mixed", "BATCH_MATMUL", [c.t(2, 3, 5), c.codes(2, 5, 6, zero=0)], c.t(2, 3, 6, scale=0.002),
          "BatchMatMulOptions", {})  # fmt: skip
    data, weights = c.t(1, 6, 5, 4), c.weights(6, 3, 3, 4)
    c.add("conv_one_scale", "CONV_2D", [data, weights, c.sums(data, weights, 6)], c.t(1, 6, 5, 6, scale=0.002),
          "Conv2DOptions", {**_CONV, "Padding": SAME})  # fmt: skip
    for adjoint in (False, True):
        rhs = c.t(2, 6, 5) if adjoint else c.t(2, 5, 6)
        c.add(f"batch_matmul_{adjoint}", "BATCH_MATMUL", [c.t(2, 3, 5), rhs], c.t(2, 3, 6, scale=0.002),
              "BatchMatMulOptions", {"AdjY": adjoint})  # fmt: skip


def _arithmetic(c: Int16Cases) -> None:
    shape = (1, c.many // 56, 8, 7)
    for code, options in (("ADD", "AddOptions"), ("SUB", "SubOptions"), ("MUL", "MulOptions")):
        for fused in (0, RELU6, RELU_N1):
            pair = [c.t(*shape), c.t(*shape)]
            scale = {"scale": 1e-5} if code == "MUL" and not fused else {}
            c.add(f"{code}_{fused}", code, pair, c.t(*shape, **scale), options, {"FusedActivationFunction": fused})
        c.add(f"{code}_channel", code, [c.t(1, 4, 5, 6), c.t(6)], c.t(1, 4, 5, 6), options, {})
    for code in ("ADD", "SUB"):
        options = f"{code.title()}Options"
        for pot in (True, False):
            scales = [2.0**-12, 2.0**-14, 2.0**-12]
            tensors = [c.t(*shape, scale=scale) for scale in scales]
            c.add(f"{code}_pot_{pot}", code, tensors[:2], tensors[2], options, {"PotScaleInt16": pot})
    for dtype in ("int16", "int8", "uint8"):
        info = np.iinfo(dtype)
        # the reference shifts by more than a word, with an arbitrary result, if the quotient is far below one code
        small = {"scale": 0.2} if dtype == "int16" else {"scale": 0.011}
        dividend = c.t(c.many, **small) if dtype == "int16" else c.codes(c.many, dtype=dtype, **small)
        divisor = c.rng.integers(info.min, info.max + 1, c.many)
        zero = 0 if dtype == "int16" else 3
        facts = {"scale": 0.012, "zero": zero, "value": np.where(divisor == zero, 1, divisor).astype(dtype)}
        small = {"scale": 0.0007}
        result = c.t(c.many, **small) if dtype == "int16" else c.codes(c.many, dtype=dtype, **small)
        c.add(f"DIV_{dtype}", "DIV", [dividend, T("", (c.many,), dtype, **facts)], result, "DivOptions", {})
    same = {"scale": 0.001}
    for code in ("MAXIMUM", "MINIMUM"):
        c.add(code, code, [c.t(3, 5, **same), c.t(3, 5, **same)], c.t(3, 5, **same), "MaximumMinimumOptions", {})
    c.add("to_int8", "QUANTIZE", [c.t(c.many)], c.codes(c.many), "QuantizeOptions", {})
    for dtype in ("int8", "uint8"):
        c.add(f"from_{dtype}", "QUANTIZE", [c.codes(c.many, dtype=dtype)], c.t(c.many), "QuantizeOptions", {})
    c.add("to_int32", "QUANTIZE", [c.t(c.many)], T("", (c.many,), "int32", scale=1e-6), "QuantizeOptions", {})
    c.add("requantize", "QUANTIZE", [c.t(c.many)], c.t(c.many), "QuantizeOptions", {})
    c.add("quantize", "QUANTIZE", [T("", (c.many,))], c.t(c.many), "QuantizeOptions", {})
    c.add("dequantize", "DEQUANTIZE", [c.t(c.many)], T("", (c.many,)), "DequantizeOptions", {})
    for code, options in (("EQUAL", "EqualOptions"), ("NOT_EQUAL", "NotEqualOptions"), ("LESS", "LessOptions"),
                          ("GREATER_EQUAL", "GreaterEqualOptions")):  # fmt: skip
        c.add(code, code, [c.t(c.many), c.t(c.many)], T("", (c.many,), "bool"), options, {})


def _activations(c: Int16Cases) -> None:
    for number in range(3):
        for code in ("LOGISTIC", "TANH"):
            scale = (2.0**-12, 2.0**-14, 0.0009)[number]
            c.add(f"{code}_{number}", code, [c.t(c.many, scale=scale)], c.t(c.many, scale=1 / 32768))
        c.add(f"leaky_{number}", "LEAKY_RELU", [c.t(c.many)], c.t(c.many), "LeakyReluOptions",
              {"Alpha": (0.13, -0.4, 1.7)[number]})  # fmt: skip
        for code in ("RELU", "RELU6"):
            c.add(f"{code}_{number}", code, [c.t(c.many)], c.t(c.many))
        for code, options in (("EXP", "ExpOptions"), ("ABS", "AbsOptions"), ("LOG", None)):
            c.add(f"{code}_{number}", code, [c.t(c.many)], c.t(c.many), options, {})
        for code in ("RSQRT", "SQRT"):  # which reject negative values
            value = c.rng.integers(1, 1 << 15, c.many).astype(np.int16)
            c.add(f"{code}_{number}", code, [c.t(c.many, value=value)], c.t(c.many, scale=0.0003), None, {})
        for exact in (False, True):
            c.add(f"gelu_{exact}_{number}", "GELU", [c.t(c.many)], c.t(c.many), "GeluOptions",
                  {"Approximate": not exact})  # fmt: skip
        scale = (0.0003, 0.00005, 0.003)[number]
        c.add(f"softmax_{number}", "SOFTMAX", [c.t(6, 11, scale=scale)], c.t(6, 11, scale=1 / 32768), "SoftmaxOptions",
              {"Beta": (1.0, 0.5, 1.5)[number]})  # fmt: skip
    c.add("NEG", "NEG", [c.t(c.many, scale=0.1)], c.t(c.many, scale=0.1), "NegOptions", {})
    slopes = T("", (1, 1, 5), "int8", c.rng.integers(-128, 128, (1, 1, 5)).astype(np.int8), 0.01)
    c.add("prelu", "PRELU", [c.t(1, 6, 6, 5), slopes], c.t(1, 6, 6, 5))


def _windows_and_reductions(c: Int16Cases) -> None:
    same = {"scale": 0.001}
    for code in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
        for name, padding, size in (("same", SAME, (4, 4)), ("valid", VALID, (3, 3))):
            fields = {"Padding": padding, "StrideH": 2, "StrideW": 2, "FilterHeight": 3, "FilterWidth": 2,
                      "FusedActivationFunction": RELU6}  # fmt: skip
            c.add(f"{code}_{name}", code, [c.t(1, 7, 7, 5, **same)], c.t(1, *size, 5, **same), "Pool2DOptions", fields)
    for code in ("MEAN", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"):
        scale = same if code.startswith("REDUCE_M") else {}
        for number, (axes, shape) in enumerate((((1, 2), (1, 1, 1, 5)), ((3,), (1, 6, 7, 1)), ((1,), (1, 1, 7, 5)))):
            c.add(f"{code}_{number}", code, [c.t(1, 6, 7, 5, **scale), ints(*axes)], c.t(*shape, **scale),
                  "ReducerOptions", {"KeepDims": True})  # fmt: skip
        c.add(f"{code}_same", code, [c.t(2, 6, 7, 5, **same), ints(1, 2)], c.t(2, 5, **same), "ReducerOptions", {})
    for number, fields in enumerate(({}, {"AlignCorners": True}, {"HalfPixelCenters": True})):
        for size in ((10, 12), (7, 4)):
            for code, options in (("RESIZE_BILINEAR", "ResizeBilinearOptions"),
                                  ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions")):  # fmt: skip
                c.add(f"{code}_{number}_{size[0]}", code, [c.t(1, 5, 6, 3, **same), ints(*size)],
                      c.t(1, *size, 3, **same), options, fields)  # fmt: skip


def _moves(c: Int16Cases) -> None:
    def t(*shape: int) -> T:
        return c.t(*shape, scale=0.001)

    c.add("reshape", "RESHAPE", [t(2, 3, 4), ints(4, 6)], t(4, 6), "ReshapeOptions", {"NewShape": [4, 6]})
    c.add("squeeze", "SQUEEZE", [t(1, 3, 1, 4)], t(3, 4), "SqueezeOptions", {"SqueezeDims": [0, 2]})
    c.add("expand_dims", "EXPAND_DIMS", [t(3, 4), ints(1)], t(3, 1, 4), "ExpandDimsOptions", {})
    c.add("transpose", "TRANSPOSE", [t(2, 3, 4), ints(2, 0, 1)], t(4, 2, 3), "TransposeOptions", {})
    widths = np.array([[0, 0], [1, 2], [0, 1]], np.int32)
    c.add("pad", "PAD", [t(2, 3, 4), widths], t(2, 6, 5), "PadOptions", {})
    value = T("", (1,), "int16", np.array([7], np.int16), 0.001)
    c.add("padv2", "PADV2", [t(2, 3, 4), widths, value], t(2, 6, 5), "PadV2Options", {})
    c.add("mirror_pad", "MIRROR_PAD", [t(2, 3, 4), widths], t(2, 6, 5), "MirrorPadOptions", {"Mode": 0})
    c.add("concatenation", "CONCATENATION", [t(2, 3), t(2, 4)], t(2, 7), "ConcatenationOptions", {"Axis": 1})
    c.add("split", "SPLIT", [ints(1), t(2, 6)], [t(2, 3), t(2, 3)], "SplitOptions", {"NumSplits": 2})
    c.add("split_v", "SPLIT_V", [t(2, 6), ints(2, 4), ints(1)], [t(2, 2), t(2, 4)], "SplitVOptions", {"NumSplits": 2})
    c.add("slice", "SLICE", [t(4, 6), ints(1, 2), ints(2, -1)], t(2, 4), "SliceOptions", {})
    masks = {"BeginMask": 1, "ShrinkAxisMask": 4}
    inputs = [t(4, 6, 3), ints(1, 5, 1), ints(4, 0, 2), ints(2, -2, 1)]
    c.add("strided_slice", "STRIDED_SLICE", inputs, t(2, 3), "StridedSliceOptions", masks)
    c.add("gather", "GATHER", [t(4, 6), ints(3, 0, 1)], t(4, 3), "GatherOptions", {"Axis": 1})
    c.add("pack", "PACK", [t(2, 3), t(2, 3)], t(2, 2, 3), "PackOptions", {"Axis": 1, "ValuesCount": 2})
    c.add("unpack", "UNPACK", [t(2, 3)], [t(3), t(3)], "UnpackOptions", {"Axis": 0, "Num": 2})
    c.add("tile", "TILE", [t(2, 3), ints(2, 3)], t(4, 9), "TileOptions", {})
    c.add("broadcast_to", "BROADCAST_TO", [t(1, 3), ints(4, 3)], t(4, 3), "BroadcastToOptions", {})
    c.add("fill", "FILL", [ints(2, 3), T("", (), "int16", np.int16(5), 0.001)], t(2, 3), "FillOptions", {})


def _rest(c: Int16Cases) -> None:
    condition = c.rng.integers(0, 2, (3, 5)).astype(bool)
    pair = [c.t(3, 5, scale=0.001), c.t(3, 5, scale=0.001)]
    c.add("select", "SELECT_V2", [condition, *pair], c.t(3, 5, scale=0.001), "SelectV2Options", {})
    c.add("select_v1", "SELECT", [condition, *pair], c.t(3, 5, scale=0.001), "SelectOptions", {})
    plain = T("", (3, 5), "int16")
    for code in ("MAXIMUM", "MINIMUM"):
        c.add(f"plain_{code}", code, [T("", (3, 5), "int16"), T("", (3, 5), "int16")], T("", (3, 5), "int16"),
              "MaximumMinimumOptions", {})  # fmt: skip
    c.add("cast_from", "CAST", [plain], T("", (3, 5)), "CastOptions", {})
    c.add("cast_to", "CAST", [T("", (3, 5))], T("", (3, 5), "int16"), "CastOptions", {})

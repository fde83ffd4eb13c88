"""TFLite operators in every dtype that LiteRT's reference kernels support, in addition to those of `tflite_cases`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.tflite_builder import T
from tests.tflite_cases import SAME, VALID, Case, Cases, ints

CLOSE = 2e-6
_POOL = {"Padding": SAME, "StrideH": 2, "StrideW": 2, "FilterHeight": 3, "FilterWidth": 2}


def tensor(c: Cases, dtype: str, *shape: int, **facts: Any) -> T:
    """Return a tensor with the scale and zero point shared by all tensors of its dtype, if it is quantized."""
    known = {"int8": (0.1, 4), "uint8": (0.1, 124), "int16": (0.001, 0)}
    if dtype not in known:
        return T("", shape, dtype, **facts)
    scale, zero = known[dtype]
    return T("", shape, dtype, **{"scale": scale, "zero": zero, **facts})


def cases(seed: int) -> list[Case]:
    """Return cases whose results are LiteRT's bit for bit, or within their tolerance."""
    c = Cases(np.random.default_rng(seed))
    for dtype in ("float32", "int8", "uint8", "int16", "int32", "int64", "bool"):
        _positions(c, dtype)
        _blocks(c, dtype)
    _numbers(c)
    _codes(c)
    _floats(c)
    return c.found


def _positions(c: Cases, d: str) -> None:
    def t(*shape: int) -> T:
        return tensor(c, d, *shape)

    c.add(f"reverse_{d}", "REVERSE_V2", [t(2, 3, 4), ints(2, 1)], t(2, 3, 4))
    pairs = np.array([[3, 0], [1, 5]], np.int64 if d == "int64" else np.int32)
    c.add(f"gather_nd_{d}", "GATHER_ND", [t(4, 6, 3), pairs], t(2, 3))
    places = T("", (2,), "int64" if d == "float32" else "int32")
    c.add(f"update_{d}", "DYNAMIC_UPDATE_SLICE", [t(4, 5), t(2, 2), places], t(4, 5))
    rows = T("", (3, 4), d, c.rng.integers(0, 2, (3, 4)))
    c.add(f"embedding_{d}", "EMBEDDING_LOOKUP", [ints(2, 0, 1, 2), rows], T("", (4, 4), d))
    masks = {"EllipsisMask": 2, "NewAxisMask": 4, "ShrinkAxisMask": 8}
    inputs = [t(4, 6, 3), ints(1, 0, 0, 2), ints(4, 0, 0, 3), ints(2, 1, 1, 1)]
    c.add(f"ellipsis_{d}", "STRIDED_SLICE", inputs, t(2, 6, 1), "StridedSliceOptions", masks)
    if d != "bool":
        results = [t(3, 4), T("", (3, 4), "int32")]
        c.add(f"topk_{d}", "TOPK_V2", [t(3, 9), np.array(4, np.int16 if d == "int16" else np.int32)], results)
    if d != "int16":
        indices = np.array([0, 3, -1, 2, 7], np.int64 if d == "int64" else np.int32)
        on_off = [T("", (), d, 1), T("", (), d, 0)]
        inputs = [indices, np.array(4, np.int32), *on_off]
        c.add(f"one_hot_{d}", "ONE_HOT", inputs, T("", (5, 4), d), "OneHotOptions", {"Axis": -1})
        places = np.array([[3], [1], [3]] if d != "bool" else [[3], [1], [0]], np.int32)
        c.add(f"scatter_{d}", "SCATTER_ND", [places, t(3, 2), ints(5, 2)], t(5, 2))
    if d not in ("int8", "bool"):
        fields = {"SeqDim": 1, "BatchDim": 0}
        c.add(f"sequence_{d}", "REVERSE_SEQUENCE", [t(3, 4, 2), ints(2, 1, 4)], t(3, 4, 2), "ReverseSequenceOptions",
              fields)  # fmt: skip


def _blocks(c: Cases, d: str) -> None:
    around = np.array([[1, 0], [1, 3]], np.int32)
    c.add(f"to_batch_{d}", "SPACE_TO_BATCH_ND", [tensor(c, d, 2, 3, 5, 2), ints(2, 3), around],
          tensor(c, d, 12, 2, 3, 2))  # fmt: skip
    c.add(f"to_space_{d}", "BATCH_TO_SPACE_ND", [tensor(c, d, 12, 2, 3, 2), ints(2, 3), around],
          tensor(c, d, 2, 3, 5, 2))  # fmt: skip
    if d == "float32":
        c.add("to_batch_rows", "SPACE_TO_BATCH_ND", [tensor(c, d, 1, 6, 2), ints(3), ints(0, 0).reshape(1, 2)],
              tensor(c, d, 3, 2, 2))  # fmt: skip


def _numbers(c: Cases) -> None:
    for d in ("int32", "int64"):
        t = T("", (4, 5), d)
        for exclusive, backwards in ((False, False), (True, True)):
            fields = {"Exclusive": exclusive, "Reverse": backwards}
            c.add(f"cumsum_{d}_{exclusive}", "CUMSUM", [t, ints(-1)], T("", (4, 5), d), "CumsumOptions", fields)
        for code in ("ADD", "SUB", "MUL"):
            fields = {"FusedActivationFunction": 3}
            c.add(f"{code}_{d}_relu6", code, [t, t], T("", (4, 5), d), f"{code.title()}Options", fields)
    c.add("div_int32_relu", "DIV", [T("", (4, 5), "int32"), ints(3)], T("", (4, 5), "int32"), "DivOptions",
          {"FusedActivationFunction": 1})  # fmt: skip
    c.add("add_n_int32", "ADD_N", [T("", (7,), "int32") for _ in range(3)], T("", (7,), "int32"))
    c.add("broadcast_args", "BROADCAST_TO", [T("", (3, 1)), ints(3, 4)], T("", (3, 4)), "BroadcastToOptions")
    for d in ("int8", "uint8"):
        c.add(f"relu_0_to_1_{d}", "RELU_0_TO_1", [c.codes(300, dtype=d)], c.codes(300, dtype=d))


def _codes(c: Cases) -> None:
    for d, low in (("int8", -128), ("uint8", 0)):
        rows = {"scale": 1 / 16, "zero": low + 255}, {"scale": 1 / 128, "zero": low + 128}
        for scale in (0.01, 0.3, 3.0):
            c.add(f"log_softmax_{d}_{scale}", "LOG_SOFTMAX", [c.codes(5, 19, dtype=d, scale=scale)],
                  c.codes(5, 19, dtype=d, **rows[0]))  # fmt: skip
        for count in (1, 90):
            c.add(f"l2_normalization_{d}_{count}", "L2_NORMALIZATION", [c.codes(7, count, dtype=d)],
                  c.codes(7, count, dtype=d, **rows[1]), "L2NormOptions")  # fmt: skip
    for scale in (0.02, 0.2):
        pair = [c.codes(2, 300, scale=scale), c.codes(300)]
        c.add(f"squared_difference_{scale}", "SQUARED_DIFFERENCE", pair, c.codes(2, 300, scale=0.2))
        values = c.codes(100, value=np.arange(28, 128).astype(np.int8), zero=28, scale=scale)
        c.add(f"rsqrt_{scale}", "RSQRT", [values], c.codes(100))
    for d in ("int8", "int16"):
        divisor = c.rng.integers(1, 100, 300) * c.rng.choice([-1, 1], 300)
        for code in ("FLOOR_DIV", "FLOOR_MOD"):
            c.add(f"{code}_{d}", code, [tensor(c, d, 300), tensor(c, d, 300, value=divisor)], tensor(c, d, 300))
        c.add(f"neg_{d}", "NEG", [tensor(c, d, 300)], tensor(c, d, 300))
        wide = T("", (300,), "int32", c.rng.integers(-(1 << 31), 1 << 31, 300), 1e-9)
        c.add(f"quantize_int32_{d}", "QUANTIZE", [wide], tensor(c, d, 300))
    parts = [tensor(c, "int16", 2, 30, scale=0.002), tensor(c, "int16", 2, 40, scale=0.003)]
    c.add("concatenation_int16", "CONCATENATION", parts, tensor(c, "int16", 2, 70), "ConcatenationOptions",
          {"Axis": 1})  # fmt: skip
    c.add("sum_uint8", "SUM", [c.codes(4, 30, dtype="uint8"), ints(1)], c.codes(4, dtype="uint8", scale=0.9),
          "ReducerOptions")  # fmt: skip


def _floats(c: Cases) -> None:
    def close(*args: Any) -> None:
        c.add(*args, tolerance=CLOSE)

    close("relu_0_to_1", "RELU_0_TO_1", [T("", (40,))], T("", (40,)))
    close("add_n", "ADD_N", [T("", (7,)) for _ in range(3)], T("", (7,)))
    close("cumsum", "CUMSUM", [T("", (4, 9)), ints(1)], T("", (4, 9)), "CumsumOptions", {"Exclusive": True})
    close("l2_pool", "L2_POOL_2D", [T("", (1, 7, 6, 3))], T("", (1, 4, 3, 3)), "Pool2DOptions", _POOL)
    close("range", "RANGE", [np.float32(0.5), np.float32(-2.0), np.float32(-0.75)], T("", (4,)), "RangeOptions")
    table = T("", (5, 2, 3), "int8", c.rng.integers(-127, 128, (5, 2, 3)), c.rng.uniform(0.01, 0.1, 5), 0, 0)
    close("embedding_hybrid", "EMBEDDING_LOOKUP", [ints(4, 0, 3), table], T("", (3, 2, 3)))
    steps = {f"{what}{axis}": 1 for axis in "DHW" for what in ("Stride",)}
    steps |= {f"Dilation{axis}Factor": 1 for axis in "DHW"}
    for padding, shape in ((SAME, (1, 4, 5, 4, 3)), (VALID, (1, 3, 4, 3, 3))):
        inputs = [T("", (1, 4, 5, 4, 2)), c.floats(2, 2, 2, 2, 3), c.floats(3)]
        fields = {**steps, "Padding": padding, "FusedActivationFunction": 1}
        close(f"conv_3d_{padding}", "CONV_3D", inputs, T("", shape), "Conv3DOptions", fields)

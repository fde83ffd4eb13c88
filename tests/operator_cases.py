"""Operators applied to seeded and edge values, each with the result of NumPy or ONNX Runtime.

The interpreter and the compiled code are tested with the same list, so neither can diverge from the other unnoticed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-30, 88.0, -88.0, 3e38, np.inf, -np.inf, np.nan]


@dataclass(frozen=True)
class Case:
    """An operator, its arguments and attributes, and the expected result.

    `ulp` is the tolerance in units of the last place of the expected value; `relative` is a fraction of the largest
    expected magnitude.
    """

    operator: str
    args: Sequence[Any]
    expected: Callable[[], Array]
    attrs: dict[str, Any] = field(default_factory=dict)
    ulp: float = 0
    relative: float = 0.0
    label: str = ""

    def __str__(self) -> str:
        return f"{self.operator}-{self.label}" if self.label else self.operator

    def check(self, result: Array) -> None:
        """Fail unless `result` equals the expected one within the tolerance; NaN equals NaN."""
        expected = np.asarray(self.expected())
        assert result.shape == expected.shape
        assert result.dtype == expected.dtype
        if not self.ulp and not self.relative:
            np.testing.assert_array_equal(result, expected)
            return
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(result[~finite], expected[~finite])
        step = np.spacing(np.abs(expected[finite]))
        largest = np.max(np.abs(expected[finite]), initial=0.0)
        difference = np.abs(result[finite].astype(np.float64) - expected[finite].astype(np.float64))
        assert np.all(difference <= self.ulp * step + self.relative * largest), difference.max()


def ort(operator: str, *args: Array | None, outputs: int = 1, opset: int = 18, **attrs: Any) -> Callable[[], Array]:
    """Return a function that runs one ONNX node in ONNX Runtime on `args`; None marks an omitted input."""

    def run() -> Array:
        import onnx
        import onnxruntime
        from onnx import helper

        names = ["" if array is None else f"x{index}" for index, array in enumerate(args)]
        given = {name: array for name, array in zip(names, args, strict=True) if array is not None}
        node = helper.make_node(operator, names, ["y"], **attrs)
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in given.items()
        ]
        result = onnx.ValueInfoProto()
        result.name = "y"
        model = helper.make_model(
            helper.make_graph([node], "one", inputs, [result]), opset_imports=[helper.make_opsetid("", opset)]
        )
        model.ir_version = 8
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, given)[0])

    return run


def normal(*shape: int, seed: int = 0) -> Array:
    """Return seeded normal float32 values."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def integers(low: int, high: int, *shape: int, dtype: str = "int32") -> Array:
    """Return seeded integers in [low, high)."""
    return np.random.default_rng([abs(low), high, *shape]).integers(low, high, shape).astype(dtype)


def _erf(x: Array) -> Array:
    return np.asarray([math.erf(value) for value in x.ravel()], x.dtype).reshape(x.shape)


def _wide(function: Callable[..., Any], *args: Array) -> Callable[[], Array]:
    """Return the function's value computed in float64 and rounded once."""

    def run() -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(function(*(arg.astype(np.float64) for arg in args))).astype(args[0].dtype)

    return run


def _quiet(function: Callable[..., Any], *args: Array) -> Callable[[], Array]:
    def run() -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(function(*args))

    return run


def _mish(x: Array) -> Array:
    return x * np.tanh(np.logaddexp(0, x))


def unary_cases() -> list[Case]:
    """Return cases of every unary operator."""
    x = np.concatenate([normal(50) * 3, np.asarray(EDGES, np.float32)])
    unit = np.linspace(-1, 1, 41, dtype=np.float32)
    ints = np.asarray([-128, -127, -1, 0, 1, 5, 127], np.int8)
    libm: dict[str, tuple[Callable[..., Any], Array]] = {
        "acos": (np.arccos, unit), "asin": (np.arcsin, unit), "atan": (np.arctan, x), "atanh": (np.arctanh, unit),
        "acosh": (np.arccosh, np.abs(x) + 1), "asinh": (np.arcsinh, x), "cos": (np.cos, unit * 50),
        "sin": (np.sin, unit * 50), "tan": (np.tan, unit * 9), "cosh": (np.cosh, x), "sinh": (np.sinh, x),
        "tanh": (np.tanh, x), "exp": (np.exp, x), "log": (np.log, x), "log2": (np.log2, x),
        "log10": (np.log10, x), "erf": (_erf, x), "fast_exp": (np.exp, x), "fast_tanh": (np.tanh, x),
        "fast_erf": (_erf, x), "sigmoid": (lambda v: 1 / (1 + np.exp(-v)), x),
        "rsqrt": (lambda v: 1 / np.sqrt(v), np.abs(x)),
    }  # fmt: skip
    cases = [Case(name, [data], _wide(function, data), ulp=4) for name, (function, data) in libm.items()]
    exact: dict[str, Callable[..., Any]] = {
        "sqrt": np.sqrt, "abs": np.abs, "negative": np.negative, "ceil": np.ceil, "floor": np.floor,
        "trunc": np.trunc, "round": np.round, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
        "copy": np.copy, "zeros_like": np.zeros_like, "ones_like": np.ones_like,
        "nn.relu": lambda v: np.where(v < 0, np.float32(0), v), "sign": np.sign,
    }  # fmt: skip
    cases += [Case(name, [x], _quiet(function, x)) for name, function in exact.items()]
    whole: dict[str, Callable[..., Any]] = {
        "abs": np.abs, "negative": np.negative, "sign": np.sign, "bitwise_not": np.invert, "round": np.copy,
        "nn.relu": lambda v: np.maximum(v, 0),
    }  # fmt: skip
    cases += [Case(name, [ints], _quiet(function, ints), label="int8") for name, function in whole.items()]
    flags = np.asarray([True, False])
    cases.append(Case("logical_not", [flags], lambda: ~flags))
    cases += [
        Case("clip", [x], lambda: np.clip(x, -1, np.float32(1.7)), {"a_min": -1.0, "a_max": 1.7}),
        Case("clip", [ints], lambda: np.clip(ints, -3, 127), {"a_min": -3.5, "a_max": 1e9}, label="int8"),
        Case("nn.leaky_relu", [x], lambda: np.where(x > 0, x, x * np.float32(0.1)), {"alpha": 0.1}),
        *(Case("nn.mish", [data], _wide(_mish, data), relative=1e-6, label=label)
          for label, data in (("edges", x), ("usual", normal(50) * 3))),
        Case("fixed_point_multiply", [ints.astype(np.int32) * 1001],
             lambda: np.floor(ints.astype(np.int64) * 1001 * (1342177280 / 2**33) + 0.5).astype(np.int32),
             {"multiplier": 1342177280, "shift": -2}),
    ]  # fmt: skip
    return cases + _cast_cases(x, ints)


def _cast_cases(x: Array, ints: Array) -> list[Case]:
    small = np.asarray([-1.9, -1.0, -0.5, 0, 0.5, 1.99, 100.7], np.float32)
    return [
        Case("cast", [small], lambda: small.astype(np.int8), {"dtype": "int8"}, label="float-int8"),
        Case("cast", [small], lambda: small.astype(np.int64), {"dtype": "int64"}, label="float-int64"),
        Case("cast", [small], lambda: small != 0, {"dtype": "bool"}, label="float-bool"),
        Case("cast", [ints], lambda: ints.astype(np.uint8), {"dtype": "uint8"}, label="int8-uint8"),
        Case("cast", [ints], lambda: ints.astype(np.float32), {"dtype": "float32"}, label="int8-float"),
        Case("cast_like", [ints, x[:1]], lambda: ints.astype(np.float32)),
        Case("reinterpret", [x], lambda: x.view(np.int32), {"dtype": "int32"}),
    ]


def binary_cases() -> list[Case]:
    """Return cases of every binary operator, and of `where`."""
    edges = np.asarray(EDGES, np.float32)
    a, b = np.meshgrid(edges, edges)
    wide, narrow = normal(3, 1, 4), normal(2, 1, seed=1)
    i, j = integers(-100, 100, 5, 7), integers(-9, 9, 7) * 2 + 1
    floats: dict[str, Callable[..., Any]] = {
        "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
        "maximum": np.maximum, "minimum": np.minimum, "equal": np.equal, "not_equal": np.not_equal,
        "less": np.less, "less_equal": np.less_equal, "greater": np.greater, "greater_equal": np.greater_equal,
        "mod": np.fmod, "trunc_mod": np.fmod, "trunc_divide": lambda p, q: np.trunc(p / q),
        "floor_divide": lambda p, q: np.floor(p / q),
    }  # fmt: skip
    cases = [Case(name, [a, b], _quiet(f, a, b), label="edges") for name, f in floats.items()]
    cases += [Case(name, [wide, narrow], _quiet(f, wide, narrow), label="broadcast") for name, f in floats.items()]
    cases.append(Case("floor_mod", [wide, narrow], _quiet(np.mod, wide, narrow)))
    cases.append(Case("power", [np.abs(a), b], _wide(np.power, np.abs(a), b), ulp=4))
    for exponent in (2.0, 3.0, 0.5, -0.5, -1.0, 1.7):
        p, q = np.abs(wide), np.asarray(exponent, np.float32)
        cases.append(Case("power", [p, q], _wide(np.power, p, q), ulp=4, label=str(exponent)))
    whole: dict[str, Callable[..., Any]] = {
        "add": np.add, "multiply": np.multiply, "divide": lambda p, q: np.trunc(p / q).astype(np.int32),
        "floor_divide": np.floor_divide, "floor_mod": np.mod, "trunc_mod": np.fmod, "mod": np.fmod,
        "maximum": np.maximum, "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or,
        "bitwise_xor": np.bitwise_xor, "less": np.less,
    }  # fmt: skip
    cases += [Case(name, [i, j], _quiet(f, i, j), label="int32") for name, f in whole.items()]
    cases += _odd_integer_cases(i)
    p, q = np.asarray([True, True, False, False]), np.asarray([True, False, True, False])
    logic: dict[str, Callable[..., Any]] = {
        "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
        "bitwise_xor": np.bitwise_xor,
    }  # fmt: skip
    cases += [Case(name, [p, q], _quiet(f, p, q), label="bool") for name, f in logic.items()]
    cases.append(Case("where", [narrow > 0, wide, narrow], lambda: np.where(narrow > 0, wide, narrow)))
    return cases


def _odd_integer_cases(i: Array) -> list[Case]:
    byte = np.asarray([100, -100, 127, -128], np.int8)
    amount = np.asarray([0, 1, 5, 31], np.int32)
    base = np.asarray([[1], [-7], [123456]], np.int32)
    zero = np.zeros_like(i)
    return [
        Case("add", [byte, byte], _quiet(np.add, byte, byte), label="int8-wraps"),
        Case("multiply", [byte, byte], _quiet(np.multiply, byte, byte), label="int8-wraps"),
        Case("divide", [i, zero], lambda: zero, label="by-zero"),
        Case("floor_mod", [i, zero], lambda: zero, label="by-zero"),
        Case("power", [i, np.asarray(3, np.int32)], lambda: i**3, label="int32-cube"),
        Case("power", [np.abs(i) % 7, np.asarray([5], np.int32)], lambda: (np.abs(i) % 7) ** 5, label="int32"),
        Case("left_shift", [base, amount], lambda: np.left_shift(base, amount)),
        Case("right_shift", [base, amount], lambda: np.right_shift(base, amount)),
    ]


def shape_cases() -> list[Case]:
    """Return cases of the operators that move elements."""
    x = normal(2, 3, 4)
    y = normal(2, 3, 4, seed=2)
    image = normal(2, 4, 6, 3)
    return [
        Case("reshape", [x], lambda: x.reshape(4, 6), {"newshape": (4, -1)}),
        Case("reshape", [x], lambda: x.reshape(2, 12), {"newshape": (0, -3)}, label="merge"),
        Case("reshape", [x], lambda: x.reshape(2, 3, 2, 2), {"newshape": (0, 0, -4, 2, -1)}, label="split"),
        Case("reshape", [x], lambda: x.reshape(2, 12), {"newshape": (-1, 12)}, label="infer"),
        Case("reshape", [x], lambda: x.reshape(2, 3, 4), {"newshape": (2, -2)}, label="rest"),
        Case("expand_dims", [x], lambda: x[:, :, None, None], {"axis": 2, "num_newaxis": 2}),
        Case("squeeze", [x[:1]], lambda: x[0], {"axis": 0}),
        Case("nn.batch_flatten", [x], lambda: x.reshape(2, 12)),
        Case("transpose", [x], lambda: x.transpose(2, 0, 1), {"axes": (2, 0, -2)}),
        Case("transpose", [x], lambda: x.T, {"axes": None}, label="reverse"),
        Case("broadcast_to", [x[:, :1]], lambda: np.broadcast_to(x[:, :1], (5, 2, 3, 4)), {"shape": (5, 2, 3, 4)}),
        Case("concatenate", [(x, y, x)], lambda: np.concatenate([x, y, x], 1), {"axis": 1}),
        Case("concatenate", [(x, y[..., :1])], lambda: np.concatenate([x, y[..., :1]], -1), {"axis": -1}, label="last"),
        Case("stack", [(x, y)], lambda: np.stack([x, y], -1), {"axis": -1}),
        Case("strided_slice", [x], lambda: x[1:, ::-2],
             {"begin": (1, -1), "end": (2**31 - 1, -100), "strides": (1, -2), "axes": (0, 1)}),
        Case("strided_slice", [x], lambda: x[:, 1:3, 2:],
             {"begin": (0, 1, 2), "end": (2, 2, -1), "strides": (1,), "slice_mode": "size", "axes": None},
             label="size"),
        Case("tile", [x], lambda: np.tile(x, (2, 1, 3, 2)), {"reps": (2, 1, 3, 2)}),
        Case("tile", [x], lambda: np.tile(x, 2), {"reps": (2,)}, label="last"),
        Case("repeat", [x], lambda: np.repeat(x, 3, 1), {"repeats": 3, "axis": 1}),
        Case("repeat", [x], lambda: np.repeat(x, 2), {"repeats": 2}, label="flat"),
        Case("reverse", [x], lambda: x[:, ::-1], {"axis": 1}),
        Case("reverse_sequence", [x, np.asarray([2, 0, 3], np.int32)],
             lambda: _reversed_sequences(x), {"seq_axis": 2, "batch_axis": 1}),
        Case("trilu", [x, np.asarray(1, np.int64)], lambda: np.triu(x, 1)),
        Case("trilu", [x, np.asarray(-1, np.int64)], lambda: np.tril(x, -1), {"upper": False}, label="lower"),
        Case("nn.pad", [x, np.float32(7)], lambda: np.pad(x, ((0, 0), (1, 2), (3, 0)), constant_values=7),
             {"pad_width": ((0, 0), (1, 2), (3, 0))}),
        Case("nn.pad", [x, np.float32(0)], lambda: np.pad(x, ((0, 0), (1, 2), (9, 0)), "edge"),
             {"pad_width": ((0, 0), (1, 2), (9, 0)), "pad_mode": "edge"}, label="edge"),
        Case("nn.pad", [image, np.float32(0)], lambda: np.pad(image, ((0, 0), (3, 2), (5, 5), (0, 0)), "reflect"),
             {"pad_width": ((0, 0), (3, 2), (5, 5), (0, 0)), "pad_mode": "reflect"}, label="reflect"),
        Case("nn.mirror_pad", [image], lambda: np.pad(image, ((0, 0), (4, 2), (6, 1), (0, 0)), "symmetric"),
             {"pad_width": ((0, 0), (4, 2), (6, 1), (0, 0))}),
        Case("zeros", [], lambda: np.zeros((2, 3), np.int8), {"shape": (2, 3), "dtype": "int8"}),
        Case("ones", [], lambda: np.ones((2, 3), np.float32), {"shape": (2, 3)}),
        Case("full", [np.float32(2.5)], lambda: np.full((2, 2), 2.5, np.float32), {"shape": (2, 2)}),
        Case("arange", [np.int64(5), np.int64(-4), np.int64(-2)], lambda: np.arange(5, -4, -2),
             {"start": 5, "stop": -4, "step": -2, "dtype": "int64"}),
        Case("extent_of", [image], lambda: np.asarray(image.shape[2]), {"axis": 2}),
        Case("extents", [], lambda: np.asarray([7, -3, 1 << 40, 0, 5]),
             {"values": (7, -3, 1 << 40, 0, 5), "dtype": "int64", "shape": (5,)}),
    ]  # fmt: skip


def _reversed_sequences(x: Array) -> Array:
    result = x.copy()
    result[:, 0, :2] = x[:, 0, 1::-1]
    result[:, 2, :3] = x[:, 2, 2::-1]
    return result


def indexing_cases() -> list[Case]:
    """Return cases of operators that select by index, with some indices out of range."""
    x = normal(4, 5, 3)
    picks = np.asarray([[0, 3], [2, 1]], np.int64)
    aligned = integers(-5, 5, 4, 2, 3, dtype="int64")
    pairs = np.asarray([[0, 3, -1], [4, 0, -5]], np.int64)
    far = np.asarray([-9, 2, 99], np.int32)
    batched = np.asarray([[0], [4], [2], [2]], np.int32)
    updates = normal(3, 3, seed=3)
    ordered = normal(4, 2, 3, seed=4)
    return [
        Case("take", [x, picks], lambda: np.take(x, picks, 1), {"axis": 1}),
        Case("take", [x, np.asarray(2, np.int32)], lambda: x[:, 2], {"axis": 1}, label="scalar"),
        Case("take", [x, far], lambda: np.take(x, far, 0, mode="clip"), {"axis": 0}, label="clip"),
        Case("take", [x, far], lambda: np.take(x, far, 2, mode="wrap"), {"axis": 2, "mode": "wrap"}, label="wrap"),
        Case("take", [x, picks], lambda: np.take(x, picks), {}, label="flat"),
        Case("take", [x, batched], lambda: np.take_along_axis(x, batched[:, :, None], 1),
             {"axis": 1, "batch_dims": 1}, label="batched"),
        *_sorted_cases(),
        Case("gather", [x, aligned], ort("GatherElements", x, aligned, axis=1), {"axis": 1}),
        Case("gather_nd", [x, pairs], ort("GatherND", x, pairs.T.copy()), {}),
        Case("scatter_elements", [x, aligned, ordered],
             ort("ScatterElements", x, aligned, ordered, axis=1, reduction="add"),
             {"axis": 1, "reduction": "add"}, relative=1e-6),
        Case("scatter_elements", [x, aligned[:, :1], ordered[:, :1]],
             ort("ScatterElements", x, aligned[:, :1], ordered[:, :1], axis=1), {"axis": 1}, label="update"),
        Case("scatter_nd", [x, pairs, updates], ort("ScatterND", x, pairs.T.copy(), updates), {}),
        Case("scatter_nd", [x, pairs, updates], ort("ScatterND", x, pairs.T.copy(), updates, reduction="max"),
             {"mode": "max"}, label="max"),
        Case("one_hot", [np.asarray([[0, 2], [3, -1]], np.int64), np.float32(5), np.float32(-1)],
             lambda: np.where(np.arange(3)[None, :, None] == np.asarray([[0, 2], [3, -1]])[:, None], 5, -1)
             .astype(np.float32), {"depth": 3, "axis": 1}),
    ]  # fmt: skip


def _sorted_cases() -> list[Case]:
    ties = integers(0, 4, 3, 7, 2)
    real = np.asarray([[1.0, np.nan, -np.inf, 1.0, np.inf, np.nan, 0.0, -0.0]], np.float32)
    cases = []
    for label, x, k, axis, up in (
        ("ties", ties, 3, 1, False), ("ties, smallest", ties, 4, 1, True), ("all", ties, 2, 2, False),
        ("first axis", ties, 1, 0, True), ("bytes", ties.astype(np.uint8), 5, 1, False), ("NaN", real, 6, 1, False),
        ("NaN, smallest", real, 6, 1, True),
    ):  # fmt: skip
        places = _ranked(x, k, axis, up)
        attrs = {"k": k, "axis": axis, "is_ascend": up}
        values = np.take_along_axis(x, places, axis)
        cases += [
            Case("topk", [x], lambda values=values: values, attrs, label=f"{label}, values"),
            Case("topk", [x], lambda places=places: places, {**attrs, "ret_type": "indices", "dtype": "int64"},
                 label=f"{label}, places"),
        ]  # fmt: skip
    return cases


def _ranked(x: Array, k: int, axis: int, up: bool) -> Array:
    """Return the indices of the first `k` elements in stable sorted order; NaN ranks above all numbers."""
    wide = x.astype(np.float64)
    is_nan = np.isnan(wide)
    keys = np.where(is_nan, np.inf, wide) if up else np.where(is_nan, -np.inf, -wide)
    order = np.lexsort((is_nan if up else ~is_nan, keys), axis=axis)
    return np.take(order, range(k), axis)


def nn_cases() -> list[Case]:
    """Return cases of normalizations and activations with parameters."""
    x = normal(2, 6, 5, 4) * 3
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    c, d = normal(6, seed=5), normal(6, seed=6)
    row, beside, short = normal(3, 700) * 4, normal(2, 9, 70) * 4, normal(3, 70, 11) * 4
    gamma, beta = normal(700, seed=7), normal(700, seed=8)
    lrn = {"size": 5, "alpha": 0.01, "beta": 0.75, "bias": 1.0}
    return [
        Case("nn.bias_add", [x, c], lambda: x + c[:, None, None]),
        Case("nn.bias_add", [last, c], lambda: last + c, {"axis": -1}, label="last"),
        Case("nn.prelu", [x, c], lambda: np.where(x > 0, x, x * c[:, None, None])),
        Case("nn.softmax", [row], ort("Softmax", row), relative=1e-6),
        Case("nn.softmax", [short], ort("Softmax", short), relative=1e-6, label="short"),
        Case("nn.log_softmax", [short], ort("LogSoftmax", short), relative=1e-6, label="short"),
        Case("nn.softmax", [x], ort("Softmax", x, axis=1), {"axis": 1}, relative=1e-6, label="axis1"),
        Case("nn.log_softmax", [row], ort("LogSoftmax", row), relative=1e-6),
        Case("nn.softmax", [beside], ort("Softmax", beside, axis=1), {"axis": 1}, relative=1e-6, label="side-by-side"),
        Case("nn.softmax", [beside], ort("Softmax", beside, axis=0), {"axis": 0}, relative=1e-6, label="axis0"),
        Case("nn.log_softmax", [beside], ort("LogSoftmax", beside, axis=1), {"axis": 1}, relative=1e-6,
             label="side-by-side"),
        Case("nn.layer_norm", [row, gamma, beta], ort("LayerNormalization", row, gamma, beta), relative=2e-6),
        Case("nn.instance_norm", [x, c, d], ort("InstanceNormalization", x, c, d), relative=2e-6),
        Case("nn.instance_norm", [last, c, d],
             lambda: ort("InstanceNormalization", x, c, d)().transpose(0, 2, 3, 1), {"axis": 3}, relative=2e-6,
             label="last"),
        Case("nn.group_norm", [x, c, d], ort("GroupNormalization", x, c, d, num_groups=3, opset=21),
             {"num_groups": 3}, relative=2e-6),
        *_one_element_cases(),
        Case("nn.l2_normalize", [x], lambda: x / np.sqrt(np.sum(x * x, axis=(2, 3), keepdims=True)),
             {"eps": 1e-12, "axis": (2, 3)}, relative=2e-6),
        Case("nn.lrn", [x], ort("LRN", x, **lrn), lrn, relative=1e-6),
        Case("nn.lrn", [last], lambda: ort("LRN", x, **{**lrn, "size": 3, "beta": 0.6})().transpose(0, 2, 3, 1),
             {**lrn, "size": 3, "beta": 0.6, "axis": 3}, relative=1e-6, label="last"),
    ]  # fmt: skip


def _one_element_cases() -> list[Case]:
    """Return normalizations of rows of one element, and of one channel."""
    cases = []
    for shape in ((2, 3, 1), (1, 3, 1), (2, 1, 1), (1, 3, 1, 1), (2, 3, 2, 1), (2, 3, 1, 1, 1)):
        x, c, d = normal(*shape), normal(shape[1], seed=5), normal(shape[1], seed=6)
        last, label = np.ascontiguousarray(np.moveaxis(x, 1, -1)), f"one of {shape}"
        norm = ort("InstanceNormalization", x, c, d)
        grouped = ort("GroupNormalization", x, c, d, num_groups=shape[1], opset=21)
        cases += [
            Case("nn.instance_norm", [x, c, d], norm, relative=1e-5, label=label),
            Case("nn.instance_norm", [last, c, d], lambda norm=norm: np.moveaxis(norm(), 1, -1), {"axis": -1},
                 relative=1e-5, label=f"{label}, last"),
            Case("nn.group_norm", [x, c, d], grouped, {"num_groups": shape[1]}, relative=1e-5, label=label),
        ]  # fmt: skip
    return cases


def _pool(kind: str, x: Array, layout: str, label: str, onnx: dict[str, Any], attrs: dict[str, Any]) -> Case:
    """Return a case of a pool whose NCHW form `onnx` describes; `attrs` is Relay's."""
    rank = x.ndim - 2
    expected = ort({"max": "MaxPool", "avg": "AveragePool"}[kind], x, opset=19, **onnx)
    given = x
    run = expected
    if layout[-1] == "C":
        given = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        run = lambda: np.moveaxis(expected(), 1, -1)  # noqa: E731
    tolerance = 0.0 if kind == "max" else 1e-6
    return Case(f"nn.{kind}_pool{rank}d", [given], run, {**attrs, "layout": layout}, relative=tolerance, label=label)


def pool_cases() -> list[Case]:
    """Return cases of pooling in both layouts."""
    x = normal(2, 5, 11, 9)
    many = normal(1, 70, 9, 8)
    cases = []
    for layout in ("NCHW", "NHWC"):
        for kind in ("max", "avg"):
            for data, label, size, stride, pads in (
                (x, "plain", 2, 2, (0, 0, 0, 0)), (x, "same", 3, 1, (1, 1, 1, 1)), (x, "uneven", 3, 2, (0, 1, 2, 1)),
                (many, "large", 5, 2, (2, 2, 2, 2)), (many, "wide", 6, 6, (0, 0, 0, 0)),
            ):  # fmt: skip
                onnx = {"kernel_shape": [size, size], "strides": [stride, stride], "pads": pads}
                attrs = {"pool_size": (size, size), "strides": (stride, stride), "padding": pads}
                cases.append(_pool(kind, data, layout, f"{label}-{layout}", onnx, attrs))
        pads = (1, 0, 0, 1)
        onnx = {"kernel_shape": [3, 2], "strides": [2, 3], "pads": pads, "ceil_mode": 1}
        attrs = {"pool_size": (3, 2), "strides": (2, 3), "padding": pads, "ceil_mode": True}
        cases.append(_pool("max", x, layout, f"ceil-{layout}", onnx, attrs))
        onnx = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": (1, 1, 1, 1), "count_include_pad": 1}
        attrs = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1), "count_include_pad": True}
        cases.append(_pool("avg", x, layout, f"padding-counts-{layout}", onnx, attrs))
        onnx = {"kernel_shape": [3, 3], "dilations": [2, 3], "pads": (1, 1, 1, 1)}
        attrs = {"pool_size": (3, 3), "dilation": (2, 3), "padding": (1, 1, 1, 1)}
        cases.append(_pool("max", x, layout, f"dilated-{layout}", onnx, attrs))
    holes = np.asarray([[[1, np.nan, 3, 2, np.nan, np.nan, 5, -np.inf, np.nan]]], np.float32)
    for size, wanted in ((2, [1, 3, 3, 2, -np.inf, 5, 5, -np.inf]), (3, [3, 3, 3, 2, 5, 5, 5]), (9, [5])):
        cases.append(Case("nn.max_pool1d", [holes], lambda wanted=wanted: np.float32([[wanted]]),
                          {"pool_size": (size,)}, label=f"NaN-{size}"))  # fmt: skip
    cases += [
        Case("nn.global_max_pool2d", [holes[..., None]], lambda: np.float32(5).reshape(1, 1, 1, 1), label="NaN"),
        _pool("max", x[0], "NCW", "one", {"kernel_shape": [3]}, {"pool_size": (3,)}),
        _pool("avg", x[None, 0], "NCHW", "two", {"kernel_shape": [3, 3]}, {"pool_size": (3, 3)}),
        _pool("avg", normal(1, 2, 4, 5, 6), "NDHWC", "three", {"kernel_shape": [2, 3, 2], "pads": (0, 1, 1, 1, 1, 0)},
              {"pool_size": (2, 3, 2), "padding": (0, 1, 1, 1, 1, 0)}),
        Case("nn.global_avg_pool2d", [x], ort("GlobalAveragePool", x), relative=1e-6),
        Case("nn.global_max_pool2d", [x], ort("GlobalMaxPool", x)),
        Case("nn.adaptive_avg_pool2d", [x], ort("GlobalAveragePool", x), {"output_size": (1, 1)}, relative=1e-6),
        Case("nn.adaptive_max_pool2d", [x], lambda: _adaptive(x, (4, 2)), {"output_size": (4, 2)}, label="uneven"),
        Case("nn.max_pool2d", [integers(-128, 128, 1, 2, 4, 4, dtype="int8")],
             lambda: integers(-128, 128, 1, 2, 4, 4, dtype="int8").reshape(1, 2, 2, 2, 2, 2).max((3, 5)),
             {"pool_size": (2, 2), "strides": (2, 2)}, label="int8"),
    ]  # fmt: skip
    return cases


def _adaptive(x: Array, output: tuple[int, int]) -> Array:
    result = np.empty((*x.shape[:2], *output), x.dtype)
    for row in range(output[0]):
        for column in range(output[1]):
            low = [k * size // count for k, size, count in zip((row, column), x.shape[2:], output, strict=True)]
            high = [
                math.ceil((k + 1) * size / count)
                for k, size, count in zip((row, column), x.shape[2:], output, strict=True)
            ]
            result[..., row, column] = x[..., low[0] : high[0], low[1] : high[1]].max((2, 3))
    return result


def all_cases() -> list[Case]:
    """Return every case."""
    return [
        *unary_cases(), *binary_cases(), *shape_cases(), *indexing_cases(), *nn_cases(), *pool_cases(),
    ]  # fmt: skip

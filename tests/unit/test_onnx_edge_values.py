"""ONNX operators on infinities, NaN and zeros, and Resize at positions between elements, as ONNX defines them.

Where ONNX's reference evaluator and ONNX Runtime disagree, the expected result follows the text of the specification;
comments name the one that agrees with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlfc
from mlfc.frontend.onnx import import_onnx
from mlfc.relay import ir
from mlfc.target.features import Features
from mlfc.tir import interpreter
from mlfc.transform.lower_group import lower_group
from tests.relay_run import run_main

Array = npt.NDArray[Any]
INF, NAN = np.inf, np.nan


def model_of(
    operator: str,
    inputs: Mapping[str, Array | None],
    *,
    known: Sequence[str] = (),
    outputs: int = 1,
    opset: int = 19,
    **attrs: Any,
) -> tuple[bytes, dict[str, Array]]:
    """Return a model of one node and its inputs; `known` inputs are initializers, None ones are omitted."""
    given = {name: array for name, array in inputs.items() if array is not None}
    names = [name if name in given else "" for name in inputs]
    free = {name: array for name, array in given.items() if name not in known}
    node = helper.make_node(operator, names, [f"y{index}" for index in range(outputs)], **attrs)
    graph = helper.make_graph(
        [node], "one",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in free.items()],
        [onnx.ValueInfoProto(name=f"y{index}") for index in range(outputs)],
        [numpy_helper.from_array(given[name], name) for name in known],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]).SerializeToString(), free


def run(operator: str, inputs: Mapping[str, Array | None], **options: Any) -> list[Array]:
    """Return the outputs of the model that `model_of` returns."""
    model, free = model_of(operator, inputs, **options)
    module, params = import_onnx(model, "one")
    return run_main(module, {**params, **free})


def test_functions_of_large_negative_numbers_keep_their_digits() -> None:
    x = np.array([-80.0, -30.5, -17.0, -10.0, -3.0, -1e-6, 0.5, 20.0, 80.0])
    exact = np.logaddexp(0, x)
    for operator, wanted in (("Softplus", exact), ("Mish", x * np.tanh(exact))):
        for dtype, tolerance in (("float32", 5e-7), ("float64", 1e-15)):
            (found,) = run(operator, {"x": x.astype(dtype)}, opset=22)
            np.testing.assert_allclose(found, wanted, rtol=tolerance, err_msg=f"{operator} of {dtype}")


def test_casts_round_once_and_convert_as_x86_64() -> None:
    x = np.array(
        [65519.999999, 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8 + 2.0**-40, 1.0625 + 2.0**-40, -(2.0**-25) * 1.001]
    )
    whole = np.array([2**62 + 2**54 + 1, 2**24 + 2**16 + 1, -5], np.int64)
    beyond = floats(300.7, -1.5, 3e9, -3e9, 1e30, INF, -INF, NAN)
    low, lower = -(2**31), -(2**63)
    expected = (
        (x, TensorProto.FLOAT16, x.astype(np.float16)),
        (x[1:4], TensorProto.BFLOAT16, [1.0, 1.0078125, 1.0625]),
        (x[3:4], TensorProto.FLOAT8E4M3FN, [1.125]),
        (whole, TensorProto.BFLOAT16, [2.0**62 + 2.0**55, 2.0**24 + 2.0**17, -5.0]),
        (beyond, TensorProto.INT8, [44, -1, 0, 0, 0, 0, 0, 0]),
        (beyond, TensorProto.UINT16, [300, 65535, 0, 0, 0, 0, 0, 0]),
        (beyond, TensorProto.INT32, [300, -1, low, low, low, low, low, low]),
        (beyond, TensorProto.INT64, [300, -1, 3 * 10**9, -3 * 10**9, lower, lower, lower, lower]),
        (beyond, TensorProto.UINT64, [300, 2**64 - 1, 3 * 10**9, 2**64 - 3 * 10**9, 0, 0, 2**63, 2**63]),
    )
    for given, code, wanted in expected:
        for known in ((), ("x",)):  # also with constant folding
            (found,) = run("Cast", {"x": given}, known=known, to=code)
            np.testing.assert_array_equal(found.astype(np.asarray(wanted).dtype), wanted, err_msg=str(code))


def floats(*values: float) -> Array:
    return np.asarray(values, np.float32)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([INF, 1, 2], INF), ([INF, -INF, 0], INF), ([INF, INF], INF), ([1e3, -INF], 1e3), ([NAN, INF], NAN),
        ([-INF, -INF], -INF),  # the logarithm of zero; the reference evaluator subtracts infinities
        ([1e3, 1e3], 1e3 + math.log(2)),
    ],
)  # fmt: skip
def test_log_sum_exp_of_infinities(row: list[float], expected: float) -> None:
    (result,) = run("ReduceLogSumExp", {"x": floats(*row), "axes": np.asarray([0])}, known=["axes"], keepdims=0)
    np.testing.assert_allclose(result, np.float32(expected), rtol=1e-6)


def test_sign_of_nan_is_nan() -> None:
    (result,) = run("Sign", {"x": floats(NAN, INF, -INF, 0.0, -0.0, 1e-45)})
    np.testing.assert_array_equal(result, floats(NAN, 1, -1, 0, 0, 1))


@pytest.mark.parametrize(
    ("x", "codes", "scale", "zero_point"),
    [
        # the definition divides zero by zero; this is ONNX Runtime's result
        (floats(0, 0, 0), [0, 0, 0], 1.0, 0),
        (floats(1, 2, 255), [1, 2, 255], 1.0, 0), (floats(-255, 0, -1), [0, 255, 254], 1.0, 255),
        (floats(-INF, 1, 2), [0, 255, 255], INF, 255), (floats(INF, 1, 2), [0, 0, 0], INF, 0),
        (floats(1e-45, 0, 0), [255, 0, 0], 0.0, 255),
    ],
)  # fmt: skip
def test_dynamic_quantization_without_a_range(x: Array, codes: list[int], scale: float, zero_point: int) -> None:
    found = run("DynamicQuantizeLinear", {"x": x}, outputs=3, opset=11)
    np.testing.assert_array_equal(found[0], np.asarray(codes, np.uint8))
    np.testing.assert_array_equal(found[1], np.float32(scale))
    np.testing.assert_array_equal(found[2], np.uint8(zero_point))


@pytest.mark.parametrize(
    ("row", "last", "place"),
    [
        ([1, NAN, 2, NAN], 0, 1),
        ([1, NAN, 2, NAN], 1, 3),
        ([INF, NAN], 0, 1),
        ([-INF, -INF], 0, 0),
        ([-INF, -INF], 1, 1),
    ],
)
def test_nan_is_the_extreme(row: list[float], last: int, place: int) -> None:
    """Treat NaN as the extreme, as numpy and ONNX Runtime do; only its Hardmax finds no maximum beside a NaN."""
    x = floats(*row)
    for operator, sign in (("ArgMax", 1), ("ArgMin", -1)):
        (found,) = run(operator, {"x": x * np.float32(sign)}, axis=0, keepdims=0, select_last_index=last)
        assert int(found) == place
    for operator, extreme in (("ReduceMax", np.max), ("ReduceMin", np.min)):
        (found,) = run(operator, {"x": x}, keepdims=0)
        np.testing.assert_array_equal(found, extreme(x))
    if not last:
        (found,) = run("Hardmax", {"x": x}, axis=0)
        np.testing.assert_array_equal(found, np.eye(len(row), dtype=np.float32)[place])


def test_limits_of_clip_have_defaults_as_in_onnx_runtime() -> None:
    """Use the largest finite number since opset 6; for float16 its own since opset 12, and no limit before."""
    for dtype, opsets in (("float32", (6, 11, 13)), ("float64", (12, 13)), ("float16", (12, 13))):
        x = np.asarray([INF, -INF, NAN, 1], dtype)
        largest = np.finfo(dtype).max
        for opset in opsets:
            (found,) = run("Clip", {"x": x}, opset=opset)
            np.testing.assert_array_equal(found, np.asarray([largest, -largest, NAN, 1], dtype))
    for opset in (1, 6, 11):
        x = np.asarray([INF, -INF, NAN, 1], np.float16 if opset > 1 else np.float32)
        (found,) = run("Clip", {"x": x}, opset=opset)
        np.testing.assert_array_equal(found, x)
    for known in ([], ["low", "high"]):
        limits = {"x": floats(INF, -INF, NAN, 1), "low": np.float32(0), "high": np.float32(NAN)}
        (found,) = run("Clip", limits, known=known, opset=13)
        np.testing.assert_array_equal(found, floats(INF, 0, NAN, 1))


def test_clip_has_infinite_limits() -> None:
    for low, high, wanted in ((INF, None, np.finfo(np.float32).max), (None, -INF, -INF), (INF, INF, INF)):
        ends = [None if end is None else np.float32(end) for end in (low, high)]
        for known in ([], ["low", "high"]):
            inputs = {"x": floats(1, -INF, INF), "low": ends[0], "high": ends[1]}
            names = [name for name in known if inputs[name] is not None]
            (found,) = run("Clip", inputs, known=names, opset=13)
            np.testing.assert_array_equal(found, np.full(3, wanted, np.float32))


def test_positions_of_maxima_skip_nan() -> None:
    x = floats(3, NAN, 8, NAN, 1, NAN, NAN, 9).reshape(1, 1, 2, 4)
    largest, places = run("MaxPool", {"x": x}, outputs=2, opset=22, kernel_shape=[2, 2])
    np.testing.assert_array_equal(largest.reshape(-1), [3, 8, 9])
    np.testing.assert_array_equal(places.reshape(-1), [0, 2, 7])


def test_squares_of_float16_do_not_overflow() -> None:
    x = np.asarray([[300, 400]], np.float16)
    for operator, attrs, opset, wanted in (
        ("ReduceL2", {"axes": [1]}, 13, [500]), ("LpNormalization", {}, 22, [0.6, 0.8]),
        ("LpPool", {"kernel_shape": [2]}, 18, [500]),
    ):  # fmt: skip
        (found,) = run(operator, {"x": x[None] if operator == "LpPool" else x}, opset=opset, **attrs)
        assert found.dtype == np.float16
        np.testing.assert_array_equal(found.reshape(-1), np.asarray(wanted, np.float16))


HALF = np.random.default_rng(5).normal(scale=300, size=(2, 4, 6)).astype(np.float16)
FOUR = np.asarray([0.5, -1, 2, 0.25], np.float16)
SIX = np.arange(1, 7).astype(np.float16)


@pytest.mark.parametrize(
    ("operator", "inputs", "attrs"),
    [
        ("RMSNormalization", [HALF, SIX], {}),
        ("RMSNormalization", [HALF * 0, SIX], {"epsilon": 1e-12}),
        ("SimplifiedLayerNormalization", [HALF, SIX], {}),
        ("MeanVarianceNormalization", [HALF[None]], {}),
        ("BatchNormalization", [HALF, FOUR, FOUR, FOUR, np.zeros_like(FOUR)], {"epsilon": 1e-8}),
        ("BatchNormalization", [HALF, FOUR, FOUR, FOUR, FOUR], {"training_mode": 1}),
        ("Mean", [HALF * 100, HALF * 100, HALF * 100], {}),
        ("Gemm", [HALF[0], HALF[1].T, SIX[:4]], {"alpha": 0.125, "beta": 0.5}),
        ("Gemm", [HALF[0] * 0, HALF[1].T, SIX[:4]], {"alpha": 1e5}),
        ("HardSigmoid", [HALF * 0], {"alpha": 1e6, "beta": 0.25}),
        ("Celu", [HALF], {"alpha": 1e5}),
        ("Selu", [HALF * 0 - 1], {"alpha": 1e6, "gamma": 1e-6}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_float16_is_rounded_once_where_a_step_may_overflow(
    operator: str, inputs: list[Array], attrs: dict[str, Any]
) -> None:
    """Compare with float32: results that float16 can represent must not depend on steps that it cannot."""
    results = []
    for dtype in (np.float16, np.float32):
        given = {f"x{index}": array.astype(dtype) for index, array in enumerate(inputs)}
        model, free = model_of(operator, given, outputs=3 if "training_mode" in attrs else 1, opset=23, **attrs)
        results.append(mlfc.compile(model, "llvm").run(free).values())
    for half, single in zip(*results, strict=True):
        assert half.dtype == np.float16
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(half, single.astype(np.float16), rtol=3e-3, atol=1e-3)


def test_antialiased_integers_round_after_each_axis_and_saturate() -> None:
    """Round as ONNX Runtime does; without antialias, cubic results are rounded once, according to the definition."""
    for dtype, largest, wanted in (
        (np.uint8, 255, [[100, 122, 155, 128, 100, 133, 155], [140, 92, 25, 73, 144, 131, 115]]),
        (np.int32, 9999, [[3686, 4785, 6072, 5000, 3927, 5214, 6313], [6155, 2722, -1294, 1501, 5737, 5269, 4429]]),
    ):
        x = (np.indices((5, 4)).sum(0) % 2 * largest).astype(dtype)[None, None]
        x[0, 0, 2, 1] = 100
        inputs = {"x": x, "roi": None, "scales": None, "sizes": np.array([1, 1, 3, 7])}
        (found,) = run("Resize", inputs, known=["sizes"], mode="cubic", antialias=1)
        np.testing.assert_array_equal(found[0, 0, :2], wanted)
    x = np.array([[[[0, 255, 255, 0, 0, 255]]]], np.uint8)
    inputs = {"x": x, "roi": None, "scales": np.float32([1, 1, 1, 2]), "sizes": None}
    (found,) = run("Resize", inputs, known=["scales"], mode="cubic")
    (exact,) = run("Resize", {**inputs, "x": x.astype(np.float32)}, known=["scales"], mode="cubic")
    assert exact.min() < -20
    np.testing.assert_array_equal(found, np.clip(np.rint(exact), 0, 255))


def test_vectors_of_norm_zero_stay() -> None:
    for power, wanted in ((1, [[0, 0], [0.5, 0.5]]), (2, [[0, 0], [0, 0]])):
        (found,) = run("LpNormalization", {"x": floats(0, 0, 1e-40, 1e-40).reshape(2, 2)}, opset=22, p=power)
        np.testing.assert_allclose(found, wanted, atol=1e-30)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_powers_of_integers_are_exact_or_wrap(dtype: str) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    edges = np.asarray([low, high, 0, 1, -1, 2, 3, -7, 31, 62], dtype)
    base, exponent = (grid.ravel() for grid in np.meshgrid(edges, edges))
    (found,) = run("Pow", {"x": base, "y": exponent}, opset=15)
    with np.errstate(all="ignore"):
        expected = np.power(base, np.maximum(exponent, 0))
    below = np.where(base == 1, 1, np.where(base == -1, np.where(exponent % 2, -1, 1), 0))
    np.testing.assert_array_equal(found, np.where(exponent < 0, below, expected).astype(dtype))


# Resize ----------------------------------------------------------------------------------------------------

ROUNDINGS = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round_prefer_floor": lambda at: math.ceil(at - Fraction(1, 2)),
    "round_prefer_ceil": lambda at: math.floor(at + Fraction(1, 2)),
}


def position(mode: str, x: int, size: int, out: int, scale: Fraction) -> Fraction:
    """Return the position in the input for element x of the output, according to ONNX's text."""
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return Fraction(x * (size - 1), out - 1) if out > 1 else Fraction(0)
    if mode == "pytorch_half_pixel" and out == 1:
        return Fraction(0)
    at = (x + Fraction(1, 2)) / scale - Fraction(1, 2)
    if mode == "half_pixel_symmetric":
        return Fraction(size, 2) * (1 - out / (scale * size)) + at
    return at


MODES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")


@pytest.mark.parametrize(("mode", "rounding"), list(product(MODES, ROUNDINGS)))
def test_nearest_elements_are_those_that_the_definition_names(mode: str, rounding: str) -> None:
    """Use exact positions: in floats, one of each row may be on the wrong side of an element."""
    sizes = [(7, 9), (5, 3), (6, 4), (10, 23), (3, 9), (9, 1)]
    for size, out in sizes:
        x = np.arange(size, dtype=np.float32).reshape(1, 1, 1, size)
        target = np.asarray([1, 1, 1, out])
        (found,) = run("Resize", {"x": x, "roi": None, "scales": None, "sizes": target}, known=["sizes"],
                       mode="nearest", nearest_mode=rounding, coordinate_transformation_mode=mode)  # fmt: skip
        exact = [ROUNDINGS[rounding](position(mode, k, size, out, Fraction(out, size))) for k in range(out)]
        np.testing.assert_array_equal(found.ravel(), np.clip(exact, 0, size - 1), f"{size} to {out}")


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", MODES)
def test_aspect_ratio_is_kept(mode: str, policy: str) -> None:
    size, wanted = (5, 7), (8, 3)
    ratios = [Fraction(out, extent) for out, extent in zip(wanted, size, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    out = [math.floor(scale * extent + Fraction(1, 2)) for extent in size]
    x = np.arange(35, dtype=np.float32).reshape(1, 1, *size)
    (found,) = run("Resize", {"x": x, "roi": None, "scales": None, "sizes": np.asarray(wanted)}, known=["sizes"],
                   mode="nearest", nearest_mode="floor", coordinate_transformation_mode=mode, axes=[2, 3],
                   keep_aspect_ratio_policy=policy)  # fmt: skip
    rows, columns = (
        np.clip([math.floor(position(mode, k, extent, count, scale)) for k in range(count)], 0, extent - 1)
        for extent, count in zip(size, out, strict=True)
    )
    np.testing.assert_array_equal(found[0, 0], x[0, 0][np.ix_(rows, columns)])


# convolutions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [Features(vector_bytes=0, dot4=False), Features()], ids=["plain", "vectors"])
@pytest.mark.parametrize("depthwise", [False, True])
def test_padding_meets_no_infinite_weight(target: Features, depthwise: bool) -> None:
    """Skip padding, as ONNX Runtime does; the reference evaluator multiplies zeros with the weights."""
    x = np.arange(1, 61, dtype=np.float32).reshape(1, 4, 5, 3)
    weights = np.ones((3, 3, 3, 1 if depthwise else 3), np.float32)
    weights[0, 0] = INF
    data = ir.Var("x", ir.TensorType(x.shape, "float32"))
    call = ir.call("nn.conv2d", [data, ir.const(weights)], channels=3, kernel_size=(3, 3), padding=(1, 1, 1, 1),
                   data_layout="NHWC", kernel_layout="HWOI" if depthwise else "HWIO",
                   groups=3 if depthwise else 1)  # fmt: skip
    group = lower_group(ir.Function((data,), call, {"Primitive": 1}), target)
    result = interpreter.run(group.prim, [x], group.constants)
    assert np.all(np.isinf(result[:, 1:, 1:]))
    assert np.all(np.isfinite(result[:, 0]))
    assert np.all(np.isfinite(result[:, :, 0]))


def test_convolutions_keep_weights_of_all_dtypes() -> None:
    """Check bfloat16, which numpy does not treat as a float, and int64 values that exceed int32."""
    x = np.arange(16).reshape(1, 2, 2, 4)
    for dtype, wanted in (("bfloat16", np.arange(12) / 4), ("int64", np.arange(12) + (1 << 33))):
        kind = ir.dtypes.to_numpy(dtype)
        weights = wanted.astype(kind).reshape(1, 1, 4, 3)
        data = ir.Var("x", ir.TensorType(x.shape, dtype))
        call = ir.call("nn.conv2d", [data, ir.const(weights)], channels=3, kernel_size=(1, 1), data_layout="NHWC",
                       kernel_layout="HWIO")  # fmt: skip
        group = lower_group(ir.Function((data,), call, {"Primitive": 1}), Features(vector_bytes=0, dot4=False))
        result = interpreter.run(group.prim, [x.astype(kind)], group.constants).reshape(4, 3)
        np.testing.assert_array_equal(result, (x.reshape(4, 4) @ wanted.reshape(4, 3)).astype(kind))

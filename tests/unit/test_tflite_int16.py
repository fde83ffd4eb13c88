"""TFLite operators on 16-bit data against LiteRT's reference kernels, bit for bit.

All cases are operators of one model, which compiles in the process.
"""

from __future__ import annotations

import numpy as np
import pytest
import tflite

import mlfc
from mlfc.archive.read.load import load_factory
from tests.int16_cases import Int16Cases, int16_cases
from tests.tflite_builder import T
from tests.tflite_cases import Case
from tests.unit.test_tflite_ops import Samples, check, inputs_of, model_of, pairs

CASES = int16_cases(7, 224)
FAR = 1 << 10  # number of products in sums that may exceed 32 bits


def _run(cases: list[Case], *fed: dict[str, np.ndarray], target: str = "llvm") -> Samples:
    mod, params = mlfc.import_model(model_of(cases))
    model = load_factory(mlfc.build(mod, params=params, target=target))
    return [(item, model.run(item)) for item in fed]


@pytest.fixture(scope="module")
def samples() -> Samples:
    rng = np.random.default_rng(5)
    return _run(CASES, *(inputs_of(CASES, rng) for _ in range(2)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operator_is_bit_exact(case: Case, samples: Samples) -> None:
    assert not case.tolerance
    check(case, samples)


def test_generated_c_agrees(samples: Samples, quick_builds: None) -> None:
    fed, expected = samples[0]
    kinds = ("conv_same", "dense_one", "TANH_2", "softmax_1", "DIV_int16", "REDUCE_PROD_1", "BILINEAR_1", "gelu_True_1")
    cases = [case for case in CASES if any(kind in case.name for kind in kinds)]
    ((_, found),) = _run(cases, {name: fed[name] for case in cases for name in case.inputs}, target="c")
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name], name)


def _far_cases() -> list[Case]:
    """Return layers whose sums exceed 32 bits if data and weights agree in sign."""
    c = Int16Cases(np.random.default_rng(11))
    weights = T("", (3, FAR), "int8", np.where(np.arange(3 * FAR).reshape(3, FAR) % 3, 127, -127), 0.01)
    wide = T("", (3, FAR), "int16", np.where(np.arange(3 * FAR).reshape(3, FAR) % 5, 32767, -32768), 1e-5)
    spatial = T("", (3, 1, 1, FAR), "int8", weights.value, 0.01)
    for bias in ("int64", "int32"):
        kind = {"QuantizedBiasType": getattr(tflite.TensorType, bias.upper())}
        data = c.t(4, FAR, scale=1e-4)
        start = T("", (3,), bias, np.array([np.iinfo("int32").max, 0, -5], bias), 1e-6)
        result = c.t(4, 3, scale=0.4)
        c.add(f"dense_{bias}", "FULLY_CONNECTED", [data, weights, start], result, "FullyConnectedOptions", kind)
        conv = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1, **kind}
        data, result = c.t(1, 2, 2, FAR, scale=1e-4), c.t(1, 2, 2, 3, scale=0.4)
        c.add(f"conv_{bias}", "CONV_2D", [data, spatial, start], result, "Conv2DOptions", conv)
    c.add("dense_wide", "FULLY_CONNECTED", [c.t(4, FAR, scale=1e-4), wide, None], c.t(4, 3, scale=0.3),
          "FullyConnectedOptions", {"QuantizedBiasType": tflite.TensorType.INT64})  # fmt: skip
    return c.found


def test_sums_beyond_32_bits() -> None:
    cases, rng = _far_cases(), np.random.default_rng(3)
    signs = np.where(np.arange(FAR) % 3, 1, -1)
    rows = np.stack([signs * 32767, signs * -32767, rng.integers(0, 32768, FAR) * signs, np.full(FAR, -32768)])
    fed = {name: rows.reshape(shape).astype(np.int16) for name, shape in _shapes(cases)}
    samples = _run(cases, fed)
    sums = rows.astype(np.int64) @ np.asarray(cases[0].tensors[1].value, np.int64).T
    assert np.abs(sums).max() > np.iinfo("int32").max
    for case in cases:
        check(case, samples)
        assert any(len(np.unique(theirs)) > 2 for _, theirs in pairs(case, samples)), case.name


def _shapes(cases: list[Case]) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (tensor.name, tuple(tensor.shape)) for case in cases for tensor in case.tensors if tensor.name in case.inputs
    ]

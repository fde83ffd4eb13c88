"""Every TFLite operator against LiteRT's reference kernels: integers bit for bit, floats closely.

All cases of a kind are operators of one model, which is compiled once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive import export_model_library_format, load
from mlfc.verify.litert import LiteRtReference
from tests.tflite_builder import Op, T, build
from tests.tflite_cases import Case, Cases, float_cases, quantized_cases

pytestmark = pytest.mark.usefixtures("unoptimized_builds")

QUANTIZED, FLOAT = quantized_cases(7), float_cases(8)
SAMPLES = 3
Samples = list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]


def _value(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], ranges: tuple[float, float]) -> Any:
    if dtype == "float32":
        return rng.uniform(*ranges, shape).astype(np.float32)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def model_of(cases: list[Case]) -> bytes:
    """Return a model whose operators are these cases."""
    return build(
        [tensor for case in cases for tensor in case.tensors],
        [case.op for case in cases],
        [name for case in cases for name in case.inputs],
        [name for case in cases for name in case.op.outputs],
    )


def _run(cases: list[Case], folder: Path) -> Samples:
    """Return inputs and mlfc's results for them, several times."""
    mod, params = mlfc.import_model(model_of(cases))
    archive = folder / "operators.tar"
    export_model_library_format(mlfc.build(mod, params=params, module_name="operators"), archive)
    model, rng, samples = load(archive), np.random.default_rng(5), []
    for _ in range(SAMPLES):
        fed = inputs_of(cases, rng)
        samples.append((fed, model.run(fed)))
    return samples


def inputs_of(cases: list[Case], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return random values for the inputs of the cases."""
    return {
        tensor.name: _value(rng, tensor.dtype, tuple(tensor.shape), case.ranges)
        for case in cases
        for tensor in case.tensors
        if tensor.name in case.inputs
    }


@pytest.fixture(scope="module")
def quantized_samples(unoptimized_builds: None, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return _run(QUANTIZED, tmp_path_factory.mktemp("quantized"))


@pytest.fixture(scope="module")
def float_samples(unoptimized_builds: None, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return _run(FLOAT, tmp_path_factory.mktemp("float"))


def pairs(case: Case, samples: Samples) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each output of a case with LiteRT's."""
    reference = LiteRtReference(model_of([case]))
    for fed, ours in samples:
        theirs = reference.run({name: fed[name] for name in case.inputs})
        for name in case.op.outputs:
            yield np.asarray(ours[name]), theirs[name]


def check(case: Case, samples: Samples) -> None:
    """Fail unless a case's outputs equal LiteRT's within its tolerance."""
    for ours, theirs in pairs(case, samples):
        if case.tolerance:
            largest = max(float(np.abs(theirs).max()), 1e-6)
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=case.tolerance * largest, err_msg=case.name)
        else:
            np.testing.assert_array_equal(ours, theirs, case.name)


@pytest.mark.parametrize("case", QUANTIZED, ids=lambda case: case.name)
def test_quantized_operator_is_bit_exact(case: Case, quantized_samples: Samples) -> None:
    assert not case.tolerance
    check(case, quantized_samples)


@pytest.mark.parametrize("case", FLOAT, ids=lambda case: case.name)
def test_float_operator_is_close(case: Case, float_samples: Samples) -> None:
    check(case, float_samples)


def test_local_response_normalization_has_a_window_around_each_channel(tmp_path: Path) -> None:
    # LiteRT's reference kernel omits the last channel of the window; its default kernel and TensorFlow do not
    cases, radius = Cases(np.random.default_rng(1)), 2
    fields = {"Radius": radius, "Bias": 1.5, "Alpha": 0.3, "Beta": 0.5}
    shape = (2, 3, 4, 7)
    cases.add(
        "lrn", "LOCAL_RESPONSE_NORMALIZATION", [T("", shape)], T("", shape), "LocalResponseNormalizationOptions", fields
    )
    for fed, ours in _run(cases.found, tmp_path):
        x = fed["lrn/in0"].astype(np.float64)
        windows = [(x[..., max(c - radius, 0) : c + radius + 1] ** 2).sum(-1) for c in range(shape[-1])]
        expected = x / np.sqrt(1.5 + 0.3 * np.stack(windows, -1))
        np.testing.assert_allclose(ours["lrn/out0"], expected, rtol=1e-6)


def test_special_values_are_those_of_litert() -> None:
    x = np.asarray([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, 1e-40, 88.8, -104, 20, -0.5, 1], np.float32)
    tensors, ops = [T("x", [12]), T("k", [12], value=x[::-1].copy())], []
    for code in ("MAXIMUM", "MINIMUM"):
        ops += [Op(code, ["x", "k"], [f"{code} constant"]), Op(code, ["k", "x"], [f"{code} variable"])]
    for code in ("RELU", "RELU6", "RELU_N1_TO_1", "HARD_SWISH", "LOGISTIC", "TANH", "GELU", "SIGN", "LOG_SOFTMAX"):
        ops.append(Op(code, ["x"], [code]))
    ops += [Op("SOFTMAX", ["x"], ["SOFTMAX"], "SoftmaxOptions", {"Beta": 1.0}),
            Op("LEAKY_RELU", ["x"], ["LEAKY_RELU"], "LeakyReluOptions", {"Alpha": 0.25})]  # fmt: skip
    outputs = [op.outputs[0] for op in ops]
    data = build([*tensors, *(T(name, [12]) for name in outputs)], ops, ["x"], outputs)
    found, wanted = mlfc.compile(data, "llvm").run({"x": x}), LiteRtReference(data).run({"x": x})
    for name in outputs:
        np.testing.assert_allclose(found[name], wanted[name], 1e-5, 1e-37, err_msg=name)

"""Fourier transforms, windows and filters of ONNX, against numpy and ONNX's own evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import mlfc
from mlfc.errors import MlfcError
from tests.relay_run import run_main

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)


def model(
    operator: str, inputs: dict[str, Array], fixed: dict[str, Any], shape: Any = None, opset: int = 20, **attrs: Any
) -> ModelProto:
    """Return a model of one node; inputs with names like ``_0`` are omitted."""
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in inputs.items()
    ]
    names = ["" if name.startswith("_") else name for name in [*inputs, *fixed]]
    node = helper.make_node(operator, names, ["y"], name="the_node", **attrs)
    constants = [numpy_helper.from_array(np.asarray(fixed[name]), name) for name in fixed if name in names]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph([node], "g", given, [out], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def run(source: ModelProto, inputs: dict[str, Array]) -> Array:
    module, params = mlfc.import_model(source.SerializeToString())
    (found,) = run_main(module, {**inputs, **params})
    return found


def refused(source: ModelProto) -> str:
    with pytest.raises(MlfcError) as error:
        mlfc.import_model(source.SerializeToString())
    return str(error.value)


@pytest.mark.parametrize("length", [1, 4, 6, 7, 11])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("onesided", [0, 1])
def test_transforms_cut_and_fill_the_signal(length: int, parts: int, inverse: int, onesided: int) -> None:
    x = RNG.standard_normal((2, 3, 7, parts)).astype(np.float32)
    for axis in (-2, 1):
        fixed = {"length": np.int64(length), "axis": np.int64(axis)}
        source = model("DFT", {"x": x}, fixed, inverse=inverse, onesided=onesided)
        signal = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
        along = {"n": length, "axis": axis % 4}
        if inverse and onesided:
            expected = np.fft.irfft(signal, **along)[..., None]
        else:
            found = (np.fft.ifft if inverse else np.fft.fft)(signal, **along)
            if onesided:
                found = np.take(found, range(length // 2 + 1), axis % 4)
            expected = np.stack([found.real, found.imag], -1)
        np.testing.assert_allclose(run(source, {"x": x}), expected, rtol=1e-5, atol=1e-5)


def test_a_transform_without_a_length_has_that_of_the_signal() -> None:
    x = RNG.standard_normal((2, 6, 5, 2))
    expected = np.fft.irfft(x[..., 0] + 1j * x[..., 1], axis=1)
    found = run(model("DFT", {"x": x}, {}, opset=17, inverse=1, onesided=1), {"x": x})
    np.testing.assert_allclose(found[..., 0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("onesided", [0, 1])
def test_frames_are_weighted_by_a_window_that_is_known_or_comes_late(late: bool, onesided: int) -> None:
    x = RNG.standard_normal((2, 40, 1)).astype(np.float32)
    window = np.hanning(10).astype(np.float32)
    inputs = {"x": x, "step": np.int64(4), "window": window}
    source = model("STFT", {"x": x}, {"step": np.int64(4), "window": window}, onesided=onesided)
    (expected,) = ReferenceEvaluator(source).run(None, {"x": x})
    if late:
        source.graph.initializer.pop()
        source.graph.input.append(helper.make_tensor_value_info("window", TensorProto.FLOAT, window.shape))
        np.testing.assert_allclose(run(source, {"x": x, "window": window}), expected, rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_allclose(run(source, {"x": inputs["x"]}), expected, rtol=1e-4, atol=1e-5)


def test_what_is_no_signal_is_refused() -> None:
    x = np.zeros((1, 8, 1), np.float32)
    assert "is not one number or two" in refused(model("DFT", {"x": np.zeros((1, 8, 3), np.float32)}, {}))
    assert "holds the parts of a number" in refused(model("DFT", {"x": x}, {"n": np.int64(8), "axis": np.int64(-1)}))
    assert "a transform of -1 elements" in refused(model("DFT", {"x": x}, {"n": np.int64(-1)}))
    assert "a transform of 0 elements" in refused(
        model("DFT", {"x": np.zeros((1, 1, 2), np.float32)}, {}, inverse=1, onesided=1)
    )
    assert run(model("DFT", {"x": np.zeros((0, 8, 1), np.float32)}, {}), {"x": x[:0]}).shape == (0, 8, 2)
    step, length = {"step": np.int64(0)}, {"step": np.int64(1), "_1": 0, "length": np.int64(9)}
    assert "frames of 8 elements every 0" in refused(model("STFT", {"x": x}, step))
    assert "frames of 9 elements every 1" in refused(model("STFT", {"x": x}, length))
    both = {"step": np.int64(1), "window": np.ones(4, np.float32), "length": np.int64(5)}
    assert "a window of 4 elements does not fit frames of 5" in refused(model("STFT", {"x": x}, both))


@pytest.mark.parametrize("operator", ["BlackmanWindow", "HammingWindow", "HannWindow"])
def test_the_stated_length_of_a_window_stands_for_its_size(operator: str) -> None:
    size = {"size": np.array(9)}
    source = model(operator, size, {}, (9,), periodic=0)
    (expected,) = ReferenceEvaluator(source).run(None, size)
    np.testing.assert_allclose(run(source, size), expected, atol=1e-6)
    assert run(model(operator, {}, {"size": np.array(1)}, periodic=0), {}).tolist() == [1.0]
    assert "a window of -1 elements" in refused(model(operator, {}, {"size": np.array(-1)}))


def test_filters_that_exceed_the_spectrum_are_refused() -> None:
    names = ("count", "length", "rate", "low", "high")
    for values in ((8, 16, 8192, 0.0, 2000.0), (3, 64, 16000, 20.0, 7600.0), (40, 16, 8192, 100.0, 4000.0)):
        fixed = dict(zip(names, [*map(np.int64, values[:3]), *map(np.float32, values[3:])], strict=True))
        source = model("MelWeightMatrix", {}, fixed)
        (expected,) = ReferenceEvaluator(source).run(None, {})
        np.testing.assert_allclose(run(source, {}), expected, atol=1e-6)
    for more, message in (({"high": np.float32(9e3)}, "exceed the spectrum"), ({"count": np.int64(0)}, "not possible")):
        assert message in refused(model("MelWeightMatrix", {}, {**fixed, **more}))


def test_bits_keep_their_places_and_a_bool_is_what_is_not_zero() -> None:
    x = np.array([1.0, -2.5, np.nan], np.float32)
    assert run(model("BitCast", {"x": x}, {}, opset=26, to=TensorProto.INT32), {"x": x}).tolist() == [
        *x.view(np.int32).tolist()
    ]
    x = np.array([0, 1, 2, 255], np.uint8)
    assert run(model("BitCast", {"x": x}, {}, opset=26, to=TensorProto.BOOL), {"x": x}).tolist() == [0, 1, 1, 1]
    assert "differ in size" in refused(model("BitCast", {"x": x}, {}, opset=26, to=TensorProto.FLOAT))

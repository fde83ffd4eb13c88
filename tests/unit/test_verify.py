"""Comparing finds planted differences, names the first layer that has one, and agrees where there is none."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlforge
from mlforge.errors import ToolchainError
from mlforge.runtime import TensorInfo
from mlforge.verify import compare, verify, with_all_tensors
from mlforge.verify.difference import difference

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
MODELS = ("digits.onnx", "digits_int8.tflite")


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_of_a_good_model_agrees(name: str) -> None:
    pytest.importorskip("onnxruntime" if name.endswith("onnx") else "ai_edge_litert")
    result = verify(DIGITS / name, samples=3, layers=True)
    assert result.is_within
    assert result.samples == 6
    assert result.first_differing is None
    module, _ = mlforge.import_model(DIGITS / name)
    assert {item.tensor for item in result.outputs} == set(module.output_names)
    assert {item.tensor for item in result.layers} == set(with_all_tensors(module).output_names)


@pytest.mark.parametrize("name", MODELS)
def test_a_planted_difference_is_found_at_its_layer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime" if name.endswith("onnx") else "ai_edge_litert")
    module, _ = mlforge.import_model(DIGITS / name)
    names = with_all_tensors(module).output_names
    # from here on, as in a real fault, the layers differ
    planted = names[len(names) // 2 :]
    real = compare._reference

    class Off:
        def __init__(self, reference: Any) -> None:
            self.reference = reference

        def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
            tensors = self.reference.run(inputs)
            for key in planted:
                tensors[key] = tensors[key] + np.asarray(3, tensors[key].dtype)
            return tensors

    def planted_reference(path: Path, layers: bool) -> tuple[str, Any]:
        title, reference = real(path, layers)
        return title, Off(reference)

    monkeypatch.setattr(compare, "_reference", planted_reference)
    result = verify(DIGITS / name, samples=1, layers=True)
    assert not result.is_within
    assert result.first_differing is not None
    assert result.first_differing.tensor == planted[0]


def test_all_tensors_come_once_in_the_order_of_computation() -> None:
    module, _ = mlforge.import_model(DIGITS / MODELS[0])
    everything = with_all_tensors(module)
    assert len(set(everything.output_names)) == len(everything.output_names) > len(module.output_names)
    assert set(module.output_names) <= set(everything.output_names)
    assert everything.output_names[-1] == module.output_names[-1]


@pytest.mark.parametrize(
    ("ours", "theirs", "largest"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([np.nan, np.inf], [np.nan, np.inf], 0.0),
        ([np.nan, 1.0], [1.0, 1.0], np.inf),
        ([np.inf, 1.0], [-np.inf, 1.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_differences_of_floats(ours: list[float], theirs: list[float], largest: float) -> None:
    item = difference("t", np.array(ours, np.float32), np.array(theirs, np.float32), "s", 0)
    assert item.largest == largest
    assert item.is_within == (largest == 0)


def test_differences_of_integers_do_not_wrap() -> None:
    low, high = np.array([-128], np.int8), np.array([127], np.int8)
    assert difference("t", low, high, "s", 1).largest == 255
    assert difference("t", low, low + np.int8(1), "s", 1).is_within
    assert not difference("t", low, low + np.int8(1), "s", 0).is_within


def test_samples_reach_the_corners_of_the_range() -> None:
    infos = (TensorInfo("q", (4,), "int8", 0.5, 3), TensorInfo("f", (4,), "float32"))
    samples = dict(compare.sample_inputs(infos, 2, seed=5))
    assert list(samples) == ["random 0", "random 1", "minimum", "maximum", "zero point"]
    assert [int(samples[name]["q"][0]) for name in ("minimum", "maximum", "zero point")] == [-128, 127, 3]
    assert [float(samples[name]["f"][0]) for name in ("minimum", "maximum", "zero point")] == [-1, 1, 0]
    again = dict(compare.sample_inputs(infos, 2, seed=5))
    np.testing.assert_array_equal(samples["random 1"]["f"], again["random 1"]["f"])


@pytest.mark.parametrize(("name", "package"), [(MODELS[0], "onnxruntime"), (MODELS[1], "ai_edge_litert.interpreter")])
def test_a_missing_reference_says_what_to_install(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ToolchainError, match=r"not installed.*mlforge\[verify\]"):
        verify(DIGITS / name, samples=1)

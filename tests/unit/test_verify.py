"""Comparisons find planted differences, name the first differing layer, and otherwise report agreement."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.errors import InputError, ToolchainError
from mlfc.runtime import TensorInfo
from mlfc.verify import compare, verify, with_all_tensors
from mlfc.verify.board_layers import with_overlaps
from mlfc.verify.difference import Tolerance, difference
from mlfc.verify.inputs import sample_inputs, why

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
MODELS = ("digits.onnx", "digits_int8.tflite")


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_of_a_good_model_agrees(name: str) -> None:
    pytest.importorskip("onnxruntime" if name.endswith("onnx") else "ai_edge_litert")
    result = verify(DIGITS / name, samples=3, layers=True)
    assert result.is_within
    assert result.samples == 6
    assert result.first_differing is None
    module, _ = mlfc.import_model(DIGITS / name)
    assert {item.tensor for item in result.outputs} == set(module.output_names)
    assert {item.tensor for item in result.layers} == set(with_all_tensors(module).output_names)


@pytest.mark.parametrize("name", MODELS)
def test_a_planted_difference_is_found_at_its_layer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime" if name.endswith("onnx") else "ai_edge_litert")
    module, _ = mlfc.import_model(DIGITS / name)
    names = with_all_tensors(module).output_names
    # as in a real fault, all layers from here on differ
    planted = names[len(names) // 2 :]
    real = compare.open_reference

    class Off:
        def __init__(self, reference: Any) -> None:
            self.reference = reference
            self.output_names = reference.output_names

        def begin(self) -> None:
            pass

        def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
            tensors = self.reference.run(inputs)
            for key in planted:
                tensors[key] = tensors[key] + np.asarray(3, tensors[key].dtype)
            return tensors

    def planted_reference(path: Path, **options: Any) -> tuple[str, Any]:
        title, reference = real(path, **options)
        return title, Off(reference)

    monkeypatch.setattr(compare, "open_reference", planted_reference)
    result = verify(DIGITS / name, samples=1, layers=True)
    assert not result.is_within
    assert result.first_differing is not None
    assert result.first_differing.tensor == planted[0]


def test_an_output_that_only_one_of_the_two_has_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    module, params = mlfc.import_model(DIGITS / MODELS[0])
    mlfc.export_model_library_format(mlfc.build(module, "c", params), tmp_path / "digits.tar")
    model = onnx.load(DIGITS / MODELS[0])
    (name,) = module.output_names
    for node in model.graph.node:
        node.output[:] = ["other" if item == name else item for item in node.output]
    model.graph.output[0].name = "other"
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(InputError, match=f"expected an output '{name}', got 'other' from the reference"):
        verify(tmp_path / "other.onnx", tmp_path / "digits.tar", samples=0)


def test_all_tensors_come_once_in_the_order_of_computation() -> None:
    module, _ = mlfc.import_model(DIGITS / MODELS[0])
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
    item = difference("t", np.array(ours, np.float32), np.array(theirs, np.float32), "s")
    assert item.largest == largest
    assert item.is_within == (largest == 0)


def test_a_difference_without_a_cause_names_operators_that_share_memory() -> None:
    factory = mlfc.compile(mlfc.examples.digits(), "c -mcpu=cortex-m4").factory
    equal, wrong = (difference("y", np.zeros(1), np.full(1, value), "s") for value in (0.0, 1.0))
    shared = "conv2_out shares memory with conv1_out: each byte is read before it is overwritten"
    assert [item.note for item in with_overlaps([equal, wrong], factory)] == ["", shared]


def test_differences_of_integers_do_not_wrap() -> None:
    low, high = np.array([-128], np.int8), np.array([127], np.int8)
    assert difference("t", low, high, "s").largest == 255
    assert not difference("t", low, low + np.int8(1), "s").is_within
    assert difference("t", low, low + np.int8(1), "s", Tolerance(atol=1)).is_within
    wide = np.array([2**62], np.int64)
    assert difference("t", wide, wide + 1, "s").largest == 1
    assert difference("t", np.array([-(2**63)]), np.array([2**63 - 1]), "s").largest == 2.0**64
    large = np.array([2**64 - 1], np.uint64)
    assert difference("t", large, large - np.uint64(1), "s").largest == 1
    assert difference("t", large, large, "s").largest == 0


def test_a_users_tolerance_is_for_each_element() -> None:
    ours, theirs = np.array([1000.1, 0.002], np.float32), np.array([1000.0, 0.001], np.float32)
    assert difference("t", ours, theirs, "s", Tolerance(atol=0.2)).is_within
    item = difference("t", ours, theirs, "s", Tolerance(rtol=1e-3))
    assert (item.element, item.elements) == (1, 1)
    assert item.tolerance == pytest.approx(1e-6)
    flags = np.array([True]), np.array([False])
    assert not difference("t", *flags, "s", Tolerance(atol=1)).is_within


def test_nan_at_the_same_places_is_counted_and_equal() -> None:
    nan = np.array([np.nan, 1.0, np.nan], np.float32)
    item = difference("t", nan, nan, "s")
    assert (item.is_within, item.nans, item.lone_nans) == (True, 2, 0)
    item = difference("t", nan, np.array([np.nan, 1.0, 2.0], np.float32), "s")
    assert (item.is_within, item.nans, item.lone_nans, item.element) == (False, 1, 1, 2)


def test_cosine_and_signal_to_noise_ratio() -> None:
    theirs = np.array([3.0, 4.0], np.float32)
    item = difference("t", np.array([3.0, 4.5], np.float32), theirs, "s")
    assert item.snr == pytest.approx(20.0)
    assert item.cosine == pytest.approx((9 + 18) / (5 * np.hypot(3, 4.5)))
    assert difference("t", theirs, theirs, "s").snr == np.inf
    assert difference("t", -theirs, theirs, "s").cosine == pytest.approx(-1)
    huge = np.array([1e38, 1e38], np.float32)
    assert difference("t", huge, huge * np.float32(2), "s").cosine == pytest.approx(1)


def test_samples_reach_the_corners_of_the_range() -> None:
    infos = (TensorInfo("q", (4,), "int8", 0.5, 3), TensorInfo("f", (4,), "float32"))
    samples = dict(sample_inputs(infos, 2, seed=5))
    assert list(samples) == ["random 0", "random 1", "minimum", "maximum", "zero point"]
    assert all(map(why, samples))
    assert why("set 0") is None
    assert [int(samples[name]["q"][0]) for name in ("minimum", "maximum", "zero point")] == [-128, 127, 3]
    assert [float(samples[name]["f"][0]) for name in ("minimum", "maximum", "zero point")] == [-1, 1, 0]
    again = dict(sample_inputs(infos, 2, seed=5))
    np.testing.assert_array_equal(samples["random 1"]["f"], again["random 1"]["f"])


@pytest.mark.parametrize(("name", "package"), [(MODELS[0], "onnxruntime"), (MODELS[1], "ai_edge_litert.interpreter")])
def test_a_missing_reference_says_what_to_install(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ToolchainError, match=r"not installed.*pip install \"\.\[verify\]"):
        verify(DIGITS / name, samples=1)


def test_progress_tells_of_each_set_of_inputs_and_of_the_end() -> None:
    told: list[tuple[int, int, str]] = []
    verify(DIGITS / "digits.onnx", samples=2, progress=lambda *step: told.append(step))
    assert [done for done, _, _ in told] == [0, 1, 2, 3, 4, 5]
    assert {total for _, total, _ in told} == {5}
    assert told[0][2] == "random 0"
    assert told[-1][2] == ""

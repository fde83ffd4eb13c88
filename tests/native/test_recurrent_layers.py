"""Recurrent layers of ONNX as compiled code, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mlfc
from tests.harness import compiled
from tests.merged import merge
from tests.recurrent_models import Layer, dynamic_layers, layer, random_layers


def _differences(layers: list[Layer], folder: Path, **options: str) -> list[str]:
    """Compile all layers as one module; return the differences from ONNX Runtime."""
    module, params, firsts = merge([mlfc.import_model(item.model.SerializeToString()) for item in layers])
    loaded = compiled(module, params, folder, **options)
    results = list(loaded.run({name: value for item in layers for name, value in item.inputs.items()}).values())
    faults = []
    for item, first in zip(layers, firsts, strict=True):
        for number, wanted in enumerate(item.expected()):
            found = results[first + number]
            largest = np.max(np.abs(wanted), initial=1e-6)
            if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=0, atol=1e-5 * largest):
                faults.append(f"{item.name}: {np.abs(found - wanted).max() / largest:.2g} of the largest")
    return faults


@pytest.mark.usefixtures("quick_builds")
def test_layers_with_every_option_are_those_of_onnx_runtime(tmp_path: Path) -> None:
    assert _differences(random_layers(), tmp_path) == []


@pytest.mark.usefixtures("quick_builds")
def test_layers_that_quantize_their_state_are_those_of_onnx_runtime(tmp_path: Path) -> None:
    assert _differences(dynamic_layers(), tmp_path) == []


def test_large_layers_are_those_of_onnx_runtime(tmp_path: Path) -> None:
    layers = [
        layer("LSTM", 1, sizes=(7, 3, 40, 70), direction="bidirectional", prefix="a_"),
        layer("LSTM", 2, sizes=(6, 1, 33, 64), bare=True, prefix="b_"),
        layer("GRU", 3, sizes=(7, 9, 40, 50), linear_before_reset=1, prefix="c_"),
        layer("GRU", 4, sizes=(5, 1, 16, 96), direction="bidirectional", prefix="d_"),
        layer("RNN", 5, sizes=(20, 4, 30, 130), direction="reverse", lengths=[20, 1, 7, 19], prefix="e_"),
    ]
    assert _differences(layers, tmp_path) == []


@pytest.mark.usefixtures("quick_builds")
def test_small_code_and_lengths_that_lie(tmp_path: Path) -> None:
    """Clamp sequence lengths to 0 and the length of the input, so that no index is out of bounds."""
    wild, tame = ([9, -3, 2, 1 << 30], [5, 0, 2, 5])
    layers = []
    for number, operator in enumerate(("LSTM", "GRU", "RNN")):
        for direction in ("forward", "reverse"):
            sizes = (5, 4, 3, 6)
            prefix = f"{operator}_{direction}_"
            made = layer(operator, number, sizes=sizes, direction=direction, lengths=tame, prefix=prefix)
            layers.append(made)
    module, params, _ = merge([mlfc.import_model(item.model.SerializeToString()) for item in layers])
    loaded = compiled(module, params, tmp_path, optimize="size")
    inputs = {name: value for item in layers for name, value in item.inputs.items()}
    expected = loaded.run(inputs)
    names = [name for name in inputs if name.endswith("lengths")]
    found = loaded.run({**inputs, **dict.fromkeys(names, np.asarray(wild, np.int32))})
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)
    wanted = [value for item in layers for value in item.expected()]
    for value, other in zip(expected.values(), wanted, strict=True):
        np.testing.assert_allclose(value, other, rtol=0, atol=2e-6)


def test_what_is_not_finite_stays_in_its_row(tmp_path: Path) -> None:
    layers = [layer(operator, 1, sizes=(4, 4, 3, 5), prefix=f"{operator}_") for operator in ("LSTM", "GRU", "RNN")]
    for item in layers:
        x = item.inputs[f"{item.name}x"]
        x[1, 0, 0], x[1, 1], x[2, 2] = np.nan, np.inf, 3e38
    module, params, firsts = merge([mlfc.import_model(item.model.SerializeToString()) for item in layers])
    results = list(
        compiled(module, params, tmp_path).run({k: v for item in layers for k, v in item.inputs.items()}).values()
    )
    for item, first in zip(layers, firsts, strict=True):
        sequence = results[first]
        assert np.isnan(sequence[1:, 0, 0]).all()
        assert np.isfinite(sequence[:, :, 3]).all()
        assert np.isfinite(sequence[0]).all()
        np.testing.assert_allclose(sequence[:, :, 3], item.expected()[0][:, :, 3], rtol=0, atol=2e-6)

"""Properties that the TFLite importer preserves: names, quantization, weights; and the choice of rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlfc.errors import InputError
from mlfc.frontend.tflite import import_tflite
from mlfc.relay.ir import Call, Quantization, op_name
from mlfc.relay.visitor import post_order
from mlfc.verify.litert import reference


def test_names_and_quantization_are_the_files(models: Path) -> None:
    module, params = import_tflite((models / "kws_ref_model.tflite").read_bytes(), "kws")
    assert module.main.params[0].name == "input_1"
    assert module.output_names == ("Identity",)
    assert module.quantization["Identity"] == Quantization(1 / 256, -128)
    assert module.quantization["input_1"].zero_point == 83
    assert module.source["format"] == "tflite"
    assert "functional_1/conv2d_1/Conv2D" in params
    assert set(params) == {param.name for param in module.main.params[1:]}


def test_every_tensor_of_the_file_is_named_once(models: Path) -> None:
    path = models / "pretrainedResnet_quant.tflite"
    module, _ = import_tflite(path.read_bytes(), "resnet")
    named = [node.span.tensor for node in post_order(module.main.body) if isinstance(node, Call) and node.span.tensor]
    computed = reference(path, {"input_1_int8": np.zeros((1, 32, 32, 3), np.int8)})
    assert sorted(named) == sorted(set(computed) - {"input_1_int8"})


@pytest.mark.parametrize(("numerics", "rounding"), [("litert", "SINGLE"), ("tflm", "DOUBLE")])
def test_fully_connected_rounds_as_the_chosen_runtime(models: Path, numerics: str, rounding: str) -> None:
    module, _ = import_tflite((models / "ad01_int8.tflite").read_bytes(), "ad", numerics=numerics)
    found = [node for node in post_order(module.main.body) if op_name(node) == "qnn.requantize"]
    assert len(found) == 10
    assert {node.attrs["rounding"] for node in found if isinstance(node, Call)} == {rounding}


def test_reference_refuses_other_inputs(models: Path) -> None:
    with pytest.raises(InputError, match="input_1"):
        reference(models / "ad01_int8.tflite", {"x": np.zeros((1, 640), np.int8)})

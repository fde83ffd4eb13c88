"""Recurrent layers of TFLite as compiled code, against LiteRT after every run: results and states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from tests.recurrent_tflite import RUNS, Model, float_layers, integer_layers, micro_layers, other_float_layers

pytestmark = pytest.mark.usefixtures("quick_builds")


@pytest.mark.parametrize("target", ["c", "llvm"])
def test_integer_layers_are_litert_bit_for_bit(target: str) -> None:
    model = Model(integer_layers())
    expected, variables = model.expected()
    compiled = mlfc.compile(model.data, target, module_name="layers")
    faults = []
    for run in range(RUNS):
        found = compiled.run(model.feeds(run))
        faults += [f"{name} in run {run}" for name, value in expected[run].items() if np.any(found[name] != value)]
    assert faults == []
    for name, value in variables.items():
        np.testing.assert_array_equal(compiled.state[name], value, name)
    compiled.reset_state()
    first = compiled.run(model.feeds(0))
    for name, value in expected[0].items():
        np.testing.assert_array_equal(first[name], value, name)


def test_integer_layers_are_those_of_tflite_micro_bit_for_bit() -> None:
    model = Model(micro_layers())
    compiled = mlfc.compile(model.data, "c", module_name="layers", numerics="tflm")
    with np.load(Path(__file__).parents[1] / "golden" / "recurrent.npz") as golden:
        expected = {name: golden[name] for name in golden.files}
    assert len(expected) == len(model.layers) == 15
    for run in range(RUNS):
        found = compiled.run(model.feeds(run))
        for name, value in expected.items():
            np.testing.assert_array_equal(found[f"{name}/y"], value[run], f"{name} in run {run}")


@pytest.mark.parametrize("options", [{"target": "c"}, {"target": "llvm"}, {"target": "c", "optimize": "size"}], ids=str)
def test_float_layers_are_near_litert(options: dict[str, Any]) -> None:
    check_floats(Model(float_layers()), options)


def test_layers_that_are_written_out_and_those_of_other_operators_are_near_litert() -> None:
    check_floats(Model(other_float_layers()), {"target": "llvm"})


def check_floats(model: Model, options: dict[str, Any]) -> None:
    """Fail unless results and states are close to LiteRT's after every run."""
    expected, variables = model.expected()
    compiled = mlfc.compile(model.data, module_name="layers", **options)
    for run in range(RUNS):
        found = compiled.run(model.feeds(run))
        for name, value in expected[run].items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=2e-5, err_msg=f"{name} in run {run}")
    for name, value in variables.items():
        np.testing.assert_allclose(compiled.state[name], value, rtol=1e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("name", ["trained_lstm_int8", "keyword_scrambled"])
def test_models_of_tflite_micro_are_litert_step_by_step(name: str, models: Path) -> None:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    data = (models / f"{name}.tflite").read_bytes()
    reference = Interpreter(model_content=data, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    reference.allocate_tensors()
    compiled = mlfc.compile(data, module_name="model")
    (entry,), (result,) = reference.get_input_details(), reference.get_output_details()
    (wanted,) = compiled.inputs
    limits, rng = np.iinfo(entry["dtype"]), np.random.default_rng(0)
    for run in range(12):
        # every other frame is loud; the next one shows the state that it left
        reach = 1 if run % 2 else 64
        frame = rng.integers(limits.min // reach, limits.max // reach, entry["shape"]).astype(entry["dtype"])
        reference.set_tensor(entry["index"], frame)
        reference.invoke()
        (found,) = compiled.run({wanted.name: frame}).values()
        np.testing.assert_array_equal(found, reference.get_tensor(result["index"]), f"run {run}")

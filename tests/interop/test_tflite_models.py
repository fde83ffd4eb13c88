"""Real TFLite models: every layer of the int8 ones equals LiteRT's reference kernels bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.verify.litert import Reference
from mlfc.verify.reference import with_all_tensors
from tests.harness import assert_close, compiled, edge_inputs, seeded_inputs

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits_int8.tflite"
# random inputs of each, beside those at the edges; LiteRT's reference kernels take long for the three largest
SAMPLES = {
    "ad01_int8": 200,
    "kws_ref_model": 200,
    "pretrainedResnet_quant": 20,
    "vww_96_int8": 20,
    "hello_world_int8": 200,
    "mobilenet_v2_quantized_1x3x224x224": 20,
}
FLOAT_MODELS = ("pretrainedResnet", "kws_ref_model_float32")


def check_every_layer(path: Path, folder: Path, samples: Mapping[str, int]) -> None:
    """Compare all named tensors, and the outputs of the model compiled without extra outputs.

    `samples` says how many random inputs the form for each target gets; the reference, which takes longest, computes
    each but once.
    """
    mod, params = mlfc.import_model(path)
    layers = with_all_tensors(mod)
    assert len(layers.output_names) >= 3
    forms = []
    for number, (target, count) in enumerate(samples.items()):
        # whole models by the C alone: tests/native/test_llvm_modules.py compares their code by LLVM with it
        for name, module in (("layers", layers), ("plain", mod)):
            made = compiled(module, params, folder, module_name=f"{name}{number}", target=target, by_llvm=False)
            forms.append((target, count, made))
    reference, infos = Reference(path), forms[0][2].inputs
    edges = [(-1, inputs) for inputs in edge_inputs(infos)]
    for seed, inputs in [*((seed, seeded_inputs(infos, seed)) for seed in range(max(samples.values()))), *edges]:
        expected = reference.run(inputs)
        for target, count, made in forms:
            if seed < count:
                for name, ours in made.run(inputs).items():
                    np.testing.assert_array_equal(ours, expected[name], err_msg=f"{target}, seed {seed}, tensor {name}")


@pytest.mark.parametrize("name", SAMPLES)
def test_every_layer_is_bit_exact(name: str, models: Path, tmp_path: Path) -> None:
    """The kernels for cores without vectors give the same bits; those of the largest model are those of the others."""
    count = SAMPLES[name]
    without_vectors = {} if name.startswith("mobilenet") else {"c -mcpu=cortex-m4": min(10, count // 4)}
    check_every_layer(models / f"{name}.tflite", tmp_path, {"c": count, **without_vectors})


def test_the_digits_model_is_bit_exact(tmp_path: Path) -> None:
    check_every_layer(DIGITS, tmp_path, {"c": 200, "c -mcpu=cortex-m4": 200, "c -mcpu=x86-64-v4": 200})


@pytest.mark.parametrize("name", FLOAT_MODELS)
@pytest.mark.parametrize("target", ["c", "c -mcpu=cortex-m4"])
def test_float_models_agree_with_the_reference(name: str, target: str, models: Path, tmp_path: Path) -> None:
    path = models / f"{name}.tflite"
    mod, params = mlfc.import_model(path)
    ours = compiled(mod, params, tmp_path, target=target, by_llvm=False)
    reference = Reference(path)
    for seed in range(20):
        inputs = seeded_inputs(ours.inputs, seed)
        expected = reference.run(inputs)
        for name_, value in ours.run(inputs).items():
            assert_close(value, expected[name_], 1e-5, f"seed {seed}, output {name_}")

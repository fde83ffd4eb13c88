"""Real TFLite models: every layer of the int8 ones equals LiteRT's reference kernels bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.verify.litert import LiteRtReference
from mlfc.verify.reference import with_all_tensors
from tests.harness import assert_close, compiled, edge_inputs, seeded_inputs

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits_int8.tflite"
# number of random inputs, in addition to edge inputs; LiteRT's reference kernels are slow for the three largest
SAMPLES = {
    "ad01_int8": 40,
    "kws_ref_model": 40,
    "pretrainedResnet_quant": 4,
    "vww_96_int8": 4,
    "hello_world_int8": 100,
    "mobilenet_v2_quantized_1x3x224x224": 1,
}
IN_C = ("kws_ref_model", "hello_world_int8")
# whole models; the operators' own tests compile with the flags of libraries
pytestmark = pytest.mark.usefixtures("unoptimized_builds")
# cores without vectors have other kernels, all of which the smaller model uses
FLOAT_MODELS = (
    ("pretrainedResnet", "c"),
    ("kws_ref_model_float32", "c"),
    ("kws_ref_model_float32", "c -mcpu=cortex-m4"),
)


def check_every_layer(path: Path, folder: Path, samples: Mapping[tuple[str, str], int]) -> None:
    """Compare all named tensors, and the outputs of the model compiled without extra outputs.

    Parameters
    ----------
    path, folder : Path
    samples : mapping
        Number of random inputs by target and form; the reference, which takes longest, computes each input once. In the
        form ``layers`` all tensors are outputs, in ``plain`` only the model's.
    """
    mod, params = mlfc.import_model(path)
    modules = {"layers": with_all_tensors(mod), "plain": mod}
    assert len(modules["layers"].output_names) >= 3
    forms = []
    for number, ((target, form), count) in enumerate(samples.items()):
        # C only: tests/native/test_llvm_modules.py compares LLVM's code of whole models with it
        name = f"{form}{number}"
        made = compiled(modules[form], params, folder, module_name=name, target=target, by_llvm=False)
        forms.append((f"{form} for {target}", count, made))
    reference, infos = LiteRtReference(path), forms[0][2].inputs
    edges = [(-1, inputs) for inputs in edge_inputs(infos)[: None if max(samples.values()) > 1 else 1]]
    for seed, inputs in [*((seed, seeded_inputs(infos, seed)) for seed in range(max(samples.values()))), *edges]:
        expected = reference.run(inputs)
        for what, count, made in forms:
            if seed < count:
                for name, ours in made.run(inputs).items():
                    np.testing.assert_array_equal(ours, expected[name], err_msg=f"{what}, seed {seed}, tensor {name}")


@pytest.mark.parametrize("name", SAMPLES)
def test_every_layer_is_bit_exact(name: str, models: Path, tmp_path: Path) -> None:
    """Compare the layers on the host, and the outputs on cores without vectors, which have other kernels.

    Only the digits model is compiled in both forms. The layers of larger models are compiled by LLVM, which takes a
    tenth of the time; tests/native/test_llvm_modules.py and test_tiled_models.py compare such models in C. The largest
    models have the same kernels as the others.
    """
    count = SAMPLES[name]
    samples = {("c" if name in IN_C else "llvm", "layers"): count}
    if not name.startswith("mobilenet"):
        samples["c -mcpu=cortex-m4", "plain"] = min(10, count // 4)
    check_every_layer(models / f"{name}.tflite", tmp_path, samples)


def test_the_digits_model_is_bit_exact(tmp_path: Path) -> None:
    targets = ("c", "c -mcpu=cortex-m4", "c -mcpu=x86-64-v4")
    check_every_layer(DIGITS, tmp_path, {(target, form): 50 for target in targets for form in ("layers", "plain")})


def test_layers_by_tiles_are_bit_exact(models: Path, tmp_path: Path) -> None:
    """Use AMX instructions if this processor has them."""
    check_every_layer(models / "pretrainedResnet_quant.tflite", tmp_path, {("c -mcpu=sapphirerapids", "plain"): 20})


@pytest.mark.parametrize(("name", "target"), FLOAT_MODELS)
def test_float_models_agree_with_the_reference(name: str, target: str, models: Path, tmp_path: Path) -> None:
    path = models / f"{name}.tflite"
    mod, params = mlfc.import_model(path)
    ours = compiled(mod, params, tmp_path, target=target, by_llvm=False)
    reference = LiteRtReference(path)
    for seed in range(8):
        inputs = seeded_inputs(ours.inputs, seed)
        expected = reference.run(inputs)
        for name_, value in ours.run(inputs).items():
            assert_close(value, expected[name_], 1e-5, f"seed {seed}, output {name_}")

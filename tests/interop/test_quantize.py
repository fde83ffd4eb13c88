"""Post-training quantization: compiled models equal ONNX Runtime, differences are reported, wrong data is rejected."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import mlfc
from mlfc.errors import InputError, MlfcError
from mlfc.quantize.quantize import calibration_sets
from mlfc.support.tensor_info import TensorInfo
from mlfc.verify.media import ImageScaling
from tests.unit.test_cli import mlfc as program

pytest.importorskip("onnxruntime", reason='onnxruntime is not installed: pip install "mlfc[quantize]"')
DIGITS = Path(__file__).parents[2] / "examples" / "digits"
FLOAT = DIGITS / "digits.onnx"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "quantize.md"
IMAGE = TensorInfo("image", (1, 3, 2, 4), "float32")


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with sets of inputs and their labels."""
    folder = tmp_path_factory.mktemp("held_out")
    given = np.load(DIGITS / "held_out.npz")
    images = given["images"].transpose(0, 3, 1, 2)[:, None]
    np.savez(folder / "inputs.npz", image=np.ascontiguousarray(images[:120]))
    np.save(folder / "labels.npy", given["labels"][:120])
    np.savez(folder / "others.npz", image=np.ascontiguousarray(images[120:150]))
    np.save(folder / "labels_of_others.npy", given["labels"][120:150])
    return folder


def test_quantized_model_is_right_as_often_and_compiles_exactly(held_out: Path, tmp_path: Path) -> None:
    arguments = ("--calibrate", held_out / "inputs.npz", "--labels", held_out / "labels.npy", "--samples", 30)
    done = program("quantize", FLOAT, *arguments, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bytes"]["after"] < 0.6 * found["bytes"]["before"]
    # all inputs are evaluated, also those beyond --samples
    assert (found["samples"], found["accuracy"]["samples"]) == (30, 120)
    assert found["accuracy"]["reference"] - found["accuracy"]["compiled"] <= 2
    assert [item["node"] for item in found["layers"]] == ["conv1_relu", "conv2_relu", "flatten", "dense", "softmax"]
    assert all(30 < item["noise_db"] < 80 for item in found["layers"])
    compiled = mlfc.compile(tmp_path / "digits_int8.onnx")
    assert any("int8" in str(value.dtype) for value in compiled.factory.program.calls[1].inputs)
    assert compiled.verify(samples=3).is_within
    others = ("--evaluate", held_out / "others.npz", "--labels", held_out / "labels_of_others.npy", "--samples", 2)
    again = program("quantize", FLOAT, *arguments[:2], *others, cwd=tmp_path)
    assert "digits_int8.onnx, replacing the earlier one: " in again.stdout, again.stderr
    assert re.search(r"right: \d+ of 30, \d+ before", again.stdout)
    (tmp_path / "digits_int8.onnx").write_bytes(FLOAT.read_bytes())
    refused = program("quantize", FLOAT, *arguments, cwd=tmp_path)
    assert (refused.returncode, (tmp_path / "digits_int8.onnx").read_bytes()) == (2, FLOAT.read_bytes())
    assert "digits_int8.onnx: exists, not created by mlfc" in refused.stderr


def test_the_pages_example_prints_what_it_shows(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    printed = ""
    for line in re.findall(r"^(mlfc [^#\n]+?) *(?:#.*)?$", page.partition("It prints")[0], re.MULTILINE):
        done = program(*line.split()[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        printed += done.stdout
    shown = re.findall(r"^    (.*)$", page.partition("Layers that")[0], re.MULTILINE)
    assert "\n".join(shown) in printed


def test_inputs_and_outputs_may_be_integers(held_out: Path, tmp_path: Path) -> None:
    with np.load(held_out / "inputs.npz") as data:
        sets = [{"image": image} for image in data["image"][:20]]
    makers = {"float32": {}, "int8": {"inputs_dtype": "int8", "outputs_dtype": "int8"}}
    for dtype, asked in makers.items():
        mlfc.quantize(FLOAT, sets, tmp_path / f"{dtype}.onnx", **asked)
    real, codes = (mlfc.compile(tmp_path / f"{dtype}.onnx") for dtype in makers)
    source, target = codes.inputs[0], codes.outputs[0]
    assert (source.name, source.dtype, target.name, target.dtype) == ("image", "int8", "probabilities", "int8")
    assert None not in (source.scale, source.zero_point, target.scale, target.zero_point)
    counts = [len(onnx.load(tmp_path / f"{dtype}.onnx").graph.node) for dtype in makers]
    assert counts[0] - counts[1] == 2
    for given in sets[:3]:
        scaled = np.rint(given["image"] / np.float32(source.scale)) + source.zero_point
        found = codes.run({"image": np.clip(scaled, -128, 127).astype(np.int8)})["probabilities"]
        dequantized = (found.astype(np.float32) - target.zero_point) * np.float32(target.scale)
        np.testing.assert_array_equal(dequantized, real.run(given)["probabilities"])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"inputs_dtype": "int8", "exclude": ["conv1"]}, "the input 'image' is read as float by Conv 'conv1'"),
        (
            {"outputs_dtype": "int8", "exclude": ["softmax"]},
            "the output 'probabilities' is computed as float by Softmax",
        ),
        ({"inputs_dtype": "uint8"}, "expected float32 or int8, the dtype of activations, got 'uint8'"),
        ({"evaluate": []}, "option evaluate requires labels"),
    ],
)
def test_options_that_do_not_fit_are_refused(asked: dict[str, Any], message: str, tmp_path: Path) -> None:
    sets = [{"image": np.zeros((1, 1, 8, 8), np.float32)}]
    with pytest.raises(MlfcError, match=re.escape(message)):
        mlfc.quantize(FLOAT, sets, tmp_path / "made.onnx", **asked)
    assert not (tmp_path / "made.onnx").exists()


def test_int16_activations_lose_less(tmp_path: Path) -> None:
    sets = [{"image": np.random.default_rng(seed).random((1, 1, 8, 8), np.float32)} for seed in range(8)]
    noise = {}
    for activations in ("int8", "int16"):
        made = mlfc.quantize(FLOAT, iter(sets), tmp_path / f"{activations}.onnx", activations=activations)
        noise[activations] = made.outputs[0].noise_db
    assert noise["int16"] > noise["int8"]  # the weights have 8 bits in both
    stored = onnx.load(tmp_path / "int16.onnx").graph.initializer
    assert onnx.TensorProto.INT16 in {tensor.data_type for tensor in stored}
    assert mlfc.compile(tmp_path / "int16.onnx").verify(samples=2).is_within


def test_nodes_stay_float_and_open_batches_are_one(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18]>
        two (float[batch, 4] x) => (float[batch, 4] y)
        <float[4,4] a = {1,2,3,4,5,6,7,8,9,8,7,6,5,4,3,2}, float[4,4] b = {1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}>
        { [first] h = MatMul(x, a)  [second] y = MatMul(h, b) }
    """)
    sets = [{"x": np.full((1, 4), value, np.float32)} for value in (-1, 0, 2)]
    # as PyTorch's exporter writes models, with external weights
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    mlfc.quantize(tmp_path / "m.onnx", sets, tmp_path / "made.onnx", exclude=["first"])
    made = onnx.load(tmp_path / "made.onnx").graph
    fed_by = {name: node.op_type for node in made.node for name in node.output}
    inputs = {node.name: [fed_by.get(name) for name in node.input] for node in made.node if node.op_type == "MatMul"}
    assert inputs == {"first": [None, None], "second": ["DequantizeLinear", "DequantizeLinear"]}


def test_images_become_inputs(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason='pillow is not installed: pip install "mlfc[quantize]"')
    pixels = np.zeros((2, 4, 3), np.uint8)
    pixels[..., 0] = 255
    pillow.fromarray(pixels).save(tmp_path / "red.png")
    scaling = ImageScaling((0.5,), (0.5, 0.25, 0.125))
    (given,) = calibration_sets(tmp_path, [IMAGE], 9, scaling)
    assert given["image"].shape == (1, 3, 2, 4)
    assert given["image"][0, :, 0, 0].tolist() == [1.0, -2.0, -4.0]
    last = TensorInfo("image", (1, 2, 4, 3), "uint8")
    (given,) = calibration_sets(tmp_path, [last], None, ImageScaling())
    assert given["image"][0, 0, 0].tolist() == [255, 0, 0]
    with pytest.raises(InputError, match="values cannot be scaled for the input image"):
        calibration_sets(tmp_path, [last], 9, scaling)


def test_all_wrong_sets_are_told_at_once() -> None:
    sets: Any = [{"image": np.zeros((1, 3, 2, 5), np.float32)}, {"imag": 0}, 7]
    with pytest.raises(MlfcError) as caught:
        calibration_sets(sets, [IMAGE], 9, ImageScaling())
    text = str(caught.value)
    assert "calibration set 0: expected image: float32[1, 3, 2, 4], got float32[1, 3, 2, 5]" in text
    assert "calibration set 1: unknown input 'imag'; nearest: 'image'" in text
    assert "calibration set 2: expected arrays by input name, got int" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("quantize", DIGITS / "digits_int8.tflite", "--calibrate", "x.npy"), "quantizing requires an ONNX model"),
        (("quantize", FLOAT, "--calibrate", "missing"), "file or folder not found"),
        (("quantize", FLOAT, "--calibrate", "x.npy"), "its shape is (3,), not (1, 1, 8, 8)"),
        (("quantize", FLOAT, "--calibrate", "."), "x.npy"),
        (("quantize", FLOAT, "--calibrate", "x.npy", "--method", "max"), "unknown method 'max'; "),
        (("quantize", FLOAT, "--calibrate", "x.npy", "--exclude", "conv"), "unknown node 'conv'; nearest: 'conv1'"),
        (("quantize", FLOAT, "--calibrate", "x.npy", "--std", "0"), "expected means and deviations"),
    ],
)
def test_misuse_is_one_clear_error(arguments: tuple[object, ...], message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3, np.float32))
    done = program(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy"]

"""Real numbers for quantized models, batches, images, sound and class labels."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import mlfc
from mlfc.cli.main import app
from mlfc.errors import InputError, MlfcError
from mlfc.micro.run.emulator import EmulatedModule, emulated_factory
from mlfc.runtime.tensor.arrays import dequantized, quantized
from mlfc.runtime.tensor.npz import write_npz
from mlfc.support.tensor_info import TensorInfo
from mlfc.verify.inputs import read_sets
from mlfc.verify.media import ImageScaling
from tests.emulator.conftest import need_board

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits_int8.tflite"
INT8 = TensorInfo("x", (1, 2, 2, 1), "int8", 0.5, -3)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mlfc.compile(DIGITS, module_name="digits").export(tmp_path_factory.mktemp("real") / "digits.tar")


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.random.default_rng(0).random((3, 8, 8, 1)).astype(np.float32)


def test_values_are_rounded_half_to_even_and_saturated() -> None:
    given = np.array([0.25, 0.75, -0.25, -1e9, np.inf, 1.0])
    assert quantized(given, INT8).tolist() == [-3, -1, -3, -128, 127, -1]
    assert quantized(np.array([7], np.uint8), INT8).tolist() == [11]
    assert dequantized(np.array([-3, 127], np.int8), INT8).tolist() == [0.0, 65.0]
    with pytest.raises(InputError, match="x: the input contains NaN"):
        quantized(np.array([np.nan]), INT8)


def test_values_without_quantization_are_converted_or_refused() -> None:
    assert quantized(np.zeros(2), TensorInfo("x", (2,), "float32")).dtype == np.float32
    ids = np.zeros(2, np.int64)
    assert quantized(ids, TensorInfo("ids", (2,), "int64")) is ids
    with pytest.raises(InputError, match="ids: expected int64 values, got float64: the quantization of the tensor"):
        quantized(np.zeros(2), TensorInfo("ids", (2,), "int64"))


@pytest.mark.parametrize("form", ["archive", "library", "board"])
def test_models_accept_real_values(form: str, archive: Path, images: np.ndarray, tmp_path: Path) -> None:
    model = mlfc.load(archive)
    (given,), (result,) = model.inputs, model.outputs
    expected = dequantized(model.run(quantized(images[:1], given))[result.name], result)
    if form == "library":
        model = mlfc.load(mlfc.compile(DIGITS).export_library(tmp_path / "digits.so"))
    elif form == "board":
        need_board("mps2-an386")
        compiled = mlfc.compile(DIGITS, "c -mcpu=cortex-m4")
        model = emulated_factory(compiled.factory, need_board("mps2-an386"))
        assert isinstance(model, EmulatedModule)
    for found in (model.run(images[:1], real=True), model.run({given.name: images[:1].astype(float)}, real=True)):
        assert found[result.name].dtype == np.float32
        np.testing.assert_array_equal(found[result.name], expected)
    with pytest.raises(InputError, match=r"not int8\. Quantize it, or pass real numbers: run\(\.\.\., real=True\)"):
        model.run(images[:1])
    with pytest.raises(MlfcError, match="inputs"):
        model.run(images[:1], images[:1], real=True)


def command(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(item) for item in ("run", *arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_batches_of_real_values_have_labels(archive: Path, images: np.ndarray, tmp_path: Path) -> None:
    write_npz(tmp_path / "x.npz", {"arr_0": images.astype(np.float64)})
    (tmp_path / "names.txt").write_text("\n".join(f"digit {index}" for index in range(10)) + "\n")
    options = ("--inputs", tmp_path / "x.npz", "--real", "--labels", tmp_path / "names.txt")
    shown = json.loads(command(archive, *options, "--outputs", tmp_path / "y.npz", "--top", 2, "--json"))
    model = mlfc.load(archive)
    (name,) = (info.name for info in model.outputs)
    expected = np.concatenate([model.run(image[None], real=True)[name] for image in images])
    with np.load(tmp_path / "y.npz") as outputs:
        np.testing.assert_array_equal(outputs[name], expected)
    assert shown["sets"] == 3
    best = [entry[name][0] for entry in shown["top"]]
    assert [entry["index"] for entry in best] == expected.argmax(axis=1).tolist()
    assert [entry["label"] for entry in best] == [f"digit {index}" for index in expected.argmax(axis=1)]
    text = command(archive, *options)
    assert "3 sets of inputs; results of the last one:" in text
    assert "real value" not in text  # the column would be empty
    assert text.count("digit") == 15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "its dtype is float64, not int8. Quantize it, or pass real numbers: mlfc run --real"),
        (("--real", "--repeat", 2), "options --profile and --repeat require one set of inputs, got 3"),
        (("--real", "--scale", "1/255"), "options --scale, --mean and --std require --inputs with an image"),
        (("--real", "--labels", DIGITS.parent / "demo.py"), "expected as many labels as an output has values"),
        (("--mean", "a"), "options --scale, --mean and --std require"),
    ],
)
def test_misuse_is_one_clear_error(
    options: tuple[object, ...], message: str, archive: Path, images: np.ndarray, tmp_path: Path
) -> None:
    write_npz(tmp_path / "x.npz", {"arr_0": images.astype(np.float64)})
    out = tmp_path / "y.npz"
    arguments = ["run", archive, "--inputs", tmp_path / "x.npz", "--outputs", out, *options]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert isinstance(result.exception, MlfcError)
    assert message in str(result.exception)
    assert not out.exists()


def test_raw_bytes_are_no_real_values(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(4))
    assert len(read_sets(tmp_path / "x.bin", [INT8])) == 1
    with pytest.raises(InputError, match=r"expected \.npz or \.npy for real values, got \.bin"):
        read_sets(tmp_path / "x.bin", [INT8], real=True)


def test_images_have_the_shape_and_values_of_the_input(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason='pillow is not installed: pip install "mlfc[quantize]"')
    path = tmp_path / "one.png"
    pillow.fromarray(np.full((4, 4), 51, np.uint8)).save(path)

    def value(info: TensorInfo, scaling: ImageScaling | None = None) -> float:
        ((_, given),) = read_sets(path, [info], scaling)
        assert given["x"].shape == tuple(4 if isinstance(size, str) else size for size in info.shape)
        assert given["x"].dtype == info.numpy_dtype
        return float(given["x"].flat[0])

    assert value(INT8) == 51 - 128
    assert value(INT8, ImageScaling(scale=1 / 51)) == -1
    assert value(INT8, ImageScaling((0.2,), (0.1,))) == -3
    assert value(TensorInfo("x", (1, 3, "h", "w"), "float32")) == np.float32(0.2)
    assert value(TensorInfo("x", (8, 8, 1), "uint8")) == 51
    for info, message in (
        (TensorInfo("x", (1, 3, 8, 3), "float32"), "may be channels-first or channels-last"),
        (TensorInfo("x", (1, 64), "float32"), "images require an input of 1 x channels x height x width"),
        (TensorInfo("x", (1, 8, 8, 1), "int32"), "values cannot be scaled for the input"),
    ):
        with pytest.raises(InputError, match=message):
            value(info)
    with pytest.raises(InputError, match="images require a model with one input"):
        read_sets(path, [INT8, INT8])
    pillow.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "two.png")
    assert [name for name, _ in read_sets(tmp_path, [INT8])] == ["one.png", "two.png"]


@pytest.mark.parametrize(("width", "channels"), [(1, 1), (2, 2), (3, 1), (4, 1)])
def test_sound_is_cut_into_windows(width: int, channels: int, tmp_path: Path) -> None:
    path, steps = tmp_path / "sound.wav", np.array([0, 64, -128, 32, -1])
    integers = (steps + 128 if width == 1 else steps << 8 * (width - 1)).astype("<i8")
    frames = np.repeat(integers.view(np.uint8).reshape(-1, 1, 8)[..., :width], channels, axis=1)
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(width)
        sound.setframerate(16000)
        sound.writeframes(frames.tobytes())
    sets = [given["x"] for _, given in read_sets(path, [TensorInfo("x", (1, 3, 1), "float32")])]
    assert [array.shape for array in sets] == [(1, 3, 1)] * 2
    assert np.concatenate(sets).ravel().tolist() == [0, 0.5, -1, 0.25, -1 / 128, 0]
    ((_, whole),) = read_sets(path, [TensorInfo("x", ("batch", "n"), "int16")])
    assert whole["x"].tolist() == [(steps << 8).tolist()]
    with pytest.raises(InputError, match="WAV files require an input with one dimension of samples"):
        read_sets(path, [TensorInfo("x", (2, 3), "float32")])


def test_files_that_are_no_sound_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    with pytest.raises(InputError, match=r"bad\.wav: the sound cannot be read"):
        read_sets(tmp_path / "bad.wav", [TensorInfo("x", (3,), "float32")])

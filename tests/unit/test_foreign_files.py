"""Files in the formats of frameworks: recognized, never opened, and the message suggests what to do."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest

import mlfc
from mlfc.errors import ModelError
from tests.unit.test_cli import DIGITS
from tests.unit.test_cli import mlfc as run_mlfc


class Touches:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


def zipped(*names: str, content: bytes = b"") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as members:
        for name in names:
            members.writestr(name, content)
    return file.getvalue()


def files(payload: bytes) -> dict[str, tuple[bytes, str]]:
    """Return file contents with a pickle where their readers would unpickle, and the expected messages."""
    weights = [f"m/data/weights/weight_{number}" for number in range(2000)]
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return {
        "m.pt2": (
            zipped(
                *weights, "m/models/model.json", "m/data/sample_inputs/model.pt", "m/archive_format", content=payload
            ),
            "a program that torch.export saved, which is not opened",
        ),
        "script.pt": (
            zipped("m/data/0", "m/data.pkl", "m/code/__torch__/net.py", content=payload),
            "a TorchScript module",
        ),
        "weights.pt": (zipped("m/data.pkl", "m/version", content=payload), "a file of torch.save"),
        "weights.pth": (payload, "a Python pickle, which is not opened"),
        "net.keras": (zipped("metadata.json", "config.json", "model.weights.h5"), "a Keras model"),
        "net.h5": (b"\x89HDF\r\n\x1a\n" + bytes(88), "an HDF5 file"),
        "w.safetensors": (len(header).to_bytes(8, "little") + header + bytes(4), "a safetensors file"),
        "net.ort": (b"\x18\0\0\0ORTM" + bytes(88), "a model in ONNX Runtime's own format"),
        "any.zip": (zipped("net.onnx"), "a zip file"),
    }


@pytest.mark.parametrize("name", files(b""))
def test_files_of_other_frameworks_are_not_opened(name: str, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    payload = pickle.dumps(Touches(touched), protocol=4)
    pickle.loads(payload)
    assert touched.exists(), "whoever reads the pickle runs its code"
    touched.unlink()
    content, said = files(payload)[name]
    path = tmp_path / name
    path.write_bytes(content)
    message = f"expected a TFLite, ONNX or Relay text model, got {said}"
    for model in (path, content):
        with pytest.raises(ModelError) as caught:
            mlfc.compile(model)
        assert caught.value.cause.startswith(message)
        assert caught.value.next_step
    for command in ("compile", "check"):
        result = run_mlfc(command, path, cwd=tmp_path)
        assert (result.returncode, result.stdout) == (2, "")
        assert message in result.stderr
    assert sorted(item.name for item in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("net.joblib", "skl2onnx.to_onnx"),
        ("net.pt", "module.load_state_dict(weights)"),
        ("net.safetensors", "module.load_state_dict(weights)"),
        ("net.h5", "model.export('model.onnx', format='onnx')"),
        ("net.keras", "model.export('model.onnx', format='onnx')"),
        ("net.pb", "tf.lite.TFLiteConverter.from_saved_model"),
        ("net.bin", "Use a .tflite, .onnx or Relay text file"),
    ],
)
def test_content_that_is_not_recognized_has_the_advice_of_its_suffix(name: str, step: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x7f" * 64)
    with pytest.raises(ModelError) as caught:
        mlfc.compile(tmp_path / name)
    assert step in str(caught.value)


def test_a_pickle_of_scikit_learn_is_converted_by_its_package(tmp_path: Path) -> None:
    linear = pytest.importorskip("sklearn.linear_model", reason="pip install scikit-learn")
    with pytest.raises(ModelError, match=r"which is not opened.*skl2onnx\.to_onnx"):
        mlfc.import_model(pickle.dumps(linear.LogisticRegression()))


@pytest.mark.parametrize("length", [12, 300, 3000, 6400])
def test_a_tflite_file_without_its_end_is_truncated(length: int) -> None:
    content = DIGITS.with_name("digits_int8.tflite").read_bytes()
    with pytest.raises(ModelError, match="the file is truncated: its tables refer to bytes beyond its end"):
        mlfc.import_model(content[:length])


def test_a_saved_model_says_how_to_convert_it(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(ModelError, match=r"got a folder\. Convert a SavedModel first"):
        mlfc.compile(tmp_path)

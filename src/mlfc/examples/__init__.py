"""A sample model with data: a network of 3,818 parameters that reads digits of 8 by 8 pixels.

``examples/digits/train.py`` of the source repository made it from the digits of scikit-learn.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from mlfc.runtime.tensor.npz import write_npz
from mlfc.support.atomic import replaces_earlier, write_bytes
from mlfc.support.temporary import TemporaryFolder

_CALIBRATED = 100  # images that quantization may use; the others are held out
_MODELS = ("digits.onnx", "digits_int8.tflite")


def digits() -> Path:
    """Return the path of the model, in ONNX and float32: ``image`` of 1 x 1 x 8 x 8 to ``probabilities`` of 1 x 10.

    Examples
    --------
    >>> mlfc.compile(mlfc.examples.digits()).outputs[0].shape
    (1, 10)
    """
    return _file("digits.onnx")


def write_examples(folder: Path) -> list[Path]:
    """Write the models and their data into a folder, which is created.

    Returns
    -------
    list of Path
        ``digits.onnx``, ``digits_int8.tflite``, ``calibration.npz`` and ``held_out.npz`` with images, ``labels.npy``
        with the classes of the latter.

    Raises
    ------
    OutputError
        If a file cannot be written, or another one has its name.
    """
    contents = {name: _file(name).read_bytes() for name in _MODELS}
    with np.load(_file("held_out.npz")) as data, TemporaryFolder() as made:
        images, labels = data["images"].transpose(0, 3, 1, 2)[:, None], data["labels"]
        write_npz(Path(made, "calibration.npz"), {"image": images[:_CALIBRATED]})
        write_npz(Path(made, "held_out.npz"), {"image": images[_CALIBRATED:]})
        np.save(Path(made, "labels.npy"), labels[_CALIBRATED:])
        contents |= {path.name: path.read_bytes() for path in sorted(Path(made).iterdir())}
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        replaces_earlier(folder / name, partial(_has, data), "Name another folder: mlfc examples FOLDER")
    for name, data in contents.items():
        write_bytes(folder / name, data)
    return [folder / name for name in contents]


def _has(data: bytes, path: Path) -> bool:
    return path.read_bytes() == data


def _file(name: str) -> Path:
    """Return a file of the package; in a checkout it is that of the repository's examples."""
    installed = Path(__file__).parent / name
    return installed if installed.exists() else Path(__file__).parents[3] / "examples" / "digits" / name

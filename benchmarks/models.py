"""The measured models and their locations."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
ZOO = ROOT / "build" / "zoo"
ZOO_NAMES = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip
TFLITE_NAMES = (
    "kws_ref_model", "pretrainedResnet_quant", "vww_96_int8", "ad01_int8", "hello_world_int8",
    "mobilenet_v2_quantized_1x3x224x224", "pretrainedResnet", "kws_ref_model_float32",
)  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A model file and its kind of arithmetic."""

    name: str
    path: Path

    @property
    def integer(self) -> bool:
        """Return whether it is an int8 model."""
        return self.path.suffix == ".tflite" and self.name not in ("pretrainedResnet", "kws_ref_model_float32")


def find(names: list[str]) -> list[Model]:
    """Return the models with these names (default: all) that exist here, and model files; generate zoo files."""
    wanted = names or ["digits_int8", "digits", *TFLITE_NAMES, *ZOO_NAMES]
    found = []
    for name in wanted:
        if Path(name).suffix in (".onnx", ".tflite"):
            found.append(Model(Path(name).stem, Path(name)))
            continue
        places = [
            *(ROOT / "examples" / "digits").glob(f"{name}.*"),
            *(SHARED / "models").glob(f"{name}.tflite"),
            *([_zoo_file(name)] if name in ZOO_NAMES and SHARED.is_dir() else []),
        ]
        found += [Model(name, place) for place in places if place.suffix in (".onnx", ".tflite")][:1]
    return found


def _zoo_file(name: str) -> Path:
    path = ZOO / f"{name}.onnx"
    if not path.exists():
        subprocess.run([sys.executable, SHARED / "tools" / "onnx_zoo.py", ZOO, name], check=True, capture_output=True)
    return path


def random_inputs(infos: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """Return seeded inputs for the declared inputs of a loaded module."""
    rng = np.random.default_rng(seed)
    inputs = {}
    for info in infos:
        if np.dtype(info.dtype).kind == "f":
            inputs[info.name] = rng.standard_normal(info.shape, dtype=np.float32)
        elif np.dtype(info.dtype).itemsize > 2:  # mostly table indices, which must be in range
            inputs[info.name] = rng.integers(0, 2, info.shape).astype(info.dtype)
        else:
            limits = np.iinfo(info.dtype)
            inputs[info.name] = rng.integers(limits.min, limits.max + 1, info.shape).astype(info.dtype)
    return inputs

"""Firmware projects of one small model, and what LiteRT says that they print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import mlforge
from mlforge.micro.project.generate import generate_project
from mlforge.runtime.fill import fill
from mlforge.verify.litert import Reference

NAME = "hello_world"
_MODEL = "hello_world_int8.tflite"
_OUTPUT = "StatefulPartitionedCall:0"


def archive(models: Path, folder: Path, target: str, vectors: int = 2, **options: Any) -> Path:
    """Return an archive of the smallest real model, with test vectors."""
    module, params = mlforge.import_model(models / _MODEL)
    factory = mlforge.build(module, target, params, module_name=NAME, **options)
    return Path(mlforge.export_model_library_format(factory, folder / f"{NAME}.tar", test_vectors=vectors))


def project(
    template: str, model: Path, folder: Path, board: str, project_type: str = "standalone", **options: Any
) -> Path:
    """Return the folder of a generated project."""
    given: Mapping[str, Any] = {"board": board, "project_type": project_type, **options}
    return generate_project(template, model, folder, given)


def expected_output(models: Path, model: Path) -> npt.NDArray[Any]:
    """Return what LiteRT computes of the first test vector's inputs."""
    inputs = fill(mlforge.load(model).inputs, seed=0)
    return Reference(models / _MODEL).run(inputs)[_OUTPUT].reshape(-1)


def printed_output(text: str) -> npt.NDArray[Any]:
    """Return the one output that an application printed: its name, a colon, and numbers."""
    match = re.search(rf"^{_OUTPUT}:((?: -?\d+)+)", text, re.MULTILINE)
    assert match, text
    return np.array([int(word) for word in match.group(1).split()])

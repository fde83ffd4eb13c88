"""Firmware projects of one small model, and the output that LiteRT's results predict."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import mlfc
from mlfc.micro.project.generate import generate_project
from mlfc.micro.project_api.client import GeneratedProject
from mlfc.relay import ir
from mlfc.runtime.tensor.arrays import fill
from mlfc.verify.litert import LiteRtReference
from tests.harness import module_of
from tests.object_cache import with_known_objects

NAME = "hello_world"
QUICK = {"cflags": "-O1"}
"""Options of projects that `build_quickly` builds."""
_MODEL = "hello_world_int8.tflite"
_OUTPUT = "StatefulPartitionedCall:0"


def archive(models: Path, folder: Path, target: str, vectors: int = 2, **options: Any) -> Path:
    """Return an archive of the smallest real model, with test vectors."""
    module, params = mlfc.import_model(models / _MODEL)
    factory = mlfc.build(module, target, params, module_name=NAME, **options)
    return Path(mlfc.export_model_library_format(factory, folder / f"{NAME}.tar", test_vectors=vectors))


def project(
    template: str, model: Path, folder: Path, board: str, project_type: str = "standalone", **options: Any
) -> Path:
    """Return the folder of a generated project."""
    given: Mapping[str, Any] = {"board": board, "project_type": project_type, **options}
    return generate_project(template, model, folder, given)


def build_quickly(made: GeneratedProject, folder: Path) -> None:
    """Build a Makefile project with the options `QUICK`, using the objects that the session has already built."""
    command = ["make", "-j2", f"CFLAGS={QUICK['cflags']}"]
    # make rebuilds objects that are older than the flags file
    subprocess.run([*command, "build/flags"], cwd=folder, check=True, capture_output=True)

    def build() -> subprocess.CompletedProcess[str]:
        made.build()
        return subprocess.CompletedProcess(command, 0, "", "")

    with_known_objects(command, folder, build)


def expected_output(models: Path, model: Path) -> npt.NDArray[Any]:
    """Return LiteRT's result for the first test vector's inputs."""
    return reference_output(models, fill(mlfc.load(model).inputs, seed=0))


def reference_output(models: Path, inputs: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return LiteRT's result for `inputs`."""
    return LiteRtReference(models / _MODEL).run(inputs)[_OUTPUT].reshape(-1)


def printed_output(text: str) -> npt.NDArray[Any]:
    """Return the single output that an application printed as a name, a colon, and numbers."""
    match = re.search(rf"^{_OUTPUT}:((?: -?\d+)+)", text, re.MULTILINE)
    assert match, text
    return np.array([int(word) for word in match.group(1).split()])


def odd_archive(folder: Path, target: str = "c") -> Path:
    """Return an archive of a module with several dtypes and with names that need escaping in C, Kconfig and printf."""
    x = np.linspace(-3, 3, 4, dtype=np.float32).reshape(1, 4)
    wide = np.array([[1 << 40, -(1 << 40), 3, 4]], np.int64)
    module = module_of(
        {"in put/0*/%d": x, "int": wide},
        {
            '50%s "quoted"\\': lambda v: ir.call("nn.relu", [v["in put/0*/%d"]]),
            "long\nname": lambda v: ir.call("add", [v["int"], v["int"]]),
            "": lambda v: ir.call("cast", [v["in put/0*/%d"]], dtype="uint8"),
        },
    )
    factory = mlfc.build(module, target, module_name="_Arduino__string_2")
    return Path(mlfc.export_model_library_format(factory, folder / "odd.tar", test_vectors=1))

"""Archives as firmware engineers use them: extracted, then built with make or CMake."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import mlfc
import mlfc.ops
from mlfc.factory import Factory
from mlfc.relay import ir
from mlfc.support.dtypes import to_numpy
from tests.conftest import need
from tests.object_cache import with_known_objects

WARNINGS = "-O1 -Wall -Wextra -Wpedantic -Werror"


def extracted(factories: Factory | Sequence[Factory], folder: Path, **options: Any) -> Path:
    """Export an archive, extract it with a separate reader, and return the folder."""
    path = mlfc.export_model_library_format(factories, folder / "archive.tar", **options)
    with tarfile.open(path, "r:") as tar:
        tar.extractall(folder / "extracted", filter="data")
    return folder / "extracted"


def make(folder: Path, *arguments: str, fails: bool = False) -> str:
    """Run make and return the output of make and of its child processes."""
    command = [need("make", "make"), "-j2", *arguments]
    result = with_known_objects(
        command, folder, lambda: subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    )
    assert (result.returncode != 0) is fails, f"{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
    return result.stdout + result.stderr


def imported(path: Path, name: str, **options: Any) -> Factory:
    """Compile a model file."""
    module, params = mlfc.import_model(path)
    return mlfc.build(module, params=params, module_name=name, **options)


def sum_factory(name: str, inputs: Mapping[str, tuple[tuple[int, ...], str]], output: str, **options: Any) -> Factory:
    """Compile a model that returns the sum of its inputs plus one."""
    variables = [ir.Var(title, ir.TensorType(shape, dtype)) for title, (shape, dtype) in inputs.items()]
    dtype = variables[0].type.dtype if variables else "float32"
    total: ir.Expr = ir.Constant(np.ones((), to_numpy(dtype)))
    for variable in variables:
        total = ir.call("add", [total, variable])
    body = ir.call("nn.relu", [total])
    module = ir.IRModule({"main": ir.Function(tuple(variables), body)}, (output,), {}, {"format": "test"})
    return mlfc.build(module, module_name=name, **options)

"""Shared libraries and objects of several modules and of both executors."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.archive import object_files
from mlfc.factory import library_root
from mlfc.library.export import export_library
from mlfc.runtime import GraphExecutor, cpu
from tests.conftest import need
from tests.native.extracted import imported

pytestmark = pytest.mark.usefixtures("quick_builds")


def test_a_library_of_both_executors_computes_the_same(models: Path, tmp_path: Path) -> None:
    model = models / "hello_world_int8.tflite"
    graph = imported(model, "graph", executor="graph")
    export_library(library_root([imported(model, "code"), graph]), tmp_path / "both.so")
    code, loaded = (mlfc.load_module(tmp_path / "both.so", name) for name in ("code", "graph"))
    executor = GraphExecutor(graph.graph_json, code.lib, cpu(0))
    for name, value in graph.params.items():
        executor.set_input(name, value)
    for value in (-128, 7, 127):
        data = np.full((1, 1), value, np.int8)
        executor.set_input(0, data)
        executor.run()
        (expected,) = code.run(data).values()
        np.testing.assert_array_equal(executor.get_output(0), expected)
        np.testing.assert_array_equal(next(iter(loaded.run(data).values())), expected)


def test_a_library_of_modules_that_share_kernels_names_them_right(models: Path, tmp_path: Path) -> None:
    model = models / "hello_world_int8.tflite"
    factories = [imported(model, "one"), imported(model, "two")]
    library = export_library(library_root(factories), tmp_path / "two.so")
    need("nm", "binutils")
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
    data = np.full((1, 1), 7, np.int8)
    outputs = [next(iter(mlfc.load_module(library, name).run(data).values())) for name in ("one", "two")]
    np.testing.assert_array_equal(*outputs)
    assert "tvmgen_one_run" in symbols
    assert "tvmgen_two_run" in symbols


def test_objects_of_graphs_have_their_table_of_functions(models: Path, tmp_path: Path) -> None:
    files = object_files([imported(models / "hello_world_int8.tflite", "hello", executor="graph")])
    assert sorted(files) == [
        "executor-config/graph/hello.graph", "lib/hello_lib0.o", "lib/hello_lib1.o", "parameters/hello.params",
    ]  # fmt: skip
    need("nm", "binutils")
    (tmp_path / "hello.o").write_bytes(bytes(files["lib/hello_lib0.o"]))  # type: ignore[arg-type]
    symbols = subprocess.run(["nm", tmp_path / "hello.o"], capture_output=True, text=True, check=True).stdout
    assert "T TVMSystemLibEntryPoint" in symbols

"""Objects for programs with TVM's C runtime: the files and symbols of TVM's exporter, linked as in its example."""

from __future__ import annotations

import struct
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.errors import OptionError
from mlfc.factory import Factory, library_root
from mlfc.library.export import export_library
from mlfc.objfile.exports import exports
from tests.conftest import need
from tests.native.crt_build import PROGRAMS, run, write_tree
from tests.native.extracted import imported, make

pytestmark = pytest.mark.usefixtures("quick_builds")

TARGETS = {"c": "graph", "llvm": "graph", "c -mcpu=auto": "aot"}
# functions of TVM's crt/common, and of the C library
PROVIDED = {"TVMAPISetLastError", "TVMBackendAllocWorkspace", "TVMBackendFreeWorkspace", "memcpy", "memset"}
X = np.full((1, 1), 7, np.int8)
# the tree of a library without imports, which TVM writes for code that imports its table of functions
ONLY_A_LIBRARY = struct.pack("<QQQ4sQ12sQQQQ", 72, 2, 4, b"_lib", 12, b"_import_tree", 2, 0, 0, 0)


@pytest.fixture(scope="module")
def factories(models: Path) -> Mapping[str, Factory]:
    path = models / "hello_world_int8.tflite"
    return {target: imported(path, "hello", target=target, executor=TARGETS[target]) for target in TARGETS}


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path, "r:gz") as tar:
        return {item.name.removeprefix("./"): tar.extractfile(item).read() for item in tar if item.isfile()}  # type: ignore[union-attr]


def symbols(data: bytes, folder: Path) -> tuple[set[str], set[str]]:
    """Return the global symbols that an object defines, and those that it needs."""
    need("nm", "binutils")
    (folder / "object.o").write_bytes(data)
    text = subprocess.run(["nm", "-g", folder / "object.o"], capture_output=True, text=True, check=True).stdout
    found = [line.split() for line in text.splitlines()]
    return {line[-1] for line in found if line[-2] != "U"}, {line[-1] for line in found if line[-2] == "U"}


@pytest.mark.parametrize("target", TARGETS)
def test_the_files_and_symbols_are_those_of_tvm(target: str, factories: Mapping[str, Factory], tmp_path: Path) -> None:
    found = members(factories[target].lib.export_library(tmp_path / "model.tar", system_lib=True))
    assert sorted(found) == ["devc.o", "lib0.o", "lib1.o"]
    defined, needed = zip(*(symbols(found[name], tmp_path) for name in sorted(found)), strict=True)
    assert defined[:2] == ({"__tvm_dev_mblob"}, {"TVMSystemLibEntryPoint"})
    assert needed[0] == set()
    # levels of processors are chosen with functions of the C library
    chosen = {"fprintf", "fputc", "getenv", "stderr", "strcmp", "_GLOBAL_OFFSET_TABLE_"} if "auto" in target else set()
    assert (needed[1] | needed[2]) - defined[2] <= PROVIDED | chosen
    assert all(name.startswith("tvmgen_hello") for name in defined[2])
    (tree,) = exports(memoryview(found["devc.o"]))
    assert tree.content[:80] == ONLY_A_LIBRARY


def test_a_makefile_of_the_structure_of_tvms_links_it(factories: Mapping[str, Factory], tmp_path: Path) -> None:
    need("ar", "binutils")
    graph, lib, params = factories["llvm"]
    lib.export_library(tmp_path / "model_c.tar", system_lib=True)
    (tmp_path / "graph.json").write_text(graph)
    (tmp_path / "params.bin").write_bytes(mlfc.save_param_dict(params))
    (tmp_path / "inputs.bin").write_bytes(X.tobytes())
    write_tree(tmp_path)
    make(tmp_path, "-f", str(PROGRAMS / "bundle.mk"), f"PROGRAMS={PROGRAMS}")
    name = factories["llvm"].program.inputs[0].name
    files = (tmp_path / "graph.json", tmp_path / "params.bin", name, tmp_path / "inputs.bin")
    (expected,) = factories["llvm"].runtime.run(X).values()
    assert run(tmp_path / "build/demo_static", *files) == expected.tobytes()


@pytest.mark.parametrize("target", TARGETS)
def test_loading_adds_the_runtime(target: str, factories: Mapping[str, Factory], tmp_path: Path) -> None:
    factory = factories[target]
    root = mlfc.load_module(factory.export_library(tmp_path / "model.tar", system_lib=True))
    assert root.type_key == factory.runtime.type_key
    for name, value in factory.runtime.run(X).items():
        np.testing.assert_array_equal(root.run(X)[name], value)
        assert root.model.outputs[0].scale == factory.interface().outputs[0].scale
    if factory.executor == "aot":  # a function on tensors, although the C function on structs has this name
        (lib,) = (module for module in root.walk() if module.type_key == "library")
        result = np.zeros((1, 1), np.int8)
        lib["tvmgen_hello_run"](X, result)
        np.testing.assert_array_equal(result, value)


def test_several_models_have_one_table(factories: Mapping[str, Factory], models: Path, tmp_path: Path) -> None:
    other = imported(models / "hello_world_int8.tflite", "other", executor="aot")
    export_library(library_root([factories["c"], other]), tmp_path / "both.a", system_lib=True)
    need("ar", "binutils")
    table = subprocess.run(["ar", "p", tmp_path / "both.a", "lib0.o"], capture_output=True, check=True).stdout
    assert symbols(table, tmp_path)[0] == {"TVMSystemLibEntryPoint"}
    assert b"\0tvmgen_other_get_c_metadata\0" in table
    assert b"\0tvmgen_hello_fused" in table


def test_what_the_c_runtime_cannot_run_is_refused(factories: Mapping[str, Factory], tmp_path: Path) -> None:
    factory = factories["c"]
    for name, options in (("model.so", {}), ("model.tar", {"fcompile": print})):
        with pytest.raises(OptionError, match=r"^system_lib: option system_lib .*Name a file that ends in \.tar"):
            factory.export_library(tmp_path / name, system_lib=True, **options)
    loaded = mlfc.load_module(factory.export_library(tmp_path / "model.so"))
    with pytest.raises(OptionError, match="'library'"):
        export_library(loaded, tmp_path / "again.tar", system_lib=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model.so"]

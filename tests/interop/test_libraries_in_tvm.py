"""Libraries of mlfc in programs written for TVM: factory keys, input names, blobs, and tvm-ffi's loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlfc
from mlfc.errors import OptionError
from mlfc.factory import Factory, library_root
from mlfc.library.export import export_library
from mlfc.relay import ir
from mlfc.runtime import cpu
from mlfc.support.c_names import names_in_tables
from tests.interop.tvm_runtime import TvmLibrary, sanitized
from tests.native.extracted import imported

pytestmark = pytest.mark.usefixtures("unoptimized_builds")

INPUT = "serving_default_dense_input:0"
X = np.full((1, 1), 7, np.int8)


@pytest.fixture(scope="module")
def factories(models: Path) -> dict[str, Factory]:
    path = models / "hello_world_int8.tflite"
    return {executor: imported(path, f"hello_{executor}", executor=executor) for executor in ("aot", "graph")}


@pytest.fixture(scope="module")
def expected(factories: dict[str, Factory]) -> Any:
    (value,) = factories["aot"].runtime.run(X).values()
    return value


def two_inputs(*names: str) -> Factory:
    inputs = [ir.Var(name, ir.TensorType((2,), "float32")) for name in names]
    return mlfc.build(ir.IRModule({"main": ir.Function(tuple(inputs), ir.call("subtract", inputs))}), module_name="m")


def test_inputs_are_set_by_their_own_names(factories: dict[str, Factory], expected: Any, tmp_path: Path) -> None:
    path = factories["aot"].export_library(tmp_path / "hello.so", options=["-O0"])
    for name in (INPUT, sanitized(INPUT)):
        for executor in (TvmLibrary(path).executor("default"), mlfc.load_module(path)["default"](cpu(0))):
            executor.set_input(name, X)
            executor.run()
            np.testing.assert_array_equal(executor.get_output(0), expected)
    assert list(mlfc.load(path).run({INPUT: X}).values()) == [expected]
    assert mlfc.load_module(path)["default"](cpu(0)).get_input_name(0) == INPUT


def test_names_that_differ_in_signs_alone_are_told_apart(tmp_path: Path) -> None:
    path = two_inputs("a:0", "a/0").export_library(tmp_path / "m.so", options=["-O0"])
    one, two = np.array([5, 6], np.float32), np.array([1, 1], np.float32)
    ours = mlfc.load_module(path)["default"](cpu(0))
    ours.set_input("a/0", two)
    ours.set_input("a:0", one)
    ours.run()
    theirs = TvmLibrary(path).executor("default")
    theirs.set_input("a_0_1", two)
    theirs.set_input("a:0", one)
    theirs.run()
    np.testing.assert_array_equal(ours.get_output(0), one - two)
    np.testing.assert_array_equal(theirs.get_output(0), one - two)


@given(st.lists(st.text(max_size=6), max_size=6))
def test_tables_have_each_name_once_and_lookups_find_the_first(names: list[str]) -> None:
    found = names_in_tables(names)
    assert len(set(found)) == len(names)
    for name, table in zip(names, found, strict=True):
        plain = sanitized(name.encode("utf-8", "replace").decode()) or "_"
        assert sanitized(table) == table
        assert table.startswith(plain)
        assert plain in found


@pytest.mark.parametrize("executor", ["aot", "graph"])
def test_the_key_is_default_whatever_the_name(executor: str, factories: dict[str, Factory], tmp_path: Path) -> None:
    path = factories[executor].export_library(tmp_path / "hello.so", options=["-O0"])
    assert TvmLibrary(path).key == "default"
    loaded = mlfc.load_module(path)
    assert loaded.name == f"hello_{executor}"
    assert loaded["list_module_names"]() == [f"hello_{executor}"]
    for key in ("default", f"hello_{executor}"):
        run = loaded[key](cpu(0))
        run.set_input(INPUT, X)
        run.run()


def test_several_models_have_no_default_and_say_so(factories: dict[str, Factory], tmp_path: Path) -> None:
    root = library_root(list(factories.values()))
    for abi in (("classic", "ffi"), ("ffi",)):
        loaded = mlfc.load_module(export_library(root, tmp_path / "both.so", abi=abi, options=["-O0"]))
        with pytest.raises(OptionError, match=r"expected one module, got 2\. Name one of: hello_aot, hello_graph"):
            loaded["default"](cpu(0))
        for name in ("hello_aot", "hello_graph"):
            loaded[name](cpu(0)).run()


@pytest.mark.parametrize("names", [("hello_aot",), ("hello_aot", "other")])
def test_code_for_tvm_ffi_alone_has_no_blob_for_others(
    names: tuple[str, ...], models: Path, expected: Any, tmp_path: Path
) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi", reason="pip install apache-tvm-ffi")
    made = [imported(models / "hello_world_int8.tflite", name) for name in names]
    path = export_library(library_root(made), tmp_path / "ffi.so", abi=("ffi",), options=["-O0"])
    assert TvmLibrary(path).kinds == []
    module = tvm_ffi.load_module(str(path))
    for name in names:
        np.testing.assert_array_equal(np.from_dlpack(module[name](X)), expected)
        np.testing.assert_array_equal(next(iter(mlfc.load(path, name).run(X).values())), expected)
    loaded = mlfc.load_module(path)
    if len(names) > 1:
        with pytest.raises(OptionError, match=r"expected one module, got 2\. Name one of: hello_aot, other"):
            loaded["default"](cpu(0))
        return
    executor = loaded["default"](cpu(0))
    executor.set_input(INPUT, X)
    executor.run()
    np.testing.assert_array_equal(executor.get_output(0), expected)


@pytest.mark.parametrize("executor", ["aot", "graph"])
@pytest.mark.parametrize("abi", [("classic",), ("ffi",), ("classic", "ffi")])
def test_every_library_opens_in_every_generation(
    executor: str, abi: tuple[str, ...], factories: dict[str, Factory], expected: Any, tmp_path: Path
) -> None:
    """Check that a factory in any blob comes with the functions that it needs."""
    tvm_ffi = pytest.importorskip("tvm_ffi", reason="pip install apache-tvm-ffi")
    path = factories[executor].export_library(tmp_path / "hello.so", abi=abi, options=["-O0"])
    module = tvm_ffi.load_module(str(path))
    if "ffi" in abi and executor == "aot":
        np.testing.assert_array_equal(np.from_dlpack(module.hello_aot(X)), expected)
    library = TvmLibrary(path)
    if library.key is None:
        assert (executor, abi) == ("aot", ("ffi",))
    elif executor == "aot":
        theirs = library.executor("default")
        theirs.set_input(INPUT, X)
        theirs.run()
        np.testing.assert_array_equal(theirs.get_output(0), expected)
    else:
        operators = mlfc.load_module(path).lib.description()["hello_graph"].operators
        assert all(library.function(operator.function) is not None for operator in operators)

"""All C code that uses tensors also compiles with the header of DLPack 0.7, which TVM 0.14 ships."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import mlfc
from mlfc.relay import ir
from tests.native.crt_build import PROGRAMS, check_c, sources, write_tree

DLPACK_0_7 = PROGRAMS / "dlpack_0_7"
DTYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
COMPILERS = ("gcc", "clang")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the runtime with its header replaced by the older one."""
    tree = write_tree(tmp_path_factory.mktemp("dlpack"))
    header = (DLPACK_0_7 / "dlpack" / "dlpack.h").read_bytes()
    assert b"kDLBool" not in header
    (tree / "runtime/include/dlpack/dlpack.h").write_bytes(header)
    return tree


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the C of modules with inputs and outputs of every dtype: graph executor and packed AOT functions."""
    folder = tmp_path_factory.mktemp("modules")
    inputs = tuple(ir.Var(f"x_{dtype}", ir.TensorType((2, 3), dtype)) for dtype in DTYPES)
    floats = [ir.call("cast", [x], dtype="float32") for x in inputs]
    outputs = [ir.call("cast", [x], dtype=dtype) for x, dtype in zip(floats, DTYPES, strict=True)]
    names = tuple(f"y_{dtype}" for dtype in DTYPES)
    module = ir.IRModule({"main": ir.Function(inputs, ir.Tuple(tuple(outputs)))}, names)
    graph = mlfc.build(module, executor="graph", module_name="graph")
    aot = mlfc.build(module, module_name="aot")
    archive = mlfc.export_model_library_format([graph, aot], folder / "both.tar", system_lib=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    found = sorted((folder / "codegen/host/src").glob("*.c"))
    assert any(b"MLF_DLPACK_BOOL" in path.read_bytes() for path in found)
    return found


@pytest.mark.parametrize("compiler", COMPILERS)
def test_generated_code(tree: Path, code: list[Path], compiler: str) -> None:
    check_c(tree, code, (), compiler)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_runtime_and_what_libraries_have(tree: Path, compiler: str) -> None:
    library = sorted((tree / "runtime/library").glob("*.c"))
    check_c(tree, [*sources(tree), *library], ("-DTVM_CRT_CONTEXT_POINTERS=1",), compiler)

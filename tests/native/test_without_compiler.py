"""Machines without a C compiler: LLVM compiles in the process, with the same results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import mlfc
from mlfc.errors import ToolchainError
from mlfc.library import toolchain
from mlfc.runtime.tensor.arrays import fill
from mlfc.support.tensor_info import Array

# tests/native compiles the same operators with the flags of libraries
pytestmark = pytest.mark.usefixtures("quick_builds")

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits"


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Hide all compilers and clear the cached search results."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(toolchain, "has_zig", lambda: False)
    toolchain._first_compiler.cache_clear()
    toolchain._find.cache_clear()
    yield
    toolchain._first_compiler.cache_clear()
    toolchain._find.cache_clear()


def results(model: Any) -> Mapping[str, Array]:
    inputs = [info.at({"batch": 2}) for info in model.inputs]
    found: Mapping[str, Array] = model.run(fill(inputs, "random", 3))
    return found


FIXED = (DIGITS / "digits_int8.tflite").read_bytes()
OPEN = onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["" : 18]>
    rows (float[batch, 8] x) => (float[batch, 8] y) { a = Softmax(x) y = Mul(a, x) }
""").SerializeToString()


@pytest.mark.parametrize("model", [FIXED, OPEN], ids=["fixed", "open"])
def test_models_and_archives_run_by_llvm(model: bytes, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    compiled = mlfc.compile(model, "c")
    archive = compiled.export(tmp_path / "digits.tar")
    expected = results(mlfc.load(archive))
    request.getfixturevalue("no_compiler")
    for found in (results(mlfc.load(archive)), results(mlfc.compile(model))):
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], expected[key]) for key in expected)


def test_what_needs_a_compiler_says_so(no_compiler: None, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="no C compiler found"):
        mlfc.compile(DIGITS / "digits_int8.tflite").export_library(tmp_path / "digits.so")
    assert list(tmp_path.iterdir()) == []

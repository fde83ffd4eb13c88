"""Inputs whose values decide shapes or control flow: warnings before a run, and errors of runs that reject them."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest

import mlfc as compiler
from mlfc.errors import InputError, MlfcError, RunError
from mlfc.support.tensor_info import TensorInfo
from mlfc.verify.inputs import naming_inputs
from tests.unit.test_cli import DIGITS, mlfc, succeeded

pytestmark = pytest.mark.usefixtures("unoptimized_builds")


def branching(path: Path) -> Path:
    """Write a model whose input ``sr`` decides a branch, and ``shape`` a shape."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18]>
        net (float[N] x, int64 sr, int64[2] shape) => (float[A, B] y) <int64 rate = {16000}> {
            fast = Equal(sr, rate)
            z = If(fast) <then_branch = one () => (float[N] z1) { z1 = Relu(x) },
                          else_branch = two () => (float[N] z2) { z2 = Neg(x) }>
            y = Reshape(z, shape)
        }
    """)
    onnx.save(model, path)
    return path


def test_inputs_that_decide_shapes_and_branches_are_named(tmp_path: Path) -> None:
    model = branching(tmp_path / "net.onnx")
    text = succeeded("check", model, cwd=tmp_path)
    assert "warning: shapes or control flow depend on the value of " in text
    assert "--value sr=16000" in text
    assert "--value shape=..." in text
    for more in ((), ("--profile",)):
        failed = mlfc("run", model, "--fill", "ones", *more, cwd=tmp_path)
        assert failed.returncode == 2
        assert f"error: {model}: " in failed.stderr
        assert "The values of 'sr', 'shape' were generated; pass accepted ones: --inputs FILE.npz" in failed.stderr
    assert json.loads(succeeded("check", DIGITS, "--json", cwd=tmp_path))["deciding"] == []


def test_inputs_that_decide_loops_are_named(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18]>
        net (float[4] x, int64 n, int64 limit, int64 unused) => (float[4] y, int64 z) {
            y = Loop(n, "", x) <body = step (int64 i, bool go, float[4] v) => (bool on, float[4] w) {
                on = Less(i, limit)
                w = Add(v, v)
            }>
            z = Neg(unused)
        }
    """)
    onnx.save(model, tmp_path / "loop.onnx")
    assert {item.argument for item in compiler.examine(tmp_path / "loop.onnx").deciding} == {"n=...", "limit=..."}


@pytest.mark.parametrize("kind", [InputError, RunError])
def test_failures_with_generated_values_name_them(tmp_path: Path, kind: type[MlfcError]) -> None:
    path, infos = branching(tmp_path / "net.onnx"), [TensorInfo("x", (8,), "float32"), TensorInfo("sr", (), "int64")]
    for is_generated in (True, False):
        with pytest.raises(kind) as failed, naming_inputs(path, infos, is_generated=is_generated):
            raise kind("the model reported failure", place="mps2-an386")
        assert failed.value.place == f"{path}: mps2-an386"
        assert (failed.value.next_step or "").endswith("--inputs FILE.npz or --value sr=...") == is_generated

"""``verify --layers`` checks the shipped code with the user's target, compiler and flags, and finds the group."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from mlfc.cli.main import app
from mlfc.verify import verify

# tests/native compiles the same operators with the flags of libraries
pytestmark = pytest.mark.usefixtures("quick_builds")

# a compiler that omits the last channel of the fused function when it optimizes
WRONG = r"""#!/bin/sh
for word in "$@"; do
  case "$word" in
    --version|-O0) exec gcc "$@" ;;
  esac
done
for word in "$@"; do
  case "$word" in
    *.c) sed -i '/nn_relu_add[a-z_0-9]*(.*{$/,/^}/ s/k < 8;/k < 7;/' "$word" ;;
  esac
done
exec gcc "$@"
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a pointwise convolution plus its own ReLU, and a slope for each channel: one fused group."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((16, 8, 1, 1)).astype(np.float32),
        "a": rng.random((16, 1, 1)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["conv"], name="conv"),
        helper.make_node("Relu", ["conv"], ["relu"], name="relu"),
        helper.make_node("Add", ["conv", "relu"], ["sum"], name="add"),
        helper.make_node("PRelu", ["sum", "a"], ["y"], name="prelu"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 8, 6, 6))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 16, 6, 6))],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    path = tmp_path_factory.mktemp("model") / "fused.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def wrong_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set $CC to a compiler that miscompiles the fused function when it optimizes, and use an empty cache."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not on the PATH; on Debian: apt-get install gcc")
    wrapper = tmp_path / "cc"
    wrapper.write_text(WRONG)
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", str(wrapper))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("target", ["c", "c -mcpu=x86-64-v3", "llvm"])
def test_every_layer_and_what_ships_are_compared(model: Path, target: str) -> None:
    pytest.importorskip("onnxruntime")
    result = verify(model, samples=2, layers=True, target=target)
    assert result.is_within
    assert [item.tensor for item in result.outputs] == ["y"]
    assert {item.tensor for item in result.layers} == {"conv", "relu", "sum", "y"}
    assert result.groups == ()


def test_the_fused_group_that_a_compiler_breaks_is_named(model: Path, wrong_compiler: None) -> None:
    pytest.importorskip("onnxruntime")
    result = verify(model, samples=1, layers=True)
    assert all(item.is_within for item in result.layers), "the fault is in the fused function alone"
    assert not result.is_within
    first = result.first_differing
    assert first is not None
    assert first is result.groups[0]
    assert first.nodes == ("conv", "relu", "add", "prelu")
    assert re.search(
        r"C function \w+fused_nn_conv2d_nn_relu_add\w*; correct without compiler optimizations", first.note
    )


def test_the_command_says_differs_and_what_to_do(model: Path, wrong_compiler: None) -> None:
    pytest.importorskip("onnxruntime")
    result = CliRunner().invoke(app, ["verify", str(model), "--layers", "--samples", "1"])
    assert result.exit_code == 1
    assert "fused groups that differ" in result.stdout
    assert "DIFFERS" in result.stdout
    assert isinstance(result.exception, Exception)

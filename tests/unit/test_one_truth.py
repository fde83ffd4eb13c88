"""Tables state bounds, why tensors overlap, and which peak a share refers to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import mlfc
from mlfc.archive.describe.inspect import overlap_note, overlap_notes
from mlfc.cli.inspect import byte_text
from mlfc.cli.main import app
from mlfc.cli.run_tables import print_profile
from mlfc.library.peaks import Peaks
from mlfc.runtime import OperatorTime


def tensor(name: str, offset: int | None, nbytes: int) -> dict[str, Any]:
    return {"name": name, "offset": offset, "bytes": nbytes}


def test_tensors_that_overlap_are_explained() -> None:
    relu, conv, other, unplaced = (
        tensor("relu", 0, 64), tensor("conv", 48, 64), tensor("other", 112, 8), tensor("unplaced", None, 8)
    )  # fmt: skip
    live = [relu, conv, other, unplaced]
    assert overlap_note(conv, live) == "shares memory with relu: each byte is read before it is overwritten"
    assert overlap_note(relu, live) == "shares memory with conv: each byte is read before it is overwritten"
    assert overlap_note(other, live) == overlap_note(unplaced, live) == ""
    assert overlap_notes([[relu], live, [conv]]) == ["", overlap_note(conv, live), ""]


@pytest.mark.parametrize(
    ("shape", "nbytes", "text"),
    [
        ([1, 16], 64, 64),
        (["n", 16], 4096, "at most 4,096"),
        (["n", 16], None, "4 * n * 16"),
        (["2*n + 1", "m"], None, "4 * (2*n + 1) * m"),
    ],
)
def test_bytes_of_dynamic_tensors_have_bounds(shape: list[int | str], nbytes: int | None, text: object) -> None:
    assert byte_text({"name": "x", "shape": shape, "dtype": "float32", "bytes": nbytes}) == text


def test_shares_above_a_peak_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    peaks = Peaks("cpu", 1, 1e9, 1e9, ((1 << 20, 1e9),))

    def printed(macs: int, nbytes: int) -> str:
        operator = OperatorTime(0, "f", ("conv",), macs, 1000.0, 1.0, nbytes)
        print_profile([operator], 0, peaks)
        return capsys.readouterr().out

    fast = printed(1810, 10)
    assert "181  compute" in fast
    assert "shares above 100 % of the peak of compute: MACs are those of the plain operator" in fast
    assert "Winograd" in fast
    assert "shares above 100 % of the peak of memory" in printed(1, 2000)
    assert "above 100 %" not in printed(900, 10)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a product with any number of rows."""
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 16), ("y", 32))
    ]
    weights = numpy_helper.from_array(np.ones((16, 32), np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", infos[:1], infos[1:], [weights])
    path = tmp_path_factory.mktemp("dense") / "dense.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_dynamic_models_show_their_bounds(dense: Path) -> None:
    text = CliRunner().invoke(app, ["inspect", str(dense), "--layers"]).stdout
    assert "4 * n * 16" in text
    assert "no bound (n)" in text
    assert text.splitlines()[-2].endswith("no bound")
    bounded = CliRunner().invoke(app, ["inspect", str(dense), "--shape", "x=n:1..64,16"]).stdout
    assert "at most 4,096" in bounded
    assert "no bound" not in bounded
    unbounded = mlfc.compile(dense)
    assert "workspace=no bound" in repr(unbounded)
    assert "workspace=no bound" in repr(unbounded.memory_map())

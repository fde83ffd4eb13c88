"""The mlfc calls on the page for users of TVM run, from the top of each table to the bottom."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import mlfc
from tests.conftest import need

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "from-tvm.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
TABLES = {
    title: [[cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\|.*\|$", text, re.M)[2:]]
    for title, text in SECTIONS.items()
    if "\n|" in text
}
IMAGE = np.random.default_rng(0).random((1, 3, 8, 8), np.float32)


def spans(cell: str) -> list[str]:
    """Return the code in a cell."""
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the variables of the page's calls, in a folder with the page's models and inputs."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["scores"]),
    ]
    weights = numpy_helper.from_array(rng.standard_normal((4, 3, 3, 3), np.float32), "w")
    for name, batch in (("model.onnx", 1), ("dynamic.onnx", "N")):
        data = helper.make_tensor_value_info("image", 1, [batch, 3, 8, 8])
        result = helper.make_tensor_value_info("scores", 1, [batch, 4, 1, 1])
        graph = helper.make_graph(nodes, "page", [data], [result], [weights])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), name)
    shutil.copy(ROOT / "examples" / "digits" / "digits_int8.tflite", "model.tflite")
    np.savez("in.npz", image=IMAGE)
    return {"mlfc": mlfc, "image": IMAGE}


def run(title: str, names: dict[str, Any], command: Callable[..., str]) -> None:
    """Run the code in the column of mlfc."""
    for theirs, ours, _ in TABLES[title]:
        assert theirs
        assert spans(ours), theirs
        for code in spans(ours):
            if code.startswith("mlfc "):
                command(*shlex.split(code)[1:])
            else:
                exec(code, names)


@pytest.mark.usefixtures("unoptimized_builds")
@pytest.mark.parametrize("title", ["Relay", "tvmc", "microTVM", "Relax"])
def test_each_call_of_a_table_runs(title: str, names: dict[str, Any], command: Callable[..., str]) -> None:
    assert TABLES.keys() == {"Relay", "tvmc", "microTVM", "Relax"}
    if title == "microTVM":
        need("arm-none-eabi-gcc", "gcc-arm-none-eabi")
        need("qemu-system-arm", "qemu-system-arm")
    if title == "Relax":
        names["tvm_ffi"] = pytest.importorskip("tvm_ffi")
    if title == "Relay":
        pytest.importorskip("onnxruntime")
    run(title, names, command)
    if title != "microTVM":
        onnxruntime = pytest.importorskip("onnxruntime")
        (wanted,) = onnxruntime.InferenceSession("model.onnx").run(None, {"image": IMAGE})
        found = np.load("out.npz")["scores"] if title == "tvmc" else np.from_dlpack(names["scores"])
        np.testing.assert_allclose(found, wanted, rtol=1e-5)

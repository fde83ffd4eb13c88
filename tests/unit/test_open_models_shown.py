"""The commands' output for models with dynamic dimensions: symbols, bounds, and worst-case memory."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from mlfc import compile as compile_model
from mlfc.errors import MlfcError
from tests.onnx_graphs import graph_model
from tests.open_models import convolutions
from tests.unit.test_cli import mlfc, succeeded

BOUNDS = ("--shape", "x=1,3,h:8..32,w:8..32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, and its archives with bounds, wider bounds, and no bounds."""
    place = tmp_path_factory.mktemp("open")
    (place / "net.onnx").write_bytes(convolutions())
    for name, shape in (("bounded", BOUNDS), ("wider", ("--shape", "x=1,3,h:8..64,w:8..32")), ("open", ())):
        succeeded("compile", "net.onnx", "--target", "c", "-o", f"{name}.tar", *shape, cwd=place)
    return place


def test_inspect_shows_bounds_and_the_worst_case(folder: Path) -> None:
    shown = succeeded("inspect", "bounded.tar", "--layers", cwd=folder)
    assert re.search(r"dynamic dimensions\n\s+name\s+from\s+to\n\s+h\s+8\s+32\n\s+w\s+8\s+32", shown)
    assert re.search(r"work area, including workspace\s+[1-9]", shown)
    assert re.search(r"peak of [1-9][0-9,]+ live bytes: call 1", shown)
    assert "does not record" not in shown
    module = json.loads(succeeded("inspect", "bounded.tar", "--json", cwd=folder))["modules"]["net"]
    assert module["vm"]["symbols"] == [{"name": "h", "low": 8, "high": 32}, {"name": "w", "low": 8, "high": 32}]
    assert module["operators"][1]["types"][-1] == "float32[1, (h + 1) // 2, (w + 1) // 2, 8]"
    assert max(call["live_bytes"] for call in module["operators"]) == module["peak"]["live_bytes"]
    assert all(call["macs"] is not None for call in module["operators"])


def test_inspect_claims_no_sizes_that_the_run_decides(folder: Path) -> None:
    shown = succeeded("inspect", "open.tar", "--layers", cwd=folder)
    assert re.search(r"h\s+[0-9]+\s+no bound", shown)
    assert "memory is allocated at run time" in shown
    assert not re.search(r"^\s+(workspace|scratch|io)\s+[0-9]", shown, re.MULTILINE)
    assert "does not record" not in shown
    module = json.loads(succeeded("inspect", "open.tar", "--json", cwd=folder))["modules"]["net"]
    assert module["memory"]["scratch_bytes"] is module["memory"]["workspace_bytes"] is None
    convolution = module["operators"][1]
    assert convolution["macs"] is convolution["workspace_bytes"] is convolution["live_bytes"] is None


def test_diff_shows_bounds_as_options_have_them(folder: Path) -> None:
    shown = mlfc("diff", "bounded.tar", "wider.tar", cwd=folder).stdout
    assert re.search(r"bounds of 'h'\s+8\.\.32\s+8\.\.64", shown)
    assert re.search(r"vm symbols\s+h=8\.\.32, w=8\.\.32\s+h=8\.\.64, w=8\.\.32", shown)
    assert re.search(r"workspace\s+[0-9,]+\s+[0-9,]+\s+\+", shown)
    freed = json.loads(mlfc("diff", "bounded.tar", "open.tar", "--json", cwd=folder).stdout)
    changed = {item["name"]: item for item in freed["modules"]["net"]["operators"]["changed"]}
    assert not any("macs" in item or "workspace_bytes" in item for item in changed.values())
    assert "constants_bytes" not in freed["totals"]  # unchanged


@pytest.mark.parametrize("name", ["bounded", "open"])
def test_validate_and_migrate_take_them(name: str, folder: Path, tmp_path: Path) -> None:
    assert "good" in succeeded("validate", f"{name}.tar", cwd=folder)
    succeeded("migrate", f"{name}.tar", "-o", tmp_path / "new.tar", cwd=folder)
    assert (tmp_path / "new.tar").read_bytes() == (folder / f"{name}.tar").read_bytes()


def test_report_has_bounds_and_readable_shapes(folder: Path, tmp_path: Path) -> None:
    succeeded("report", "bounded.tar", "-o", tmp_path / "bounded.html", cwd=folder)
    page = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", (tmp_path / "bounded.html").read_text()))
    assert re.search(r"dynamic dimension from to h 8 32 w 8 32", page)
    assert re.search(r"[0-9,]+ bytes work area", page)
    assert "float32[1, (h + 1) // 2, (w + 1) // 2, 8]" in page
    succeeded("report", "open.tar", "-o", tmp_path / "open.html", cwd=folder)
    page = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", (tmp_path / "open.html").read_text()))
    assert re.search(r"dynamic dimension from to h [0-9]+ no bound w [0-9]+ no bound", page)
    assert "allocates its memory at run time, as its sizes have no bound: h, w" in page
    assert not re.search(r"multiply-accumulates [0-9]+ calls", page)


def test_fit_says_which_bounds_to_give(folder: Path) -> None:
    refused = mlfc("fit", "net.onnx", cwd=folder)
    assert refused.returncode == 2
    assert "or bounds, for example: --shape x=1,3,h:1..224,w:1..224" in refused.stderr


def test_bounds_of_a_sum_of_dimensions_are_suggested() -> None:
    infos = {"x": (TensorProto.FLOAT, ["batch", "past + new"]), "y": (TensorProto.FLOAT, ["batch", "past"])}
    nodes = [helper.make_node("Relu", [name], [f"{name}_relu"]) for name in infos]
    outputs = {f"{name}_relu": (TensorProto.FLOAT, None) for name in infos}
    with pytest.raises(MlfcError, match=r"--shape x=batch:1\.\.8,past_new:1\.\.\d+ --shape y=batch:1\.\.8,past:1"):
        compile_model(graph_model(nodes, infos, outputs), "c -mcpu=cortex-m4", executor="graph")

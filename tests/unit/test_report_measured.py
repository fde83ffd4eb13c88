"""Measurements of calls on a page, pages of two archives and of libraries, and the command that writes them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import mlfc
from mlfc.archive.compare.compare_page import compare_page
from mlfc.archive.compare.diff import matched_operators
from mlfc.archive.describe.measured import (
    INSTRUCTIONS,
    MICROSECONDS,
    Costs,
    ModuleMeasurements,
    TensorDifference,
    cost_bars,
    roofline,
)
from mlfc.archive.describe.report_page import OperatorTable, library_page, report_page
from mlfc.archive.read.opening import open_archive
from mlfc.cli.main import app
from mlfc.library.peaks import Peaks
from mlfc.runtime.executors.profile import OperatorTime
from tests.report_html import Page
from tests.vm_models import two_layers

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.onnx"
HOSTILE = '</script><script>alert("1")</script>'
# 10 GMAC/s in float32, 4 GB/s from the cache and 1 GB/s from memory
PEAKS = Peaks("a processor", 1, 10e9, 40e9, ((1 << 15, 4e9), (1 << 26, 1e9)))


def _operators() -> list[dict[str, Any]]:
    """Return a compute-bound call, a memory-bound one, and one without multiply-accumulates."""
    known = {"live_bytes": 1, "workspace_bytes": 0, "types": ["float32[8]", "float32[8]"], "outputs": []}
    prefix = "tvmgen_m_fused_nn_"
    return [
        {**known, "function": f"{prefix}dense", "nodes": ["dense"], "macs": 80_000, "bytes": 4_000, "reads": [-1]},
        {**known, "function": f"{prefix}dense_1", "nodes": ["thin"], "macs": 1_000, "bytes": 8_000, "reads": [0]},
        {**known, "function": f"{prefix}relu", "nodes": [HOSTILE], "macs": 0, "bytes": 800, "reads": [0, 1]},
    ]  # fmt: skip


def _costs() -> Costs:
    times = tuple(
        OperatorTime(
            index, item["function"], tuple(item["nodes"]), item["macs"], us * 1e3, 0.3, item["bytes"], ("float32[8]",)
        )
        for index, (item, us) in enumerate(zip(_operators(), (16.0, 4.0, 2.0), strict=True))
    )
    return Costs("a processor", MICROSECONDS, (16.0, 4.0, 2.0), times, PEAKS)


def test_bars_are_as_high_as_calls_took_and_coloured_by_their_bound() -> None:
    svg = cost_bars(_operators(), _costs())
    Page(svg)
    heights = [float(part.partition('"')[0]) for part in svg.split('height="')[1:] if part.partition('"')[0] != "10"]
    bars = [height for height in heights if height in (200.0, 50.0, 25.0)]
    assert bars == [200.0, 50.0, 25.0]
    assert "50.0% of the peak of compute" in svg
    assert "50.0% of the peak of memory" in svg
    assert "72.7%" in svg
    assert HOSTILE not in svg


def test_points_lie_below_the_limits_that_are_known() -> None:
    svg = roofline(_operators(), _costs())
    assert svg is not None
    page = Page(svg)
    assert page.kinds.count("point") == 2, "what multiplies nothing has no place"
    assert page.kinds.count("roof") == 3
    words = " ".join(page.words)
    assert "float32: 10 G MACs a second" in words
    assert "nearest cache: 4 GB a second" in words
    assert "memory: 1 GB a second" in words
    assert "20 MACs a byte, 5 G MACs a second, 16.00 us" in words


def test_boards_have_instructions_and_no_limits() -> None:
    costs = Costs("a board", INSTRUCTIONS, (160_000.0, 4_000.0, 1_000.0))
    svg = roofline(_operators(), costs)
    assert svg is not None
    page = Page(svg)
    assert "roof" not in page.kinds
    assert any("0.5 MACs an instruction, 160,000 instructions" in word for word in page.words)
    assert "165,000 instructions on a board" in cost_bars(_operators(), costs)
    assert roofline(_operators()[2:], Costs("a board", INSTRUCTIONS, (5.0,))) is None


def test_the_table_has_times_bounds_and_differences() -> None:
    from mlfc.archive.describe.graph_picture import SourceNode

    sources = {"dense": SourceNode(("nn.dense",), "", (), ("t",)), "thin": SourceNode(("nn.dense",), "", (), ("u",))}
    found = {
        "t": TensorDifference("t", 0.5, 0.25, False, "DIFFERS"),
        "u": TensorDifference("u", 0.125, 0.25, True, "equal"),
    }
    table = OperatorTable("m", _operators(), ["x"], sources, {}, ModuleMeasurements(_costs(), "a reference", found))
    page = Page("".join(table.html()))
    assert {"us", "share", "bound", "of peak", "difference", "allowed", "verdict", "contract"} <= set(page.words)
    assert {"16.00", "72.7%", "compute", "memory", "50.0%", "DIFFERS", "equal", "not compared"} <= set(page.words)
    assert [page.kinds.count(kind) for kind in ("bad", "good")] == [1, 1]
    assert table.marks() == {0: "removed"}
    assert ("largest difference", "0.5 of 0.25: DIFFERS") in table.facts()[0]
    assert ("took", "4.00 us") in table.facts()[1]
    others = OperatorTable("m", _operators()[:2], ["x"], {}, {}, ModuleMeasurements(_costs()))
    assert others.costs is None, "times of other calls are not those of these"


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return archives of the digits model for two targets, and of a model with a bounded batch."""
    folder = tmp_path_factory.mktemp("archives")
    module, params = mlfc.import_model(DIGITS)
    for name, target in (("host", "c"), ("m4", "c -mcpu=cortex-m4")):
        mlfc.export_model_library_format(mlfc.build(module, target, params, module_name=name), folder / f"{name}.tar")
    module, params = two_layers(high=32)
    mlfc.export_model_library_format(mlfc.build(module, "c", params, executor="vm"), folder / "open.tar")
    return {path.stem: path for path in folder.iterdir()}


def test_two_archives_are_matched_by_the_nodes_of_the_model(archives: Mapping[str, Path]) -> None:
    text = compare_page(archives["host"], archives["m4"], ("before", HOSTILE))
    page = Page(text)
    assert page.open == []
    assert HOSTILE not in text
    words = " ".join(page.words)
    assert "Matched by the nodes of the model" in words
    modules = [next(iter(mlfc.inspect(archives[name])["modules"].values())) for name in ("host", "m4")]
    matched = matched_operators(*modules)
    assert matched is not None
    assert all(None not in item.places for item in matched)
    for side in modules:
        assert f"{side['memory']['workspace_bytes']:,}" in page.words
    assert page.kinds.count("graph") == 2
    assert page.kinds.count("map") == 2
    assert {item.removeprefix("#") for item in page.targets} <= set(page.ids)
    assert {"A.host.", "B.m4."} == {item.partition("tvmgen")[0] for item in page.ids}
    assert text == compare_page(archives["host"], archives["m4"], ("before", HOSTILE))


def test_equal_archives_say_so(archives: Mapping[str, Path]) -> None:
    page = Page(compare_page(archives["host"], archives["host"], ("a", "a")))
    assert "nothing changed" in page.words
    assert not {"bad", "unsure"} & set(page.kinds)


def test_archives_that_name_no_nodes_are_not_matched(archives: Mapping[str, Path], shared: Path) -> None:
    words = Page(
        compare_page(shared / "fixtures" / "tvm-0.14" / "kws_aot_c.tar.xz", archives["host"], ("a", "b"))
    ).words
    assert any("cannot be matched" in word for word in words)


def test_open_extents_and_the_worst_case_are_shown(archives: Mapping[str, Path]) -> None:
    with open_archive(archives["open"]) as opened:
        page = Page(report_page(opened, "open"))
    (module,) = mlfc.inspect(archives["open"])["modules"].values()
    assert {"batch", "32", f"{module['vm']['arena_bytes']:,} bytes"} <= set(page.words)
    assert "map" in page.kinds, "with bounds, storage has a place"


def test_without_bounds_the_run_decides_on_storage(tmp_path: Path) -> None:
    module, params = two_layers()
    mlfc.export_model_library_format(mlfc.build(module, "c", params, executor="vm"), tmp_path / "open.tar")
    with open_archive(tmp_path / "open.tar") as opened:
        page = Page(report_page(opened, "open"))
    assert any("allocates its memory at run time, as its sizes have no bound: batch" in word for word in page.words)
    assert "no bound" in page.words
    assert "map" not in page.kinds


@pytest.mark.parametrize("high", [32, None])
def test_libraries_have_a_page(high: int | None, tmp_path: Path) -> None:
    module, params = two_layers(high) if high else two_layers()
    mlfc.build(module, "c", params, executor="vm", module_name="net").export_library(tmp_path / "net.so")
    page = Page(library_page(tmp_path / "net.so", HOSTILE))
    assert {"Module net", "(batch, 8)", "probabilities", "shared library"} <= set(page.words)
    assert ("no bound" in page.words) == (high is None)
    assert any("unknown before the run" in word for word in page.words) == (high is None)


def test_what_the_run_decides_counts_as_it_was_run() -> None:
    """Use the multiply-accumulates of the profiled run; the archive contains their maximum."""
    operators = [{**_operators()[0], "macs": 999_999_999, "bytes": None}, *_operators()[1:]]
    svg = roofline(operators, _costs())
    assert svg is not None
    assert "20 MACs a byte, 5 G MACs a second" in svg
    assert roofline(operators[:1], Costs("a board", INSTRUCTIONS, (5.0,))) is None


def test_what_modules_share_is_told(tmp_path: Path) -> None:
    module, params = mlfc.import_model(DIGITS)
    factories = [mlfc.build(module, "c", params, module_name=name) for name in ("one", "two")]
    mlfc.export_model_library_format(factories, tmp_path / "two.tar", share_weights=True, share_workspace=True)
    with open_archive(tmp_path / "two.tar") as opened:
        page = Page(report_page(opened, "two"))
    shared = mlfc.inspect(tmp_path / "two.tar")["shared"]
    assert {"Shared by modules", "workspace of one, two", f"{shared['workspace_bytes']:,} bytes"} <= set(page.words)
    assert f"{shared['constants_bytes']:,} bytes" in page.words
    assert page.kinds.count("graph") == 2


def test_scripts_of_pages_parse(archives: Mapping[str, Path], tmp_path: Path) -> None:
    with open_archive(archives["host"]) as opened:
        text = report_page(opened, "host")
    (tmp_path / "page.js").write_text(text.rpartition("<script>")[2].partition("</script>")[0])
    found = subprocess.run(["node", "--check", str(tmp_path / "page.js")], check=False, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def _run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return result.exit_code, result.output if result.exception is None else str(result.exception) or result.output


def test_a_model_is_timed_and_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlfc.cli.report.known_peaks", lambda _: PEAKS)
    status, told = _run(DIGITS, "--no-boards", "--profile", "--verify", "-o", tmp_path / "r.html")
    assert status == 0, told
    page = Page((tmp_path / "r.html").read_text())
    words = set(page.words)
    assert {"Time", "Roofline", "us", "of peak", "verdict", "against ONNX Runtime"} <= words
    assert any("tensors are equal" in word for word in words)
    assert page.kinds.count("bad") == 0


def test_two_artifacts_of_any_kind_are_compared(archives: Mapping[str, Path], tmp_path: Path) -> None:
    status, told = _run(DIGITS, archives["m4"], "-o", tmp_path / "r.html")
    assert status == 0, told
    assert {"digits.onnx and m4.tar"} <= set(Page((tmp_path / "r.html").read_text()).words)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("host", "--verify"), "option --verify requires a model, got an archive"),
        (("host", "--target", "c"), "option --target requires a model, got an archive"),
        (("host", "m4", "--profile"), "options --profile and --verify require one artifact, got two"),
        (("host", "--board", "mps2-an386", "--target", "c"), "options --board and --target exclude each other"),
        (("host", "--shape", "x=1"), "option --shape requires a model"),
    ],
)
def test_options_that_have_no_meaning_are_refused(
    arguments: tuple[str, ...], expected: str, archives: Mapping[str, Path], tmp_path: Path
) -> None:
    named = [archives.get(argument, argument) for argument in arguments]
    status, told = _run(*named, "-o", tmp_path / "r.html")
    assert status != 0
    assert expected in told
    assert list(tmp_path.iterdir()) == []


def test_a_difference_is_shown_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the page nevertheless."""
    from dataclasses import replace

    from mlfc.verify import Comparison, Difference

    item = Difference("probabilities", "float32", 0.5, 1e-5, "random 0", 3, 1)
    found = Comparison("ONNX Runtime", 1, (replace(item),), (item,))
    monkeypatch.setattr("mlfc.cli.report.compared", lambda *_: found)
    status, told = _run(DIGITS, "--no-boards", "--verify", "-o", tmp_path / "r.html")
    assert status != 0
    assert "the first layer that differs is probabilities" in told
    assert "1 of 1 tensors differ" in Page((tmp_path / "r.html").read_text()).words


def test_data_of_pages_are_json(archives: Mapping[str, Path]) -> None:
    with open_archive(archives["host"]) as opened:
        text = report_page(opened, "host")
    data = json.loads(text.partition('<script type="application/json">')[2].partition("</script>")[0])
    (module,) = mlfc.inspect(archives["host"])["modules"].values()
    assert sum(node["kind"] == "call" for node in data["nodes"]) == len(module["operators"])

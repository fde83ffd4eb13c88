"""Command-line options for memory placement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.test_cli import DIGITS, mlfc, succeeded


def inspected(path: Path) -> dict[str, object]:
    text = succeeded("inspect", path, "--json", cwd=path.parent)
    return json.loads(text)["modules"]["digits"]


def test_memories_reach_the_archive_and_stay_when_it_is_compiled_again(tmp_path: Path) -> None:
    memories = ("--workspace-io", "--pool", "dtcm=2000", "--pool", "sram", "--constants", "itcm=4096")
    succeeded("compile", DIGITS, *memories, "--load-constants", "xip", "-o", "digits.tar", cwd=tmp_path)
    found = inspected(tmp_path / "digits.tar")
    assert found["workspace_io"] is True
    assert [pool["name"] for pool in found["pools"]] == ["dtcm", "sram"]
    assert {pool["name"]: pool["file"] for pool in found["constant_pools"]} == {
        "itcm": None,
        "xip": "src/digits_lib3.xip.bin",
    }
    succeeded("compile", "digits.tar", "-o", "again.tar", cwd=tmp_path)
    assert (tmp_path / "again.tar").read_bytes() == (tmp_path / "digits.tar").read_bytes()
    succeeded("compile", "digits.tar", "--own-io", "--pool", "one", "-o", "other.tar", cwd=tmp_path)
    other = inspected(tmp_path / "other.tar")
    assert (other["workspace_io"], len(other["pools"])) == (False, 1)
    assert other["constant_pools"] == found["constant_pools"]
    text = succeeded("inspect", "digits.tar", cwd=tmp_path)
    assert "workspace in dtcm" in text
    assert "sram + 0\n" in text
    spans = {pool["name"]: (pool["base"], pool["base"] + pool["bytes"]) for pool in found["pools"]}
    for tensor in (tensor for operator in found["operators"] for tensor in operator["tensors"]):
        low, high = spans[tensor["pool"]]
        assert low <= tensor["offset"] <= tensor["offset"] + tensor["bytes"] <= high


def test_a_boards_memories_are_its_pools(tmp_path: Path) -> None:
    succeeded("compile", DIGITS, "--board", "mps3-an547", "--board-pools", "-o", "digits.tar", cwd=tmp_path)
    assert [pool["name"] for pool in inspected(tmp_path / "digits.tar")["pools"]] == ["dtcm"]


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    wrong = ("--pool", "a=b", "--pool", "Upper=1", "--pool", "x=0", "--constants", "c", "--constants", "c")
    result = mlfc("compile", DIGITS, *wrong, "--board-pools", cwd=tmp_path)
    assert result.returncode == 2
    for said in (
        "got 'a=b'",
        "'Upper' cannot be",
        "'x' has no bytes",
        "'c' is given twice",
        "--board-pools requires --board",
    ):
        assert said in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--workspace-io", "--pool=a", "--constants=a", "--load-constants=a"])
def test_the_graph_executor_takes_none(tmp_path: Path, option: str) -> None:
    result = mlfc("compile", DIGITS, "--executor", "graph", option, cwd=tmp_path)
    assert result.returncode == 2
    assert "--executor aot" in result.stderr


def test_pools_that_are_too_small_end_with_status_one(tmp_path: Path) -> None:
    result = mlfc("compile", DIGITS, "--pool", "tiny=500", cwd=tmp_path)
    assert result.returncode == 1
    assert "'tiny' of 500 bytes would need" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_diff_tells_that_callers_break_and_what_ram_becomes(tmp_path: Path) -> None:
    succeeded("compile", DIGITS, "-o", "a.tar", cwd=tmp_path)
    succeeded("compile", DIGITS, "--workspace-io", "-o", "b.tar", cwd=tmp_path)
    result = mlfc("diff", "a.tar", "b.tar", "--json", cwd=tmp_path)
    document = json.loads(result.stdout)
    module = document["modules"]["digits"]
    assert any(item["level"] == "break" and "tvmgen_digits_run" in item["what"] for item in module["interface"])
    found = {name: inspected(tmp_path / f"{name}.tar")["memory"] for name in "ab"}
    before = found["a"]["workspace_bytes"] + found["a"]["io_bytes"]
    assert document["totals"]["ram_bytes"] == [before, found["b"]["workspace_bytes"]]

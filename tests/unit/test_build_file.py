"""`mlfc compile`: help with the common options first, and options from a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.test_cli import DIGITS, mlfc, succeeded

PANELS = [
    "Options:", "Matrix options:", "Code generation options:", "Memory options:", "Library options:",
    "Archive options:",
]  # fmt: skip


def sections(text: str) -> dict[str, list[str]]:
    """Return the names of the options under each heading of a help text."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.endswith("ptions:"):
            found[line] = []
        elif found and line.startswith("  -"):
            found[list(found)[-1]] += [
                word.strip(",") for word in line.strip().split("  ")[0].split() if word.startswith("--")
            ]
    return found


def test_help_shows_the_common_options_first(tmp_path: Path) -> None:
    found = sections(succeeded("compile", "--help", cwd=tmp_path))
    assert list(found) == PANELS
    assert len(found["Options:"]) <= 15
    assert {"--output", "--target", "--board", "--ram", "--config"} <= set(found["Options:"])
    assert {"--pool", "--external-workspace"} <= set(found["Memory options:"])
    everything = [name for names in found.values() for name in names]
    assert len(everything) == len(set(everything)) > 40


def test_options_come_from_a_file_and_the_command_line_wins(tmp_path: Path) -> None:
    folder = tmp_path / "settings"
    folder.mkdir()
    (folder / "build.toml").write_text(
        'output = "made.tar"\nmodule-name = "of_file"\noptimize = "size"\nworkspace_io = true\ntest_vectors = 1\n'
        'executor = "aot"\npool = ["fast=4096", "slow"]\nlimit-factor = 2\njson = true\n'
    )
    made = json.loads(succeeded("compile", DIGITS, "--config", "settings/build.toml", cwd=tmp_path))
    assert list(made["modules"]) == ["of_file"]
    assert (folder / "made.tar").is_file()
    shown = json.loads(succeeded("inspect", folder / "made.tar", "--json", cwd=tmp_path))["modules"]["of_file"]
    assert shown["workspace_io"] is True
    options = ("--config", "settings/build.toml", "--module-name", "mine", "-o", "here.tar")
    made = json.loads(succeeded("compile", DIGITS, *options, cwd=tmp_path))
    assert list(made["modules"]) == ["mine"]
    assert (tmp_path / "here.tar").is_file()


def test_all_faults_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "build.toml").write_text(
        'tarqet = "c"\nram = "much"\ntest-vectors = true\npool = [1]\n[shape]\nx = "1,2"\n'
    )
    result = mlfc("compile", DIGITS, "--config", "build.toml", cwd=tmp_path)
    assert result.returncode == 2
    assert "build.toml:1: unknown option 'tarqet' in build.toml; nearest: 'target'" in result.stderr
    assert "build.toml:2: expected bytes such as 65536, 64k or 1M, got 'much' for 'ram'" in result.stderr
    assert "build.toml:3: expected an integer for 'test-vectors', got true or false" in result.stderr
    assert "build.toml:4: expected a list of strings for 'pool', got a list" in result.stderr
    assert "build.toml:5: expected a list of strings for 'shape', got a table" in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"ram = \n", "build.toml: expected TOML: Invalid value (at line 1"),
        (b"\xff", "build.toml: expected TOML: "),
        (b'config = "other.toml"\n', "unknown option 'config'"),
        (None, "build.toml: cannot read the file"),
    ],
)
def test_files_that_are_no_build_files(content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "build.toml").write_bytes(content)
    result = mlfc("compile", DIGITS, "--config", "build.toml", cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr

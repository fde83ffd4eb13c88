"""Archives made for another core than a board's: a warning if they can run there, otherwise an error."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from mlfc.micro.board.board import boards, find_board
from mlfc.micro.board.object_code import mismatch
from tests.unit.test_cli import DIGITS, mlfc, succeeded

M4_OBJECTS = "llvm -mtriple=thumbv7em-none-eabi -mcpu=cortex-m4"


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an archive for any machine, one for a Cortex-M4, and objects for a Cortex-M4 and RISC-V."""
    folder = tmp_path_factory.mktemp("cores")
    for name, target in (
        ("plain", "c"), ("m4", "c -mcpu=cortex-m4"), ("m4_objects", M4_OBJECTS),
        ("riscv_objects", "llvm -mtriple=riscv32-none-elf -mcpu=generic-rv32"),
    ):  # fmt: skip
        succeeded("compile", DIGITS, "--target", target, "--module-name", "digits", "-o", f"{name}.tar", cwd=folder)
    return folder


@pytest.mark.parametrize(
    ("target", "board", "reasons"),
    [
        ("c", "mps3-an547", ("its loops leave the core's MVE instructions unused",
                             "its loops are made for vectors of 64 bytes, which the core lacks")),
        ("c", "mps2-an385", ("its loops are made for vectors of 64 bytes, which the core lacks",)),
        ("c -mcpu=cortex-m3", "mps2-an386", ("its loops leave the core's DSP instructions unused",)),
        ("c -mcpu=cortex-m4", "mps2-an385", ("its loops are made for DSP instructions, which the core lacks",)),
        ("c -mcpu=cortex-m4", "qemu-riscv32", ("its loops are made for DSP instructions, which the core lacks",)),
        ("c -mcpu=cortex-m4", "mps2-an500", ()),
        ("c -mcpu=cortex-m0", "microbit", ()),
        ("c -mcpu=cortex-m0", "arduino_mega", ()),
        (M4_OBJECTS, "mps2-an386", ()),
        ("c -keys=arm_cpu,cpu -mcpu=cortex-m7", "mps2-an386", ()),
        ("hexagon -mcpu=v68", "mps2-an386", ()),
    ],
)  # fmt: skip
def test_what_code_makes_of_another_core_is_known(target: str, board: str, reasons: tuple[str, ...]) -> None:
    found = mismatch("m", target, find_board(board))
    assert (found.reasons if found else ()) == reasons


@pytest.mark.parametrize("name", list(boards()))
def test_what_is_compiled_for_a_board_suits_it(name: str) -> None:
    assert mismatch("m", boards().get(name).target, boards().get(name)) is None


def test_a_warning_is_one_line_and_its_advice_works(archives: Path) -> None:
    command = ("inspect", "plain.tar", "--board", "mps3-an547")
    result = mlfc(*command, cwd=archives)
    assert result.returncode == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith("warning: module 'digits' was compiled for 'c', and mps3-an547 has another core: its loops")
    document = json.loads(mlfc(*command, "--json", cwd=archives).stdout)
    assert [f"warning: {text}" for text in document["warnings"]] == [line]
    advice = line.partition("Compile it again: mlfc ")[2]
    succeeded(*shlex.split(advice), cwd=archives)
    again = mlfc("inspect", "NEW.tar", "--board", "mps3-an547", "--json", cwd=archives)
    assert (again.returncode, again.stderr) == (0, "")
    assert "warnings" not in json.loads(again.stdout)


def test_projects_are_made_with_the_warning(archives: Path, tmp_path: Path) -> None:
    arguments = ("project", "create", archives / "m4.tar", "made", "--template", "makefile", "--board", "mps2-an385")
    result = mlfc(*arguments, "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (line,) = result.stderr.splitlines()
    assert "its loops are made for DSP instructions, which the core lacks, so it runs slower" in line
    assert len(json.loads(result.stdout)["warnings"]) == 1


@pytest.mark.parametrize(
    ("archive", "board", "reason"),
    [
        ("m4_objects", "mps2-an385", "code for Armv7E-M"),
        ("m4_objects", "microbit", "code for Armv7E-M"),
        ("m4_objects", "qemu-riscv32", "code of Arm"),
        ("riscv_objects", "mps2-an386", "code of RISC-V"),
    ],
)
def test_objects_that_cannot_run_are_refused(
    archives: Path, tmp_path: Path, archive: str, board: str, reason: str
) -> None:
    path = archives / f"{archive}.tar"
    for arguments in (
        ("inspect", path), ("run", path), ("verify", DIGITS, path),
        ("project", "create", path, "made", "--template", "makefile"),
    ):  # fmt: skip
        result = mlfc(*arguments, "--board", board, cwd=tmp_path)
        assert result.returncode == 2, (arguments, result.stderr)
        assert f"the model's code cannot run on {board}" in result.stderr
        assert f"its objects are {reason}" in result.stderr
        assert f"mlfc compile MODEL --board {board}" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("board", ["mps2-an386", "mps2-an500", "mps2-an505"])
def test_objects_run_on_cores_that_have_all_of_their_instructions(archives: Path, board: str) -> None:
    succeeded("inspect", "m4_objects.tar", "--board", board, cwd=archives)


@pytest.mark.parametrize("command", ["inspect", "compile"])
def test_what_does_not_fit_fails_without_negative_numbers(command: str, archives: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.toml"
    text = boards().get("mps2-an386").text.replace("stack_bytes = 65536", "stack_bytes = 256")
    small.write_text(text.replace("bytes = 0x00400000", "bytes = 0x00001000", 1))
    model = archives / "m4.tar" if command == "inspect" else DIGITS
    result = mlfc(command, model, "--board", small, cwd=tmp_path)
    assert result.returncode == 1
    assert "bytes exceed the 4,096 of 'flash' by" in result.stderr
    assert "or choose a larger board" in result.stderr
    assert not re.search(r" -[0-9]", result.stdout)
    document = mlfc(command, model, "--board", small, "--json", cwd=tmp_path)
    assert document.returncode == 1
    if command == "inspect":
        (over,) = [line.split() for line in result.stdout.splitlines() if line.split()[1:2] == ["over"]]
        flash = json.loads(document.stdout)["regions"][0]
        assert (flash["free"], flash["over"]) == (0, flash["used"] - 4096)
        assert int(over[2].replace(",", "")) == flash["over"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.toml"]

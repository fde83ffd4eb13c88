"""CMSIS packs: the files that pack and solution list, built as described, with stand-ins for files of other packs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml

from mlfc.errors import OptionError
from mlfc.micro.board.board import Board
from tests.conftest import WATCHDOG
from tests.emulator.conftest import need_board
from tests.projects import NAME, archive, expected_output, printed_output, project

STAND_IN = Path(__file__).parent / "stand_ins" / "cmsis"
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def document(folder: Path, kind: str) -> dict[str, Any]:
    """Return the content of a CMSIS-Toolbox file below its single top-level key."""
    (content,) = yaml.safe_load((folder / f"{NAME}.{kind}.yml").read_text()).items()
    assert content[0] == kind.removeprefix("c")
    return content[1]


def component(folder: Path, vendor: str = "mlfc") -> ElementTree.Element:
    """Return the pack's single component, looked up by the name in the layer."""
    package = ElementTree.parse(folder / f"{vendor}.{NAME}.pdsc").getroot()
    assert (package.findtext("vendor"), package.findtext("name")) == (vendor, NAME)
    (found,) = package.iterfind("components/component")
    ((named,),) = [[entry["component"] for entry in document(folder, "clayer")["components"]]]
    assert named == f"{vendor}::{found.get('Cclass')}:{found.get('Cgroup')}:{found.get('Csub')}"
    assert [item.get("id") for item in package.iterfind("conditions/condition")] == [found.get("condition")]
    return found


def built(folder: Path, board: Board) -> Path:
    """Build the solution's single project with GCC."""
    solution, made, layer = (document(folder, kind) for kind in ("csolution", "cproject", "clayer"))
    (target,), (entry,) = solution["target-types"], layer["components"]
    core = [f"-mcpu=cortex-{target['device'].removeprefix('ARMC').lower()}", "-mthumb"]
    core += ["-mfloat-abi=hard", {"sp": "-mfpu=fpv4-sp-d16", "dp": "-mfpu=fpv5-d16"}[target["processor"]["fpu"]]]
    assert set(core) == set(board.toolchain.flags)
    files = {kind: [] for kind in ("include", "header", "source", "other")}
    for item in component(folder).iterfind("files/file"):
        files[item.get("category", "")].append(item.get("name"))
    includes = [f"-I{folder / name}" for name in files["include"]]
    application = [item["file"] for group in made["groups"] for item in group["files"]]
    own, link = entry["misc"][0]["C"], made["misc"][0]["Link"]
    elf = folder / "firmware.elf"
    sources = [*(str(folder / name) for name in (*files["source"], *application)), str(STAND_IN / "startup.c")]
    command = ["arm-none-eabi-gcc", "-std=c99", "-O2", *core, *WARNINGS, *own, *includes, *sources, *link]
    subprocess.run([*command, "-T", str(STAND_IN / "link.ld"), "-lm", "-o", str(elf)], check=True)
    return elf


def said(elf: Path, board: Board) -> str:
    assert board.emulator is not None
    command = board.emulator.command(str(elf))
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=WATCHDOG).stdout


@pytest.mark.parametrize("project_type", ["standalone", "selftest"])
def test_the_solution_computes_what_the_reference_does(project_type: str, models: Path, tmp_path: Path) -> None:
    board = need_board("mps2-an386")
    model = archive(models, tmp_path, board.target, external_workspace=project_type == "selftest")
    folder = project("cmsis_pack", model, tmp_path / "project", board.name, project_type)
    text = said(built(folder, board), board)
    if project_type == "selftest":
        assert "PASS 2 of 2" in text
    else:
        np.testing.assert_array_equal(printed_output(text), expected_output(models, model))


def test_every_file_that_the_pack_and_the_solution_name_is_there(models: Path, tmp_path: Path) -> None:
    model = archive(models, tmp_path, "c -mcpu=cortex-m55")
    options = {"vendor": "Example-Inc", "device": "Example::XYZ123", "device_pack": "Example::XYZ_DFP@1.2.3"}
    folder = project("cmsis_pack", model, tmp_path / "project", "mps3-an547", **options)
    found = component(folder, "Example-Inc")
    named = [item.get("name") for item in found.iterfind("files/file")]
    assert len(named) == len(set(named)) > 4
    assert all((folder / name).exists() and name.endswith("/") == (folder / name).is_dir() for name in named)
    solution, made = document(folder, "csolution"), document(folder, "cproject")
    packs = {pack["pack"]: pack.get("path") for pack in solution["packs"]}
    assert packs == {f"Example-Inc::{NAME}": ".", "ARM::CMSIS": None, "Example::XYZ_DFP@1.2.3": None}
    assert solution["target-types"] == [{"type": "mps3-an547", "device": "Example::XYZ123"}]
    assert found.get("condition") == "Cortex-M55"
    for path in [
        *(entry["project"] for entry in solution["projects"]),
        *(entry["layer"] for entry in made["layers"]),
        *(entry["file"] for group in made["groups"] for entry in group["files"]),
    ]:
        assert (folder / path).is_file()


@pytest.mark.parametrize(
    ("board", "options", "message"),
    [
        ("qemu-riscv32", {}, "Cortex-M"),
        ("mps2-an386", {"vendor": "a vendor"}, "option 'vendor'"),
        ("mps2-an386", {"device": "x'y"}, "device"),
    ],
)
def test_what_the_format_cannot_say_is_refused(
    board: str, options: dict[str, str], message: str, models: Path, tmp_path: Path
) -> None:
    model = archive(models, tmp_path, "c")
    with pytest.raises(OptionError, match=message):
        project("cmsis_pack", model, tmp_path / "project", board, **options)
    assert not (tmp_path / "project").exists()

"""The README of a project: valid shell commands, and the requirements of the firmware."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

import mlfc
from mlfc.errors import OptionError
from mlfc.micro.board.board import find_board
from mlfc.micro.project.generate import generate_project

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"


@pytest.fixture(scope="module")
def readme_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], str]:
    mod, params = mlfc.import_model(DIGITS)
    place = tmp_path_factory.mktemp("readme")
    factory = mlfc.build(mod, "c -mcpu=cortex-m4", params, module_name="digits")
    archive = mlfc.export_model_library_format(factory, place / "digits.tar")

    def readme(template: str, board: str) -> str:
        options = {"board": board, "project_type": "standalone"}
        return (generate_project(template, archive, place / f"{template}_{board}", options) / "README.md").read_text()

    return readme


def test_commands_are_quoted_for_a_shell(readme_of: Callable[[str, str], str]) -> None:
    line = next(line for line in readme_of("makefile", "nucleo_l4r5zi").splitlines() if "openocd -f" in line)
    tool = find_board("nucleo_l4r5zi").flash_tool
    assert tool is not None
    assert shlex.split(line) == [argument.replace("{elf}", "firmware.elf") for argument in tool.command]


@pytest.mark.parametrize(
    ("template", "board", "reads_files", "needs_debugger"),
    [
        ("makefile", "mps2-an386", True, False),
        ("cmake", "nucleo_l4r5zi", True, True),
        ("makefile", "host", True, False),
        ("zephyr", "nucleo_l4r5zi", False, False),
    ],
)
def test_firmware_that_needs_files_or_a_debugger_says_so(
    readme_of: Callable[[str, str], str], template: str, board: str, reads_files: bool, needs_debugger: bool
) -> None:
    text = readme_of(template, board)
    main = "app/src/main.c" if template == "zephyr" else "main.c"
    assert f"Your code goes into `{main}`, " in text
    assert ("`inputs.bin`" in text) == reads_files
    assert ("arm semihosting enable" in text) == needs_debugger


@pytest.mark.parametrize(
    ("board", "instead"), [("rp2040", "zephyr or arduino"), ("esp32c3", "zephyr or arduino or esp_idf")]
)
def test_boards_with_a_loader_name_the_templates_that_serve_them(board: str, instead: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"loader starts it; use the template {instead}$"):
        generate_project("makefile", DIGITS, tmp_path / "made", {"board": board, "project_type": "standalone"})

"""Start-up and measurement code has no clang warnings either; the tests on emulators build it with gcc."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mlfc.micro.board import board as board_room
from mlfc.micro.board.board import find_board
from mlfc.micro.firmware.bare_metal import Firmware, bare_metal
from mlfc.support.content import to_bytes
from tests.conftest import need

WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only")
CORES = {
    "mps2-an386": ("--target=arm-none-eabi", "-mthumb", "-mcpu=cortex-m4"),
    "microbit": ("--target=arm-none-eabi", "-mthumb", "-mcpu=cortex-m0"),
    "mps3-an547": ("--target=arm-none-eabi", "-mthumb", "-mcpu=cortex-m55"),
    "qemu-riscv32": ("--target=riscv32", "-march=rv32imac"),
    "host": (),
}
# clang has no C library for other cores
STRINGS = (
    "#include <stddef.h>\nsize_t strlen(const char *text);\nvoid *memcpy(void *to, const void *from, size_t size);\n"
)


@pytest.mark.parametrize("name", CORES)
def test_clang_has_nothing_to_say(name: str, tmp_path: Path) -> None:
    clang = need("clang", "clang")
    project = bare_metal({}, find_board(name), Firmware("int main(void) { return 0; }\n"))
    for path, data in project.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(to_bytes(data))
    folders = [f"-I{folder}" for folder in project.folders]
    if name != "host":
        (tmp_path / "library").mkdir()
        (tmp_path / "library" / "string.h").write_text(STRINGS)
        folders += ["-isystem", "library", "-nostdlibinc"]
    sources = [path for path in project.sources if path.endswith(".c") and not path.startswith("trace/")]
    assert len(sources) > 4
    subprocess.run([clang, *CORES[name], *WARNINGS, *folders, *sources], cwd=tmp_path, check=True)


def test_every_template_says_its_licence() -> None:
    folder = Path(board_room.__file__).parents[1] / "templates"
    files = [
        path for name in ("common", "cortex_m", "riscv", "avr", "host", "graph") for path in (folder / name).iterdir()
    ]
    assert len(files) > 30
    for path in files:
        assert "SPDX-License-Identifier: 0BSD" in path.read_text().split("*/")[0], path.name

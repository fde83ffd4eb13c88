"""The C of dynamic models is clean C99 for compilers with any size of int."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

import mlfc
from fuzz.model_files import open_seeds
from tests.conftest import need

WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1")
COMPILERS = {
    "clang": ("clang",),
    "gcc": ("gcc",),
    "gcc -m32": ("gcc", "-m32"),
    "gcc, traced": ("gcc", "-DMLFC_LIBRARY"),
    "tcc": ("tcc",),
    "arm": ("arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb"),
    "avr": ("avr-gcc", "-mmcu=atmega2560"),  # int has 16 bits
}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return unpacked archives of dynamic models that together use branches, loops, lists and most kinds of kernels."""
    folders = []
    for number, data in enumerate(open_seeds()):
        folder = tmp_path_factory.mktemp(f"open_{number}")
        path = mlfc.compile(data, "c", module_name=f"open_{number}").export(folder / "model.tar")
        with tarfile.open(path) as tar:
            tar.extractall(folder, filter="data")
        folders.append(folder)
    return folders


@pytest.mark.parametrize("name", COMPILERS)
def test_code_of_open_extents_has_no_warnings(name: str, archives: list[Path], tmp_path: Path) -> None:
    command = COMPILERS[name]
    need(command[0], command[0])
    sources = [path for folder in archives for path in sorted((folder / "codegen/host/src").glob("*.c"))]
    assert len(sources) >= len(archives)
    for source in sources:
        root = source.parents[3]
        includes = (f"-I{root}/runtime/include", f"-I{root}/codegen/host/include")
        found = subprocess.run(
            [*command, *WARNINGS, *includes, "-c", str(source), "-o", str(tmp_path / "x.o")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr[-2000:]

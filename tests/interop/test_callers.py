"""The programs of examples/callers, built and run by the commands of their page, write mlfc's results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mlfc
from tests.conftest import need

ROOT = Path(__file__).resolve().parents[2]
CALLERS = ROOT / "examples" / "callers"
PAGE = (CALLERS / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\S+) \| ([^|]*) \| `([^`]*)` \|$", PAGE, re.MULTILINE)
PROGRAMS = {"rustc": "rustc", "node": "nodejs", "cc": "gcc", "c++": "g++"}
# links for WebAssembly with the installed C library
MLFC = f"""#!{sys.executable}
import sys
from mlfc.__main__ import run
from tests.native.foreign_libraries import without_c_library
with without_c_library():
    sys.exit(run())
"""


def shell(command: str, folder: Path) -> None:
    """Run commands in the page's folder, with this Python and the tested mlfc."""
    programs = folder / "bin"
    if not programs.exists():
        programs.mkdir()
        (programs / "mlfc").write_text(MLFC)
        (programs / "mlfc").chmod(0o755)
    path = os.pathsep.join((str(programs), str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    result = subprocess.run(
        ["sh", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that looks like a checkout, with the library and the image that the page makes first."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "build").mkdir()
    for command in re.findall(r"^    (\S.*)$", PAGE, re.MULTILINE):
        shell(command, folder)
    return folder


@pytest.fixture(scope="module")
def expected(checkout: Path) -> np.ndarray:
    image = np.fromfile(checkout / "build" / "image.bin", np.float32)
    (found,) = mlfc.load(checkout / "build" / "digits.so").run(image.reshape(1, 1, 8, 8)).values()
    # an image that the model classifies correctly
    assert found.argmax() == np.load(ROOT / "examples" / "digits" / "held_out.npz")["labels"][7]
    return found.reshape(-1)


@pytest.mark.parametrize(("language", "how", "command"), ROWS, ids=[f"{row[0]}: {row[1]}" for row in ROWS])
def test_a_caller_writes_the_same(language: str, how: str, command: str, checkout: Path, expected: np.ndarray) -> None:
    for program, package in PROGRAMS.items():
        if re.search(rf"(^|&& ){re.escape(program)} ", command):
            need(program, package)
    (checkout / "build" / "out.bin").unlink(missing_ok=True)
    shell(command, checkout)
    found = np.fromfile(checkout / "build" / "out.bin", np.float32)
    if language == "JavaScript":
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    else:
        np.testing.assert_array_equal(found, expected)


def test_the_page_has_every_program() -> None:
    programs = {str(path.relative_to(ROOT)) for path in CALLERS.rglob("*") if path.suffix != ".md" and path.is_file()}
    named = set(re.findall(r"examples/callers/[\w./]+\.\w+", PAGE))
    assert named == {path for path in programs if "__pycache__" not in path}

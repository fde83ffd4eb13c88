"""A test that calls a missing program is skipped with its package; a missing check in mlfc itself is a failure."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mlfc.errors import ToolchainError
from tests.conftest import PACKAGES, missing_program

OURS = [str(Path(shutil.__file__).resolve()), str(Path(__file__).resolve())]
PRODUCT = str(Path(__file__).resolve().parents[2] / "src" / "mlfc" / "compiler.py")


@pytest.fixture(autouse=True)
def _nothing_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def failed(*command: str) -> FileNotFoundError:
    with pytest.raises(FileNotFoundError) as caught:
        subprocess.run(command, check=True)
    return caught.value


@pytest.mark.parametrize("program", PACKAGES)
def test_what_is_missing_is_named(program: str) -> None:
    expected = f"{program} is not on the PATH; on Debian: apt-get install {PACKAGES[program]}"
    assert missing_program(failed(program, "-c"), OURS) == expected


def test_other_ends_stay_failures(tmp_path: Path) -> None:
    assert missing_program(failed("mlfc-unknown"), OURS) is None
    assert missing_program(FileNotFoundError(2, "none", "model.onnx"), OURS) is None
    assert missing_program(AssertionError("mlfc-unknown is not on the PATH"), OURS) is None
    assert missing_program(AssertionError("gcc failed"), OURS) is None
    # mlfc itself must check before it calls
    assert missing_program(failed("gcc"), [*OURS, PRODUCT]) is None
    (tmp_path / "gcc").symlink_to("/bin/false")
    assert missing_program(FileNotFoundError(2, "none", "gcc"), OURS) is None


@pytest.mark.parametrize(
    "error",
    [
        ToolchainError("cc is not on the PATH. Install it"),
        AssertionError("status 2: error: cc is not on the PATH. Install it"),
        AssertionError("make[1]: cc: No such file or directory"),
        subprocess.CalledProcessError(2, ["make"], b"", b"/bin/sh: 1: cc: not found\n"),
    ],
    ids=["error", "assertion", "make", "shell"],
)
def test_what_others_say_is_missing_is_enough(error: Exception) -> None:
    assert missing_program(error, [*OURS, PRODUCT]) == "cc is not on the PATH; on Debian: apt-get install gcc"

"""Running the programs that firmware takes: compilers, make, emulators."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from mlforge.errors import RunError, ToolchainError

# what a make that runs this program hands down is not meant for the programs
_FROM_MAKE = frozenset({"MAKEFLAGS", "MAKELEVEL", "MFLAGS"})


def environment() -> dict[str, str]:
    """Return the variables that programs are started with."""
    return {key: value for key, value in os.environ.items() if key not in _FROM_MAKE}


def need(program: str, packages: Sequence[str]) -> None:
    """Raise ToolchainError, with Debian's packages that have it, where a program is not there."""
    if shutil.which(program) is None:
        raise ToolchainError(
            f"{program} is not on the PATH", next_step=f"Install it; on Debian: apt-get install {' '.join(packages)}"
        )


def run(command: Sequence[str], folder: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder and return its status and what it said.

    Raises
    ------
    RunError
        If it does not end within `timeout` seconds.
    ToolchainError
        If it does not start.
    """
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=timeout, check=False,
            stdin=subprocess.DEVNULL, env=environment(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RunError(f"{command[0]} did not end within {timeout:g} seconds", next_step="Allow more time") from None
    except OSError as error:
        raise ToolchainError(f"{command[0]} does not start: {error}") from error

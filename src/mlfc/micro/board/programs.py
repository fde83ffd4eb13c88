"""Execution of external programs for firmware: compilers, make, emulators."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO

from mlfc.errors import RunError, ToolchainError
from mlfc.micro.project_server.steps import end_process, own_environment

_MOST_BYTES = 64 << 20
_PIECE = 1 << 16
_GRACE_SECONDS = 2.0


def environment() -> dict[str, str]:
    """Return the environment that programs are started with."""
    return {**own_environment(), "PATH": search_path()}


def search_path() -> str:
    """Return the absolute folders of the PATH."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if Path(folder).is_absolute())


def need(program: str, packages: Sequence[str]) -> str:
    """Return the path of a program, or raise ToolchainError with the Debian packages that contain it."""
    found = shutil.which(program, path=search_path())
    # on Windows the current folder is searched first
    if found is None or not Path(found).is_absolute():
        debian = f"; on Debian: apt-get install {' '.join(packages)}" if packages else ", as the board's vendor says"
        raise ToolchainError(f"{program} is not on the PATH", next_step=f"Install it{debian}")
    return found


def first_lines(said: str, count: int = 12) -> str:
    """Return the first lines of a program's output, each indented on its own line, for a message."""
    return "".join(f"\n  {line}" for line in [line for line in said.splitlines() if line.strip()][:count])


def run(command: Sequence[str], folder: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder and return its status and output.

    Raises RunError if it does not end within `timeout` seconds, or its output exceeds the limit; ToolchainError if it
    does not start.
    """
    try:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(),
        )  # fmt: skip
    except OSError as error:
        raise ToolchainError(f"{command[0]} failed to start: {error}") from error
    said, complained = bytearray(), bytearray()
    readers = [
        threading.Thread(target=_collect, args=(process, pipe, found), daemon=True)
        for pipe, found in ((process.stdout, said), (process.stderr, complained))
    ]
    try:
        for reader in readers:
            reader.start()
        process.wait(timeout)
        for reader in readers:
            reader.join(min(timeout, threading.TIMEOUT_MAX))
    except subprocess.TimeoutExpired:
        raise RunError(f"{command[0]} did not end within {timeout:g} seconds", next_step="Allow more time") from None
    finally:
        end_process(process, _GRACE_SECONDS)
    if max(len(said), len(complained)) > _MOST_BYTES:
        raise RunError(f"{command[0]} was ended: it printed more than {_MOST_BYTES >> 20} MiB")
    # with universal newlines
    texts = (found.decode(errors="replace").replace("\r\n", "\n") for found in (said, complained))
    return subprocess.CompletedProcess(command, process.returncode, *texts)


def _collect(process: subprocess.Popen[bytes], pipe: IO[bytes], found: bytearray) -> None:
    """Read a program's output to the end; kill a program that prints too much, as firmware may print endlessly."""
    with pipe:
        for piece in iter(partial(os.read, pipe.fileno(), _PIECE), b""):
            found += piece
            if len(found) > _MOST_BYTES:
                process.kill()
                return

"""Programs that firmware tools start are ended if they hang or print without end."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlfc.errors import RunError, ToolchainError
from mlfc.micro.board import programs
from tests.conftest import WATCHDOG

LIMIT = 7.0


def python(text: str) -> list[str]:
    return [sys.executable, "-c", f"import os, sys, time\n{text}"]


def test_what_a_program_says_is_returned(tmp_path: Path) -> None:
    text = "sys.stdout.write('out\\r\\n' * 50000); sys.stderr.buffer.write(b'\\xff' * 100000); sys.exit(3)"
    result = programs.run(python(text), tmp_path, 60)
    assert (result.returncode, result.stdout) == (3, "out\n" * 50000)
    assert result.stderr == "�" * 100000


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_program_that_prints_without_end_is_ended(
    stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_MOST_BYTES", 1 << 20)
    with pytest.raises(RunError, match="printed more than 1 MiB"):
        programs.run(python(f"while True: sys.{stream}.write('x' * 4096)"), tmp_path, 60)


@pytest.fixture
def line(tmp_path: Path) -> Iterator[int]:
    """Yield the reader of a pipe, ``line`` in the folder, which a program keeps open until it ends."""
    os.mkfifo(tmp_path / "line")
    reader = os.open(tmp_path / "line", os.O_RDONLY | os.O_NONBLOCK)
    yield reader
    os.close(reader)


def _read(line: int) -> bytes:
    """Return the next bytes of a pipe; empty once no process has its other end open."""
    assert select.select([line], [], [], WATCHDOG)[0], "whoever holds the pipe runs still"
    return os.read(line, 100)


def _expire_when_started(line: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the time limit of a program when it first prints, however long its start took."""
    real = subprocess.Popen.wait

    def wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout == LIMIT:
            assert _read(line) == b"started\n"
            raise subprocess.TimeoutExpired(process.args, timeout)
        return real(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    monkeypatch.setattr(programs, "_GRACE_SECONDS", WATCHDOG)


def test_a_program_that_hangs_is_ended(tmp_path: Path, line: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _expire_when_started(line, monkeypatch)
    text = "kept = open('line', 'w'); print('started', file=kept, flush=True); time.sleep(600)"
    with pytest.raises(RunError, match="did not end within 7 seconds"):
        programs.run(python(text), tmp_path, LIMIT)
    assert _read(line) == b""


def test_a_program_may_take_no_longer_than_it_is_given(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"did not end within 0\.1 seconds"):
        programs.run(python("time.sleep(600)"), tmp_path, 0.1)


def test_make_ends_what_it_started(tmp_path: Path, line: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _expire_when_started(line, monkeypatch)
    (tmp_path / "Makefile").write_text("all:\n\t@exec 3>line; echo started >&3; exec sleep 600\n")
    with pytest.raises(RunError, match="make did not end"):
        programs.run(["make"], tmp_path, LIMIT)
    assert _read(line) == b""


def test_nohup_is_heeded(tmp_path: Path) -> None:
    code = "import os, signal, sys, mlfc.cli.main as m\nm.app = lambda: os.kill(os.getpid(), signal.SIGHUP)\nm.run()"
    command = ["nohup", sys.executable, "-c", code]
    assert programs.run(command, tmp_path, 60).returncode == 0


def test_a_program_that_does_not_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="nothing-like-it failed to start"):
        programs.run(["nothing-like-it"], tmp_path, 1)

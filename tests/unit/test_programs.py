"""Programs that firmware takes are ended when they hang, and when they print without end."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from mlfc.errors import RunError, ToolchainError
from mlfc.micro.board import programs


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


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    text = "open('number', 'w').write(str(os.getpid())); os.rename('number', 'started'); time.sleep(600)"
    with pytest.raises(RunError, match="did not end within 5 seconds"):
        programs.run(python(text), tmp_path, 5)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "started").read_text()), 0)


def test_make_ends_what_it_started(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("all:\n\t@echo $$$$ > number; mv number started; exec sleep 600\n")
    with pytest.raises(RunError, match="make did not end"):
        programs.run(["make"], tmp_path, 5)
    number, end = int((tmp_path / "started").read_text()), time.monotonic() + 10
    with suppress(ProcessLookupError):
        while time.monotonic() < end:
            os.kill(number, 0)
            time.sleep(0.05)
        pytest.fail("what make started runs still")


def test_nohup_is_heeded(tmp_path: Path) -> None:
    code = "import os, signal, sys, mlfc.cli.main as m\nm.app = lambda: os.kill(os.getpid(), signal.SIGHUP)\nm.run()"
    command = ["nohup", sys.executable, "-c", code]
    assert programs.run(command, tmp_path, 60).returncode == 0


def test_a_program_that_does_not_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="nothing-like-it does not start"):
        programs.run(["nothing-like-it"], tmp_path, 1)

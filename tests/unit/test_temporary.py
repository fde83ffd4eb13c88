"""Temporary folders of processes that have ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mlfc.support.temporary import TemporaryFolder, remove_abandoned

HOLD = "from mlfc.support.temporary import TemporaryFolder as T; t = T(); print(t.name, flush=True); input()"


def aged(folder: Path) -> Path:
    os.utime(folder, (0, 0))
    return folder


def test_folders_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        killed = Path(process.stdout.readline().strip())
        (killed / "kept").write_text("mine")
        aged(killed)
        with TemporaryFolder() as own:
            young, foreign, target = tmp_path / "mlfc-tmp-young", tmp_path / "mlfc-other", tmp_path / "target"
            for folder in (young, foreign, target):
                folder.mkdir()
            (target / "kept").write_text("mine")
            link = tmp_path / "mlfc-tmp-link"
            link.symlink_to(target)
            os.utime(link, (0, 0), follow_symlinks=False)
            for folder in (Path(own), foreign):
                aged(folder)
            remove_abandoned()
            assert killed.is_dir(), "its process runs"
            process.send_signal(signal.SIGKILL)
            process.wait()
            remove_abandoned()
            assert not killed.exists()
            assert all(folder.is_dir() for folder in (Path(own), young, foreign, link))
            assert (target / "kept").read_text() == "mine"
    assert not Path(own).exists()

"""The tutorial of the object detector works as written, and its C compiles without warnings."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import need
from tests.tutorial import run_page

_FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]


def test_the_page_as_it_stands(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    need("make", "make")
    gcc = need("gcc", "gcc")
    steps = run_page("object-detector.md", tmp_path, "build/detector")
    compared = [step for step in steps if step.expected is not None]
    assert len(compared) >= 3
    for step in compared:
        assert step.printed == step.expected, step.commands
    folder = tmp_path / "build" / "detector"
    headers = [f"-Idetector/{place}" for place in ("codegen/host/include", "runtime/include")]
    done = subprocess.run([gcc, *_FLAGS, *headers, "find.c"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = next(step.printed for step in steps if "mlfc inspect" in step.commands)
    assert [line.split() for line in shown.splitlines() if line.startswith("  batch")] == [["batch", "1", "2"]]
    assert "work area" in shown

"""The tutorial works as written: its files are created, its commands run, its outputs compared."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import mlfc
from tests.conftest import need
from tests.tutorial import ROOT, blocks, run_page

PAGE = "first-model.md"


def test_the_page_as_it_stands(tmp_path: Path) -> None:
    need("cc", "gcc")
    compared = [step for step in run_page(PAGE, tmp_path, "build") if step.expected is not None]
    assert len(compared) >= 4
    for step in compared:
        assert step.printed == step.expected, step.commands


def test_its_c_has_no_warnings(tmp_path: Path) -> None:
    gcc = need("gcc", "gcc")
    mod, params = mlfc.import_model(ROOT / "examples" / "digits" / "digits_int8.tflite")
    code = mlfc.build(mod, "c", params, module_name="digits").code
    (tmp_path / code.header_name).write_bytes(code.files[f"include/{code.header_name}"])
    (source,) = (text for _, file, text in blocks(PAGE) if file == "main.c")
    (tmp_path / "main.c").write_text(source)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2"]
    done = subprocess.run([gcc, *flags, "-c", "main.c"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("word", ["mlfc check", "mlfc compile", "mlfc inspect", "mlfc run", "tar -xf", "cc "])
def test_nothing_on_the_way_is_left_out(word: str) -> None:
    assert any(word in text for language, _, text in blocks(PAGE) if language == "sh")

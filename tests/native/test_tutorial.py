"""The tutorial works as it stands: its files are written, its commands run, its outputs compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import need

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
MARK = "end of block"
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_as_it_stands(tmp_path: Path) -> None:
    need("cc", "gcc")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "build").mkdir()
    commands: list[str] = []
    expected: dict[int, str] = {}
    for language, file, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if file:
            (tmp_path / "build" / file).write_text(text)
        elif language == "sh":
            commands.append(text)
        else:
            assert language == "text", f"a block of {language} that nothing runs"
            expected[len(commands) - 1] = text
    # one shell for all, as a reader has
    script = "".join(f"{text}\necho '{MARK}'\n" for text in commands)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    outputs = done.stdout.split(f"{MARK}\n")
    assert len(outputs) == len(commands) + 1
    assert len(expected) >= 4
    for index, text in expected.items():
        assert outputs[index] == text, commands[index]


def test_its_c_has_no_warnings(tmp_path: Path) -> None:
    gcc = need("gcc", "gcc")
    import mlforge

    mod, params = mlforge.import_model(ROOT / "examples" / "digits" / "digits_int8.tflite")
    code = mlforge.build(mod, "c", params, module_name="digits").code
    (tmp_path / code.header_name).write_bytes(code.files[f"include/{code.header_name}"])
    (source,) = (text for _, file, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if file == "main.c")
    (tmp_path / "main.c").write_text(source)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2"]
    done = subprocess.run([gcc, *flags, "-c", "main.c"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "word", ["mlforge check", "mlforge compile", "mlforge inspect", "mlforge run", "tar -xf", "cc "]
)
def test_nothing_on_the_way_is_left_out(word: str) -> None:
    assert any(
        word in text for language, _, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if language == "sh"
    )

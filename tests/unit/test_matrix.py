"""Matrices of models, targets and options: the file, the rows, the index, and one failing row among valid ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import mlfc
from mlfc.cli.main import app
from mlfc.errors import MlfcError, OptionError, ProblemsError
from mlfc.frontend.onnx.custom import CUSTOM
from mlfc.matrix.compile_matrix import job_of, read_rows
from tests.tutorial import blocks

ROOT = Path(__file__).resolve().parents[2]
_MATRIX = """
[models]
digits = {file = "digits.onnx", value = ["unused=mask.npy"]}
net = "digits_int8.tflite"
gone = "gone.onnx"
[targets]
m4 = "c -mcpu=cortex-m4"
board = {board = "mps2-an386", numerics = "tflm"}
[[exclude]]
model = "digits"
target = "board"
[[exclude]]
model = "gone"
target = "m4"
"""


def test_operators_travel_with_their_c_files(tmp_path: Path) -> None:
    pages = {name: text for _, name, text in blocks("../how-to/own-operators.md") if name}
    (tmp_path / "ops/c").mkdir(parents=True)
    (tmp_path / "ops/my_ops.py").write_text(pages["my_ops.py"].replace("fancy_act.c", "c/fancy_act.c"))
    (tmp_path / "ops/c/fancy_act.c").write_text(pages["fancy_act.c"])
    subprocess.run([sys.executable, "-c", pages["make_model.py"]], cwd=tmp_path, check=True)
    path = tmp_path / "matrix.toml"
    path.write_text(
        '[models]\nfancy = {file = "fancy.onnx", op = ["ops/my_ops.py"]}\n[targets]\nhost = "c"\nm4 = "cortex-m4"\n'
    )
    made = mlfc.compile_matrix(path, tmp_path / "all")
    assert made.problems == ()
    assert list((tmp_path / "all").iterdir())
    assert "com.example.FancyAct" not in CUSTOM
    (tmp_path / "ops/c/fancy_act.c").unlink()
    (first, _) = mlfc.compile_matrix(path, tmp_path / "none").problems
    assert "fancy_act.c: the file cannot be read" in str(first)


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    for name in ("digits.onnx", "digits_int8.tflite"):
        shutil.copy(ROOT / "examples" / "digits" / name, tmp_path)
    (tmp_path / "mask.npy").write_bytes(b"not read before the row is compiled")
    path = tmp_path / "matrix.toml"
    path.write_text(_MATRIX)
    return path


def test_failing_rows_do_not_stop_the_others_and_are_listed_at_the_end(matrix: Path, tmp_path: Path) -> None:
    seen = []
    made = mlfc.compile_matrix(matrix, tmp_path / "all.tar", progress=lambda *now: seen.append(now))
    status = {item["row"]: item["status"] for item in made.entries}
    assert status == {"digits-m4": "failed", "net-m4": "ok", "net-board": "ok", "gone-board": "failed"}
    assert sorted(number for number, _, _ in seen) == [1, 2, 3, 4]
    unused, gone = map(str, made.problems)
    assert unused.startswith("digits-m4: ")
    assert "cannot be read as .npy" in unused
    assert "gone-board" in gone
    assert "No such file" in gone
    with tarfile.open(tmp_path / "all.tar") as tar:
        names = {name.removeprefix("./") for name in tar.getnames()} - {"."}
        index = json.load(tar.extractfile("./index.json"))  # type: ignore[arg-type]
        page = tar.extractfile("./index.html").read().decode()  # type: ignore[union-attr]
    assert names == {"index.json", "index.html", "net-m4.tar", "net-board.tar"}
    (board,) = (item for item in index["rows"] if item["row"] == "net-board")
    assert board["modules"]["net"]["memory"]["constants_bytes"] > 0
    assert {region["name"] for region in board["board"]["regions"]} >= {"flash", "ram"}
    assert '<a href="net-m4.tar">' in page
    assert "No such file" in page
    # rows create folders; options of rows are not allowed beside the matrix
    (tmp_path / "gone.onnx").write_bytes((tmp_path / "digits.onnx").read_bytes())
    matrix.write_text('[models]\ngone = "gone.onnx"\n[options]\nsmall = {optimize = "size", emit = "c"}\n')
    result = CliRunner().invoke(app, ["compile", "--matrix", str(matrix), "-o", str(tmp_path / "all"), "--json"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "all" / "gone-small" / "src" / "gone_lib1.c").is_file()
    for options, text in ((["--ram", "9"], "excludes --ram"), (["model.onnx"], "excludes MODEL")):
        result = CliRunner().invoke(app, ["compile", "--matrix", str(matrix), "-o", "x", *options])
        assert isinstance(result.exception, OptionError)
        assert text in str(result.exception)


def test_rows_carry_their_files(matrix: Path) -> None:
    row = next(row for row in read_rows(matrix) if row.name == "digits-m4")
    model, output, files, name = job_of(row)
    assert (model, output, name) == ("digits=0_digits.onnx", "digits-m4.tar", "digits-m4")
    assert set(files) == {"0_digits.onnx", "1_mask.npy", "build.toml"}
    assert b'"value" = ["unused=1_mask.npy"]' in files["build.toml"]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("models = 3", ["expected a table 'models'"]),
        ("[modles]\n", ["unknown table 'modles'; nearest: 'models'"]),
        ("", ["expected a table 'models'"]),
        ("[models]\nx = {}\n[targets]\n'../y' = 'c'\nz = 3\n", ["model's file", "for a name", "table of options"]),
        ("[models]\nx = 'x'\n[options]\na = {output = 'x'}\nb = {ram = [1]}\n", ["'output'", "strings for 'ram'"]),
        ("[models]\nx = 'x'\n[[exclude]]\nmodel = 'y'\nboard = 'z'\n", ["unknown model 'y'", "unknown key 'board'"]),
        ("[models]\nx = 'x'\n[[exclude]]\nmodel = 'x'\n", ["all are excluded"]),
        ("[models]\na='x'\nb='y'\n[targets]\n" + "".join(f"t{i} = 'c'\n" for i in range(6000)), ["10,000 rows"]),
        ("[models\n", ["expected TOML"]),
    ],
)
def test_what_is_wrong_with_a_matrix_is_said_at_once(tmp_path: Path, text: str, problems: list[str]) -> None:
    path = tmp_path / "matrix.toml"
    path.write_text(text)
    with pytest.raises(MlfcError) as caught:
        read_rows(path)
    found = list(caught.value.problems) if isinstance(caught.value, ProblemsError) else [caught.value]
    assert len(found) == len(problems)
    for error, wanted in zip(found, problems, strict=True):
        assert wanted in str(error)
        assert str(path) in str(error)

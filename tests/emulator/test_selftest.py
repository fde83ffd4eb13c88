"""Firmware that checks an archive's test vectors: it passes, but fails if a weight or a vector is wrong."""

from __future__ import annotations

import json
import re
import shlex
import tarfile
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.errors import OptionError
from mlfc.micro.board.board import find_board
from mlfc.micro.memory.memory_table import STATE
from mlfc.micro.run.emulator import emulated_archive
from mlfc.micro.run.project_run import run_selftest
from tests.native.extracted import imported, make
from tests.state_models import FEATURES, GRU_STATES, WIDTH, gru, gru_steps
from tests.unit.test_cli import mlfc as run_mlfc

# results on the host are not tested here
pytestmark = pytest.mark.usefixtures("unoptimized_builds")


@pytest.fixture(scope="module")
def archive(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    factory = imported(models / "hello_world_int8.tflite", "hello")
    return mlfc.export_model_library_format(factory, tmp_path_factory.mktemp("selftest") / "hello.tar", test_vectors=2)


@pytest.mark.parametrize("board", ["mps2-an386", "mps3-an547", "host"])
def test_vectors_of_the_host_hold_on_boards(archive: Path, board: str) -> None:
    found = run_selftest(archive, find_board(board), cflags="-O1")
    assert found.passed
    assert found.lines == (
        "PASS hello, vector 0: largest difference 0, 0 allowed",
        "PASS hello, vector 1: largest difference 0, 0 allowed",
        "PASS 2 of 2, largest difference 0",
    )


def test_code_for_another_core_runs_with_a_warning(models: Path, tmp_path: Path) -> None:
    module, params = mlfc.import_model(models / "hello_world_int8.tflite")
    factory = mlfc.build(module, "c -mcpu=cortex-m55", params, module_name="hello")
    mlfc.export_model_library_format(factory, tmp_path / "hello.tar", test_vectors=1)
    arguments = ("run", "hello.tar", "--board", "mps2-an385", "--selftest", "--json")
    result = run_mlfc(*arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["passed"]
    assert result.stderr == f"warning: {document['warnings'][0]}\n"
    assert "its loops are made for MVE instructions, which the core lacks" in result.stderr


def test_floats_are_allowed_the_tolerance_of_the_archive(models: Path) -> None:
    """Use a hybrid model, whose convolutions sum floats in the order of the core's own kernels."""
    found = run_selftest(models / "kws_ref_model_float32.tflite", find_board("mps2-an500"), cflags="-O1")
    assert found.passed
    assert re.fullmatch(r"PASS 3 of 3, largest difference \S+", found.lines[-1])


def test_a_wrong_weight_in_a_project_fails(archive: Path, tmp_path: Path) -> None:
    options = ("--template", "makefile", "--board", "mps2-an386", "--type", "selftest")
    made = run_mlfc("project", "create", str(archive), "hello", *options, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "PASS 2 of 2, largest difference 0" in make(tmp_path / "hello", "selftest")
    kernels = tmp_path / "hello" / "model" / "codegen" / "host" / "src" / "hello_lib1.c"
    text = kernels.read_text()
    head, weight, tail = re.split(r"(?<=\{\n {2})(-?\d+)", text, maxsplit=1)
    kernels.write_text(f"{head}{-int(weight) - 1}{tail}")
    printed = make(tmp_path / "hello", "selftest", fails=True)
    assert re.search(
        r"^FAIL hello, vector [01]: largest difference \d+, 0 allowed, in element 0 of \S+$", printed, re.M
    )
    assert re.search(r"^FAIL [12] of 2, largest difference [1-9]\d*$", printed, re.M)


@pytest.mark.parametrize(
    ("board", "advice"),
    [("mps2-an386", "--layers --board mps2-an386"), ("arduino_mega", '--layers --target "c -mcpu=avr"')],
)
def test_the_command_line_fails_where_a_vector_is_wrong(
    archive: Path, tmp_path: Path, models: Path, board: str, advice: str
) -> None:
    with tarfile.open(archive) as tar:
        contents = {member.name: (member, source.read()) for member in tar if (source := tar.extractfile(member))}
    vectors, metadata = (next(name for name in contents if name.endswith(end)) for end in ("_vectors.c", "data.json"))
    right = contents[vectors][1]
    # with the same length and a matching hash, both of which archives record
    wrong = re.sub(rb"\d(?=,\n    \},\n  \},\n\};)", lambda match: b"1032547698"[int(match[0]) :][:1], right)
    known = contents[metadata][1].replace(sha256(right).hexdigest().encode(), sha256(wrong).hexdigest().encode())
    with tarfile.open(tmp_path / "broken.tar", "w") as tar:
        for name, (member, data) in contents.items():
            tar.addfile(member, BytesIO({vectors: wrong, metadata: known}.get(name, data)))
    result = run_mlfc("run", "broken.tar", "--board", board, "--selftest", cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    assert result.stdout.splitlines()[-1] == "FAIL 1 of 2, largest difference 1"
    assert f"mlfc verify MODEL {advice}" in result.stderr
    # the advised command works
    arguments = [str(models / "hello_world_int8.tflite"), *shlex.split(advice), "--samples", "1"]
    advised = run_mlfc("verify", *arguments, cwd=tmp_path)
    assert advised.returncode == 0, advised.stderr


def test_what_a_self_test_takes_is_said(models: Path, tmp_path: Path) -> None:
    factory = imported(models / "hello_world_int8.tflite", "hello")
    path = mlfc.export_model_library_format(factory, tmp_path / "bare.tar")
    with pytest.raises(OptionError, match=r"no test vectors.*--test-vectors"):
        run_selftest(path, find_board("mps2-an386"))
    result = run_mlfc("run", "bare.tar", "--selftest", "--profile", cwd=tmp_path)
    assert result.returncode == 2
    assert "Remove --inputs" in result.stderr


def test_vectors_of_a_model_with_state_are_steps(tmp_path: Path) -> None:
    begin = {"h_in": np.linspace(-1, 1, WIDTH, dtype=np.float32).reshape(1, WIDTH)}
    model = mlfc.compile(gru(), "c -mcpu=cortex-m4", states=GRU_STATES, state_init=begin, module_name="cell")
    archive = model.export(tmp_path / "cell.tar", test_vectors=3)
    found = run_selftest(archive, find_board("mps2-an386"), cflags="-O1")
    assert found.passed, found.lines
    assert len(found.lines) == 4
    first = gru_steps([np.zeros((1, FEATURES), np.float32)], begin["h_in"])[0][0]
    firmware = emulated_archive(archive, find_board("mps2-an386"))
    for _ in range(2):  # firmware starts with the initial state each time
        np.testing.assert_allclose(firmware.run({"x": np.zeros((1, FEATURES), np.float32)})["y"], first, atol=1e-5)
    planned, linked = firmware.memory()
    assert planned.total(STATE, "ram") == linked.total(STATE, "ram") == 4 * WIDTH

"""Generated projects, built by their build systems and run under QEMU, match LiteRT's reference kernels."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlfc import inspect
from mlfc.micro.board.board import find_board
from mlfc.runtime.tensor.npz import write_npz
from mlfc.support.tensor_info import TensorInfo
from mlfc.verify.litert import LiteRtReference
from tests.conftest import need
from tests.emulator.conftest import need_board
from tests.harness import seeded_inputs
from tests.unit.test_cli import mlfc, succeeded

MODEL = "hello_world_int8.tflite"
# Both templates read a board's flags from the same place. The Makefile is that of the other firmware tests here, and
# the test of test vectors builds for the mps2-an386 with CMake.
CASES = [("makefile", "mps2-an386"), ("cmake", "qemu-riscv32"), ("makefile", "arduino_mega")]


def tools(board: str, template: str) -> None:
    need_board(board)
    need("cmake" if template == "cmake" else "make", template)


QUICK = ("--option", "cflags=-O1")


def made(folder: Path, model: Path, template: str, board: str, *more: str, build: Sequence[str] = ()) -> str:
    """Create and build a project; return its path."""
    tools(board, template)
    succeeded("project", "create", model, "made", "--template", template, "--board", board, *more, cwd=folder)
    succeeded("project", "build", "made", *build, cwd=folder)
    return "made"


def inputs_of(project: Path) -> list[TensorInfo]:
    (module,) = inspect(project / "model.tar")["modules"].values()
    return [TensorInfo.from_json(entry) for entry in module["inputs"]]


def assert_outputs(path: Path, expected: Mapping[str, Any]) -> None:
    """Fail unless the file's arrays equal the reference's of the same names."""
    with np.load(path) as outputs:
        assert len(outputs) == 1
        for name in outputs:
            np.testing.assert_array_equal(outputs[name], expected[name])


@pytest.mark.parametrize(("template", "board"), CASES)
def test_a_project_computes_what_the_reference_does(models: Path, tmp_path: Path, template: str, board: str) -> None:
    """Also check that a build reports its memory, and that a run has several sets of inputs."""
    tools(board, template)
    model, project = models / MODEL, "made"
    succeeded("project", "create", model, project, "--template", template, "--board", board, cwd=tmp_path)
    memory = json.loads(succeeded("project", "build", project, "--json", cwd=tmp_path))["memory"]
    reference = LiteRtReference(model)
    sets = [seeded_inputs(inputs_of(tmp_path / project), seed) for seed in (4, 5)]
    write_npz(tmp_path / "in.npz", {name: np.concatenate([given[name] for given in sets]) for name in sets[0]})
    text = succeeded("project", "run", project, "--inputs", "in.npz", "--outputs", "out.npz", "--json", cwd=tmp_path)
    assert json.loads(text)["stack_bytes"] > 0
    expected = [reference.run(given) for given in sets]
    assert_outputs(
        tmp_path / "out.npz", {name: np.concatenate([run[name] for run in expected]) for name in expected[0]}
    )
    if board == "mps2-an386":
        assert memory["differences"] == []
        again = mlfc("project", "build", project, cwd=tmp_path)
        assert again.returncode == 2
        assert f"There is already a build in {project}. To force rebuild it use '-f' or '--force'." in again.stderr
        text = succeeded("project", "build", project, "--force", "--option", "cflags=-Os", cwd=tmp_path)
        assert "as promised" in text


def test_test_vectors_are_checked_on_the_board(models: Path, tmp_path: Path) -> None:
    project = made(tmp_path, models / MODEL, "cmake", "mps2-an386", "--type", "selftest", build=QUICK)
    assert "PASS 3 of 3, largest difference 0" in succeeded("project", "run", project, cwd=tmp_path)
    vectors = next((tmp_path / "made").rglob("selftest/*_vectors.c"))
    text = vectors.read_text()
    place = text.rindex("{", 0, text.rindex("}")) + 1
    vectors.write_text(f"{text[:place]} 1 + {text[place:]}")
    succeeded("project", "build", project, "--force", *QUICK, cwd=tmp_path)
    result = mlfc("project", "run", project, cwd=tmp_path)
    assert result.returncode == 1, result.stdout
    assert "FAIL" in result.stdout


def test_a_host_drives_a_project_by_its_server(models: Path, tmp_path: Path) -> None:
    model = models / MODEL
    project = made(tmp_path, model, "makefile", "mps2-an386", "--type", "host_driven", build=QUICK)
    reference = LiteRtReference(model)
    inputs = seeded_inputs(inputs_of(tmp_path / project), 4)
    write_npz(tmp_path / "in.npz", inputs)
    succeeded("project", "run", project, "--inputs", "in.npz", "--outputs", "out.npz", cwd=tmp_path)
    assert_outputs(tmp_path / "out.npz", reference.run(inputs))


def test_firmware_that_does_not_fit_says_by_how_much(models: Path, tmp_path: Path) -> None:
    tools("mps2-an386", "cmake")
    board = tmp_path / "tight.toml"
    # the planned bytes fit, but not with the code
    board.write_text(find_board("mps2-an386").text.replace("bytes = 0x00400000", "bytes = 0x00001000", 1))
    for template in ("makefile", "cmake"):
        command = ("project", "create", models / MODEL, template, "--template", template, "--board", board)
        succeeded(*command, cwd=tmp_path)
        result = mlfc("project", "build", template, cwd=tmp_path)
        assert result.returncode == 1, result.stderr
        assert "exceeds the 4,096 bytes of 'flash' by" in result.stderr
        assert "largest" in result.stderr


@pytest.mark.parametrize("board", ["nucleo_l4r5zi", "nrf52840dk", "stm32h743"])
def test_firmware_for_boards_that_nothing_emulates_is_built(models: Path, tmp_path: Path, board: str) -> None:
    project = made(tmp_path, models / MODEL, "makefile", board, build=QUICK)
    record = json.loads((tmp_path / project / "project.json").read_text())
    assert "run" not in record["steps"]
    (*_, tool) = record["steps"]["flash"]
    assert any("firmware." in argument for argument in tool["arguments"])
    result = mlfc("project", "run", project, cwd=tmp_path)
    assert result.returncode == 2
    assert f"board '{board}' has no known emulator" in result.stderr
    if shutil.which(tool["arguments"][0]) is None:  # otherwise it would look for a board
        missing = mlfc("project", "flash", project, cwd=tmp_path)
        assert f"{tool['arguments'][0]} is not on the PATH. {tool['install']}" in missing.stderr


def test_the_commands_of_the_page_work(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools("mps2-an386", "makefile")
    monkeypatch.chdir(tmp_path)
    shutil.copy(models / MODEL, "kws.tflite")  # a smaller model suffices
    np.savez("in.npz", np.zeros((1, 1), np.int8))
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "firmware-projects.md").read_text()
    blocks = [
        "\n".join(line[4:] for line in block.splitlines()) for block in re.findall(r"(?:^ {4}.*\n)+|^\n", page, re.M)
    ]
    shown = [block for block in blocks if block.startswith("mlfc project create")]
    assert len(shown) == 1
    for line in shown[0].splitlines():
        succeeded(*line.split()[1:], cwd=tmp_path)
    with np.load("out.npz") as outputs:
        assert outputs["StatefulPartitionedCall:0"].shape == (1, 1)
    shutil.rmtree("kws_m4")
    python = page.partition("    import mlfc\n")[2].partition("\n\nThe names are")[0]
    exec("import mlfc\n" + "\n".join(line[4:] for line in python.splitlines()), {})
    assert Path("kws_m4/firmware.elf").exists()

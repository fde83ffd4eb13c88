"""A host that drives emulated boards operator by operator over their serial ports."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.archive.read.load import load_factory
from mlfc.errors import TransportClosedError
from mlfc.factory import Factory
from mlfc.micro.board.board import find_board
from mlfc.micro.firmware.graph_source import graph_of_factory
from mlfc.micro.run import project_run as drivers
from mlfc.micro.run.emulator import emulated_factory
from mlfc.micro.run.project_run import driven_model
from tests.emulator.conftest import need_board
from tests.harness import seeded_inputs

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
FLAGS = "-O1"
DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.tflite"
BOARD = find_board("mps2-an386")


@pytest.fixture(autouse=True)
def _quick_firmware(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile the server with less optimization: tests check its behaviour, not its speed."""
    monkeypatch.setattr(drivers, "build_host_driven", partial(drivers.build_host_driven, cflags=FLAGS))


@pytest.fixture(scope="module")
def factory() -> Factory:
    module, params = mlfc.import_model(DIGITS)
    return mlfc.build(module, BOARD.target, params, executor="graph", module_name="digits")


@pytest.mark.usefixtures("_arm")
def test_outputs_and_instructions_are_those_of_the_whole_model(factory: Factory) -> None:
    ahead = mlfc.build(factory.module, BOARD.target, factory.source_params, module_name="digits")
    whole = emulated_factory(ahead, BOARD, profile=True, cflags=FLAGS)
    with driven_model(graph_of_factory(factory), BOARD) as model:
        inputs = seeded_inputs(model.inputs, 4)
        measured = model.profile(inputs)
        outputs = model.run(inputs)
        again = model.profile(inputs)
    expected = load_factory(factory).run(inputs)
    for tensor, output in outputs.items():
        np.testing.assert_array_equal(output, expected[tensor])
        np.testing.assert_array_equal(measured.outputs[tensor], expected[tensor])
    counts = [item.nanoseconds for item in measured.operators]
    # within the counter's tick and its interrupt, on any machine and regardless of the speed of the line
    assert [item.nanoseconds for item in again.operators] == pytest.approx(counts, abs=150)
    # the operators equal those of standalone firmware; only the calls and hooks around each one differ
    assert max(counts) > 20_000
    assert counts == pytest.approx(whole.measure(inputs).operators, abs=1000)


@pytest.mark.usefixtures("_arm")
def test_an_emulator_that_is_gone(factory: Factory) -> None:
    with driven_model(graph_of_factory(factory), BOARD) as model:
        line = model._session._transport._line._device  # type: ignore[attr-defined]
        line._process.kill()
        with pytest.raises(TransportClosedError, match="the program ended"):
            model.run(seeded_inputs(model.inputs, 0))


def test_the_command_counts_instructions_on_boards_of_the_other_uart(
    command: Callable[..., str], models: Path, tmp_path: Path
) -> None:
    need_board("qemu-riscv32")
    model = models / "hello_world_int8.tflite"
    here, there = tmp_path / "here.npz", tmp_path / "there.npz"
    command("run", model, "--outputs", here)
    options = ("--board", "qemu-riscv32", "--host-driven", "--profile", "--json", "--outputs", there)
    document = json.loads(command("run", model, *options))
    (name,) = np.load(here).files
    np.testing.assert_array_equal(np.load(there)[name], np.load(here)[name])
    assert all(row["instructions"] > 0 for row in document["operators"])
    assert sum(row["share"] for row in document["operators"]) == pytest.approx(1)


def test_a_module_compiled_ahead_of_time_runs_on_a_board(
    command: Callable[..., str], models: Path, tmp_path: Path
) -> None:
    """Check RISC-V as test_projects_run.py checks the other core, with the workspace also in host-shared memory."""
    name = "qemu-riscv32"
    need_board(name)
    archive, folder = tmp_path / "model.tar", tmp_path / "made"
    here, there = tmp_path / "here.npz", tmp_path / "there.npz"
    command("compile", models / "hello_world_int8.tflite", "--board", name, "--external-workspace", "-o", archive)
    command("run", archive, "--outputs", here)
    command("project", "create", archive, folder, "--template", "makefile", "--board", name, "--type", "host_driven")
    command("project", "build", folder, "--option", f"cflags={FLAGS}")
    command("project", "run", folder, "--outputs", there)
    (output,) = np.load(here).files
    np.testing.assert_array_equal(np.load(there)[output], np.load(here)[output])

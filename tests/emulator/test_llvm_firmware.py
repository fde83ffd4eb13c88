"""Firmware of LLVM objects under QEMU matches firmware of C code and LiteRT's reference kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.errors import OptionError
from mlfc.factory import Factory
from mlfc.memory import Pool
from mlfc.micro.memory.memory_table import MemoryTable
from mlfc.micro.project.generate import generate_project
from mlfc.micro.run.emulator import EmulatedModule, emulated_factory
from mlfc.relay import ir
from mlfc.verify.litert import LiteRtReference
from tests.emulator.conftest import CMSIS_NN, need_board
from tests.emulator.test_graph_firmware import WARNINGS as GRAPH_FLAGS
from tests.harness import built as built_once
from tests.harness import edge_inputs, module_of, seeded_inputs

# the core of each board
BOARDS = {
    "microbit": "-mcpu=cortex-m0",
    "mps2-an385": "-mcpu=cortex-m3",
    "mps2-an386": "-mtriple=thumbv7em-none-eabi -mcpu=cortex-m4",
    "mps2-an505": "-mcpu=cortex-m33",
    "mps3-an547": "-mcpu=cortex-m55",
    "qemu-riscv32": "-mcpu=generic-rv32",
}
SHARES = {"mps2-an386": 0.6, "mps3-an547": 0.65}
KWS = ("mps2-an386", "mps3-an547", "qemu-riscv32")


def built(path: Path, target: str, **options: Any) -> Factory:
    if not options:
        return built_once(path, target)
    module, params = mlfc.import_model(path)
    return mlfc.build(module, target, params, module_name="model", **options)


def firmware(path: Path, board: str, **options: Any) -> EmulatedModule:
    return emulated_factory(built(path, f"llvm {BOARDS[board]}", **options), need_board(board))


@pytest.mark.parametrize(
    ("name", "board"),
    [("kws_ref_model" if board in KWS else "hello_world_int8", board) for board in BOARDS],
)
def test_objects_give_what_the_reference_gives(name: str, board: str, models: Path) -> None:
    """Check results, and that they take two thirds of the instructions of TFLite Micro with CMSIS-NN."""
    path = models / f"{name}.tflite"
    made, reference = firmware(path, board), LiteRtReference(path)
    for inputs in (seeded_inputs(made.inputs, 1), edge_inputs(made.inputs)[0]):
        run, expected = made.measure(inputs), reference.run(inputs)
        for tensor, output in run.outputs.items():
            np.testing.assert_array_equal(output, expected[tensor])
        if (name, board) in CMSIS_NN:
            assert run.instructions < SHARES[board] * CMSIS_NN[name, board]
            assert run.stack_bytes < 1536


@pytest.mark.parametrize("convention", ["softfp", "hard"])
def test_floats_are_passed_as_the_objects_pass_them(convention: str) -> None:
    """Check calls of unary and binary functions of math.h, and of kernels."""
    x = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
    weights = ir.const(np.random.default_rng(2).standard_normal((5, 16)).astype(np.float32))

    def body(v: dict[str, ir.Var]) -> ir.Expr:
        sines = ir.call("sin", [ir.call("nn.dense", [v["x"], weights], units=5)])
        return ir.call("nn.softmax", [ir.call("power", [ir.const(np.float32(1.7)), sines])])

    module, board = module_of({"x": x}, {"y": body}), need_board("mps2-an386")
    ours, theirs = (
        emulated_factory(mlfc.build(module, target, module_name="model"), board).run({"x": x})["y"]
        for target in (f"llvm -mcpu=cortex-m4 -mfloat-abi={convention}", board.target)
    )
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))
    powers = 1.7 ** np.sin(x @ np.asarray(weights.data).T)
    np.testing.assert_allclose(ours, np.exp(powers) / np.exp(powers).sum(axis=1, keepdims=True), rtol=1e-5)


def test_objects_run_behind_the_graph_executor(models: Path) -> None:
    path = models / "hello_world_int8.tflite"
    # with the model, the board and the flags of test_graph_firmware.py, which builds the same runtime
    factory = built_once(path, f"llvm {BOARDS['microbit']}", "graph")
    made, reference = emulated_factory(factory, need_board("microbit"), cflags=GRAPH_FLAGS), LiteRtReference(path)
    inputs = seeded_inputs(made.inputs, 1)
    for tensor, output in made.run(inputs).items():
        np.testing.assert_array_equal(output, reference.run(inputs)[tensor])


def placed(table: MemoryTable) -> list[tuple[str | None, int]]:
    """Return the region and the bytes of the workspace."""
    return [(row.region, row.nbytes) for row in table.rows if row.what == "workspace"]


def test_memories_are_where_the_linker_script_wants_them(models: Path) -> None:
    path = models / "hello_world_int8.tflite"
    made, reference = firmware(path, "mps2-an386", pools=[Pool("psram")], workspace_io=True), LiteRtReference(path)
    inputs = seeded_inputs(made.inputs, 1)
    for tensor, output in made.run(inputs).items():
        np.testing.assert_array_equal(output, reference.run(inputs)[tensor])
    promised, linked = made.memory()
    assert placed(linked) == placed(promised)
    assert {region for region, _ in placed(linked)} == {"psram"}


def test_what_objects_cannot_do_is_said(models: Path, tmp_path: Path) -> None:
    factory = built(models / "hello_world_int8.tflite", "llvm -mcpu=cortex-m4")
    with pytest.raises(OptionError, match="cannot be profiled per operator: it consists of objects"):
        emulated_factory(factory, need_board("mps2-an386"), profile=True)
    path = mlfc.export_model_library_format(factory, tmp_path / "model.tar")
    with pytest.raises(OptionError, match="consists of objects, which template zephyr cannot build"):
        generate_project("zephyr", path, tmp_path / "project", {"board": "mps2-an386", "project_type": "standalone"})

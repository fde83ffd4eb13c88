"""Firmware that runs graphs with the C runtime: the outputs of other executors, and parameters that stay in flash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.errors import OptionError
from mlfc.micro.board.board import Board
from mlfc.micro.run.emulator import EmulatedModule, emulated_archive, emulated_factory
from mlfc.relay import ir
from mlfc.verify.litert import LiteRtReference
from tests.emulator.conftest import need_board
from tests.harness import built, module_of, seeded_inputs

WARNINGS = "-O1 -Wall -Wextra -Wpedantic -Werror"
# test_boards_run.py starts every board. The runtime is portable C, so its boards differ in features: a Cortex-M0 does
# not support unaligned words, a Cortex-M55 has vectors, RISC-V has another calling convention, and the host has
# sanitizers. Each of them builds the runtime once, for one of the models here.
CASES = [("kws_ref_model", "mps2-an386"), ("hello_world_int8", "microbit")]


def graph_firmware(path: Path, name: str, **options: object) -> EmulatedModule:
    board = need_board(name)
    return emulated_factory(built(path, board.target, "graph"), board, **options)


@pytest.mark.parametrize(("name", "board"), CASES)
def test_graphs_give_what_the_reference_gives(name: str, board: str, models: Path) -> None:
    path = models / f"{name}.tflite"
    made = graph_firmware(path, board, cflags=WARNINGS)
    inputs = seeded_inputs(made.inputs, 3)
    expected = LiteRtReference(path).run(inputs)
    for tensor, output in made.run(inputs).items():
        np.testing.assert_array_equal(output, expected[tensor])


def test_a_graph_takes_little_more_than_its_parts(models: Path) -> None:
    path = models / "kws_ref_model.tflite"
    made = graph_firmware(path, "mps2-an386", cflags=WARNINGS)
    run = made.measure(seeded_inputs(made.inputs, 0))
    aot = emulated_factory(built(path, "c -mcpu=cortex-m4"), need_board("mps2-an386"), cflags="-O1")
    other = aot.measure(seeded_inputs(aot.inputs, 0))
    assert run.instructions is not None
    assert run.instructions < 1.02 * (other.instructions or 0)
    sizes = built(path, "c -mcpu=cortex-m4", "graph").code.sizes
    assert run.ram_bytes is not None
    # parameters are not copied; tables of the executor and of the graph's JSON come in addition
    assert run.ram_bytes < sizes.workspace + sizes.io + 20_000
    assert (run.flash_bytes or 0) > sizes.constants


def test_tvms_own_archive_runs(shared: Path) -> None:
    folder = shared / "fixtures" / "tvm-0.14"
    made = emulated_archive(folder / "kws_graph_c.tar.xz", need_board("qemu-riscv32"), cflags="-O1")
    with np.load(folder / "kws_io.npz") as arrays:
        given, expected = {str(arrays["input_name"]): arrays["inputs"][0]}, arrays["outputs"][0]
    outputs = made.run(given)
    np.testing.assert_array_equal(outputs["Identity"].reshape(expected.shape), expected)


def checked_host() -> Board:
    """Return the host board with sanitizers, which end firmware with undefined behaviour."""
    board = need_board("host")
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    return replace(board, toolchain=replace(board.toolchain, flags=flags))


@pytest.mark.parametrize("name", ["mps3-an547", "host"])
def test_odd_names_views_inputs_that_are_outputs_and_integers(name: str) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    units = np.arange(-8, 8, dtype=np.int8).reshape(4, 4)
    scales = [ir.const(3), ir.const(0), ir.const(0.5), ir.const(0.25)]
    bodies = {
        'a "quoted" \\ ?? name': lambda v: ir.call("nn.softmax", [v["in put/0"]]),
        "view": lambda v: ir.call("reshape", [v["in put/0"]], newshape=(2, 6)),
        "itself": lambda v: v["µ"],
        "twice": lambda v: ir.call("add", [v["µ"], ir.call("nn.relu", [v["in put/0"]])]),
        "dense": lambda v: ir.call("qnn.dense", [v["bytes"], ir.const(units), *scales], units=4, out_dtype="int32"),
    }
    given: dict[str, np.ndarray] = {"in put/0": x, "µ": x - 6, "bytes": np.array([[-128, 127, 3, 90]], np.int8)}
    board = need_board(name) if name != "host" else checked_host()
    factory = mlfc.build(module_of(given, bodies), board.target, executor="graph")
    outputs = emulated_factory(factory, board, cflags=WARNINGS).run(given)
    np.testing.assert_allclose(
        outputs['a "quoted" \\ ?? name'], np.exp(x) / np.exp(x).sum(-1, keepdims=True), rtol=1e-5
    )
    np.testing.assert_array_equal(outputs["view"], x.reshape(2, 6))
    np.testing.assert_array_equal(outputs["itself"], x - 6)
    np.testing.assert_array_equal(outputs["twice"], 2 * x - 6)
    np.testing.assert_array_equal(outputs["dense"], (given["bytes"].astype(np.int32) - 3) @ units.T.astype(np.int32))


def test_what_graph_firmware_cannot_do_is_said(models: Path) -> None:
    with pytest.raises(OptionError, match="--executor aot"):
        graph_firmware(models / "hello_world_int8.tflite", "mps2-an386", profile=True)
    with pytest.raises(OptionError, match=r"16-bit.*--executor aot"):
        graph_firmware(models / "hello_world_int8.tflite", "arduino_mega")

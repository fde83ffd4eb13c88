"""Firmware under QEMU matches LiteRT's reference kernels and reports its costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.errors import BudgetError
from mlfc.micro.board.board import find_board
from mlfc.micro.run.emulator import EmulatedModule, emulated_archive, emulated_factory
from mlfc.relay import ir
from mlfc.verify.litert import LiteRtReference
from tests.emulator.conftest import need_board
from tests.harness import built, edge_inputs, module_of, seeded_inputs

# test_memory_truth.py runs every model on the mps2-an386 or the mps3-an547, and one on the mps2-an385, where it
# compares their memory; tests/native runs them on the host. Here the other boards run one model, and every kernel
# family runs convolutions.
CASES = [("hello_world_int8", board) for board in ("microbit", "arduino_mega", "stm32vl_disco")]
CASES += [("kws_ref_model", board) for board in ("mps2-an505", "qemu-riscv32", "host", "lm3s6965evb", "netduinoplus2")]
CASES += [("pretrainedResnet_quant", "qemu-riscv32"), ("ad01_int8", "mps2-an500")]


def firmware(path: Path, board: str, **options: object) -> EmulatedModule:
    chosen = need_board(board)
    return emulated_factory(built(path, chosen.target), chosen, **options)


@pytest.mark.parametrize(("name", "board"), CASES)
def test_firmware_gives_what_the_reference_gives(name: str, board: str, models: Path) -> None:
    path = models / f"{name}.tflite"
    made = firmware(path, board)
    reference = LiteRtReference(path)
    for inputs in (seeded_inputs(made.inputs, 1), edge_inputs(made.inputs)[0]):
        expected = reference.run(inputs)
        for tensor, output in made.run(inputs).items():
            np.testing.assert_array_equal(output, expected[tensor])


def test_measures_are_the_same_every_time_and_add_up(models: Path) -> None:
    made = firmware(models / "kws_ref_model.tflite", "mps2-an386")
    inputs = seeded_inputs(made.inputs, 0)
    one, two = made.measure(inputs), made.measure(inputs)
    assert (one.instructions, one.stack_bytes, one.ram_bytes) == (two.instructions, two.stack_bytes, two.ram_bytes)
    profiled = firmware(models / "kws_ref_model.tflite", "mps2-an386", profile=True).measure(inputs)
    assert len(profiled.operators) == len(made.operators)
    assert sum(profiled.operators) == pytest.approx(one.instructions, rel=0.01)
    # a core runs at least one instruction per four multiply-accumulates
    assert one.instructions > sum(entry.macs for entry in made.operators) / 4


def test_ram_is_workspace_tensors_and_stack(models: Path) -> None:
    made = firmware(models / "kws_ref_model.tflite", "mps2-an386")
    run = made.measure(seeded_inputs(made.inputs, 0))
    sizes = built(models / "kws_ref_model.tflite", need_board("mps2-an386").target).code.sizes
    known = sizes.workspace + sizes.io + run.stack_bytes
    assert known <= run.ram_bytes < known + 200
    assert sizes.constants < run.flash_bytes < sizes.constants + 20_000


def test_archives_with_external_workspace_and_odd_names_run(tmp_path: Path) -> None:
    def body(v):
        return ir.call("nn.softmax", [ir.call("add", [v["in put/0"], v["int"]])])

    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    module = module_of({"in put/0": x, "int": x}, {"out:0": body})
    factory = mlfc.build(module, "c -mcpu=cortex-m4", module_name="odd", external_workspace=True)
    path = mlfc.export_model_library_format(factory, tmp_path / "odd.tar")
    run = emulated_archive(path, need_board("mps2-an386")).run({"in put/0": x, "int": x})
    expected = np.exp(2 * x) / np.exp(2 * x).sum(-1, keepdims=True)
    np.testing.assert_allclose(run["out:0"], expected, rtol=1e-5, atol=1e-7)


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    weight = ir.Constant(np.random.default_rng(0).standard_normal((2000, 600)).astype(np.float32))

    def body(v):
        return ir.call("nn.dense", [v["x"], weight], units=2000)

    module = module_of({"x": np.zeros((1, 600), np.float32)}, {"y": body})
    with pytest.raises(BudgetError, match=r"exceed the 2,097,152 of 'code' by .* bytes: constants 4,8"):
        emulated_factory(mlfc.build(module, "c -mcpu=cortex-m55"), find_board("mps3-an547"))


@pytest.mark.usefixtures("_arm")
def test_command_line(models: Path, command: Callable[..., str]) -> None:
    model = models / "hello_world_int8.tflite"
    document = json.loads(command("run", model, "--board", "mps2-an386", "--profile", "--json"))
    assert {
        "outputs",
        "instructions",
        "startup_instructions",
        "clock_hz",
        "milliseconds",
        "flash_bytes",
        "ram_bytes",
        "stack_bytes",
        "operators",
    } == set(document)
    assert document["operators"][0]["per_mac"] > 0


@pytest.mark.usefixtures("_arm")
def test_every_layer_is_compared_on_the_board(models: Path, command: Callable[..., str]) -> None:
    model = models / "hello_world_int8.tflite"
    document = json.loads(command("verify", model, "--board", "mps3-an547", "--layers", "--samples", "1", "--json"))
    assert document["is_within"]
    assert len(document["layers"]) == 3  # one per dense layer


def test_a_board_says_what_archives_are_compiled_for(
    models: Path, tmp_path: Path, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small.toml"
    text = (Path(mlfc.__file__).parent / "micro" / "boards" / "mps2-an386.toml").read_text()
    text = text.replace("0x00400000", "0x00004000").replace("stack_bytes = 65536", "stack_bytes = 2048")
    small.write_text(text.replace('"mps2-an386"', '"small"', 1))
    monkeypatch.chdir(tmp_path)
    model = models / "kws_ref_model.tflite"
    with pytest.raises(BudgetError, match="exceed the 16,384 of 'flash' by"):
        command("compile", model, "--board", small)
    assert list(tmp_path.iterdir()) == [small]
    command("compile", models / "hello_world_int8.tflite", "--board", "mps2-an386", "-o", "hello.tar")
    assert mlfc.inspect(tmp_path / "hello.tar")["modules"]["hello_world_int8"]["target"] == ["c -mcpu=cortex-m4"]

"""Firmware under QEMU computes what LiteRT's reference kernels do, and tells what it took."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.errors import BudgetError
from mlfc.micro.board.board import find_board
from mlfc.micro.run.emulator import EmulatedModule, emulated_archive, emulated_factory
from mlfc.relay import ir
from mlfc.verify.litert import Reference
from tests.emulator.conftest import need_board
from tests.harness import edge_inputs, module_of, seeded_inputs

MODELS = ("ad01_int8", "kws_ref_model", "vww_96_int8", "pretrainedResnet_quant", "hello_world_int8")
# one core of each family runs every model
CASES = [(name, board) for name in MODELS for board in ("mps2-an386", "mps3-an547")]
CASES += [(name, board) for name in MODELS[:2] for board in ("mps2-an385", "mps2-an500")]
CASES += [(name, board) for name in MODELS for board in ("qemu-riscv32", "host")]
CASES += [("kws_ref_model", "mps2-an505"), ("hello_world_int8", "microbit"), ("hello_world_int8", "arduino_mega")]


def firmware(path: Path, board: str, **options: object) -> EmulatedModule:
    module, params = mlfc.import_model(path)
    chosen = need_board(board)
    return emulated_factory(mlfc.build(module, chosen.target, params, module_name="model"), chosen, **options)


@pytest.mark.parametrize(("name", "board"), CASES)
def test_firmware_gives_what_the_reference_gives(name: str, board: str, models: Path) -> None:
    path = models / f"{name}.tflite"
    made = firmware(path, board)
    reference = Reference(path)
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
    # a core runs at least an instruction for four multiply-accumulates
    assert one.instructions > sum(entry.macs for entry in made.operators) / 4


def test_ram_is_workspace_tensors_and_stack(models: Path) -> None:
    made = firmware(models / "kws_ref_model.tflite", "mps2-an386")
    run = made.measure(seeded_inputs(made.inputs, 0))
    module, params = mlfc.import_model(models / "kws_ref_model.tflite")
    sizes = mlfc.build(module, need_board("mps2-an386").target, params).code.sizes
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
def test_command_line(models: Path, tmp_path: Path) -> None:
    model = str(models / "ad01_int8.tflite")
    command = [sys.executable, "-m", "mlfc", "run", model, "--board", "mps2-an386", "--profile", "--json"]
    result = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    document = json.loads(result.stdout)
    assert {
        "outputs",
        "instructions",
        "startup_instructions",
        "flash_bytes",
        "ram_bytes",
        "stack_bytes",
        "operators",
    } == set(document)
    assert document["operators"][0]["per_mac"] > 0


def mlfc_program(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mlfc", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd)


@pytest.mark.usefixtures("_arm")
def test_every_layer_is_compared_on_the_board(models: Path, tmp_path: Path) -> None:
    model = str(models / "ad01_int8.tflite")
    result = mlfc_program(
        "verify", model, "--board", "mps3-an547", "--layers", "--samples", "1", "--json", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["is_within"]
    assert len(document["layers"]) == 10  # one a dense layer


def test_a_board_says_what_archives_are_compiled_for(models: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.toml"
    text = (Path(mlfc.__file__).parent / "micro" / "boards" / "mps2-an386.toml").read_text()
    text = text.replace("0x00400000", "0x00004000").replace("stack_bytes = 65536", "stack_bytes = 2048")
    small.write_text(text.replace('"mps2-an386"', '"small"', 1))
    model = str(models / "kws_ref_model.tflite")
    refused = mlfc_program("compile", model, "--board", str(small), cwd=tmp_path)
    assert refused.returncode == 1
    assert "exceed the 16,384 of 'flash' by" in refused.stderr
    assert list(tmp_path.iterdir()) == [small]
    assert mlfc_program("compile", model, "--board", "mps2-an386", "-o", "kws.tar", cwd=tmp_path).returncode == 0
    assert mlfc.inspect(tmp_path / "kws.tar")["modules"]["kws_ref_model"]["target"] == ["c -mcpu=cortex-m4"]

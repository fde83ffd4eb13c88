"""Memory predictions before a build, compared with the linker's sizes and the measured stack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive.describe.inspect import object_sizes
from mlfc.errors import BudgetError
from mlfc.memory.plan import ConstantPool, Pool
from mlfc.micro.board.board import find_board, parse_board
from mlfc.micro.firmware.planned_memory import TRIAL_ELF, planned_table, trial_build
from mlfc.micro.memory.memory_table import CODE, CONSTANTS, INITIAL, IO, RESERVE, WORKSPACE, differences
from mlfc.micro.memory.stack_bound import interrupt_bytes
from mlfc.micro.run.emulator import EmulatedModule, emulated_factory
from mlfc.relay import ir
from mlfc.support.module_info import MemoryInfo, ModuleInterface
from mlfc.verify.litert import LiteRtReference
from tests.conftest import need
from tests.emulator.conftest import CMSIS_NN, need_board
from tests.harness import built, edge_inputs, module_of, seeded_inputs
from tests.unit.test_cli import mlfc as run_mlfc
from tests.unit.test_cli import succeeded

BOARDS = ("mps2-an386", "mps3-an547")
DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.tflite"
MODELS = ("hello_world_int8", "kws_ref_model", "ad01_int8")
# bytes of stack that the painter leaves unpainted
UNPAINTED = 64


def firmware(path: Path, board: str, cflags: str) -> EmulatedModule:
    chosen = find_board(board)
    return emulated_factory(built(path, chosen.target), chosen, cflags=cflags)


# Small models at the default level on both cores, and a large one. Other levels change stack frames, for which one
# model has all kinds.
CASES = [(name, board, "-O3") for name in MODELS for board in BOARDS]
CASES += [("vww_96_int8", "mps3-an547", "-O3")]
CASES += [("kws_ref_model", "mps2-an386", "-Os"), ("kws_ref_model", "mps3-an547", "-O0")]
CASES += [("kws_ref_model", "mps2-an385", "-O3")]


@pytest.mark.parametrize(("name", "board", "cflags"), CASES)
def test_promises_are_kept_and_the_painted_stack_is_within_the_bound(
    name: str, board: str, cflags: str, models: Path
) -> None:
    """Also check the outputs, and that they take two thirds of the instructions of TFLite Micro with CMSIS-NN."""
    path = models / f"{name}.tflite"
    made, reference = firmware(path, board, cflags), LiteRtReference(path)
    before, after = made.memory()
    assert not differences(before, after)
    assert before.total(WORKSPACE) + before.total(IO) > 0
    assert before.total(CODE["model"]) == after.total(CODE["model"])
    assert before.stack == after.stack
    bound = before.stack.nbytes
    for inputs in (seeded_inputs(made.inputs, 1), edge_inputs(made.inputs)[0]):
        run, expected = made.measure(inputs), reference.run(inputs)
        for tensor, output in run.outputs.items():
            np.testing.assert_array_equal(output, expected[tensor])
        if cflags == "-O3" and (name, board) in CMSIS_NN:
            assert run.instructions < 0.65 * CMSIS_NN[name, board]
            assert run.stack_bytes < 1536
        painted = run.stack_bytes
        assert painted <= max(bound + interrupt_bytes(made.board), UNPAINTED)
    # the path taken is the deepest one, except for a branch that these inputs do not take
    assert bound <= painted + 32


@pytest.mark.parametrize(
    "placement",
    [
        {"workspace_io": True},
        {"pools": [Pool("dtcm", 400), Pool("ram", 100_000)]},
        {"constants": [ConstantPool("dtcm", 1500), ConstantPool("code", None)]},
        {"workspace_io": True, "constants": [ConstantPool("dtcm", 1500), ConstantPool("code", None, external=True)]},
        {"external_workspace": True},
    ],
)
def test_promises_are_kept_in_every_region(placement: dict[str, Any]) -> None:
    module, params = mlfc.import_model(DIGITS)
    board = find_board("mps3-an547")
    factory = mlfc.build(module, board.target, params, module_name="model", **placement)
    made = emulated_factory(factory, board, cflags="-O1")
    before, after = made.memory()
    assert not differences(before, after)
    for region in ("ram", "dtcm"):
        assert before.total(WORKSPACE, region) == after.total(WORKSPACE, region)
        assert before.total(IO, region) == after.total(IO, region)
    for region in ("code", "dtcm"):
        assert before.total(CONSTANTS, region) == after.total(CONSTANTS, region)
    in_dtcm = before.total(WORKSPACE, "dtcm") + before.total(CONSTANTS, "dtcm")
    assert (in_dtcm > 0) == ("pools" in placement or "constants" in placement)
    painted = made.measure(seeded_inputs(made.inputs, 1)).stack_bytes
    assert painted <= before.stack.nbytes + interrupt_bytes(board)


@pytest.mark.parametrize("cflags", ["-O3", "-O0"])
def test_on_a_core_of_another_architecture(cflags: str, models: Path) -> None:
    need("qemu-system-riscv32", "qemu-system-misc")
    need("riscv64-unknown-elf-gcc", "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf")
    made = firmware(models / "kws_ref_model.tflite", "qemu-riscv32", cflags)
    before, after = made.memory()
    assert not differences(before, after)
    painted = made.measure(seeded_inputs(made.inputs, 1)).stack_bytes
    assert painted <= before.stack.nbytes <= painted + 32


def test_where_the_assembler_fills_sections_the_promise_has_what_it_adds(models: Path) -> None:
    before, after = firmware(models / "hello_world_int8.tflite", "arduino_mega", "-Os").memory()
    assert not differences(before, after)
    assert before.total(WORKSPACE) == 64


def test_the_map_has_every_byte_of_the_program(models: Path) -> None:
    made = firmware(models / "kws_ref_model.tflite", "mps2-an386", "-O3")
    _, after = made.memory()
    flash, ram = (next(item for item in after.regions if item.name == name) for name in ("flash", "ram"))
    sizes = object_sizes((Path(made._temporary.name) / "firmware.elf").read_bytes(), "firmware.elf")
    assert flash.used == sizes["code_bytes"] + sizes["readonly_bytes"] + sizes["data_bytes"]
    assert ram.used - after.total(RESERVE) == sizes["zeroed_bytes"] + sizes["data_bytes"]
    assert after.total(RESERVE) == made.board.stack_bytes
    assert after.total(INITIAL) == sizes["data_bytes"]


def test_the_compiler_says_the_same_frames_as_the_machine_code(models: Path) -> None:
    from mlfc.micro.memory.stack_bound import RULES, disassembled, frame_sizes, read_functions

    board = find_board("mps3-an547")
    factory = built(models / "kws_ref_model.tflite", board.target)
    with trial_build(factory.code.files, ["tvmgen_model_run"], board, ["-Os"]) as folder:
        machine = read_functions(disassembled(folder / TRIAL_ELF, board), RULES["cortex-m"])
        stated = frame_sizes(folder)
    # assembler functions, which the compiler has no frame sizes for: nine registers, and thirteen
    assert (machine["mlf_dots1"].frame, machine["mlf_dots2"].frame) == (36, 52)
    compared = [name for name in stated.keys() & machine.keys() if not name.startswith("mlf_dots")]
    assert len(compared) > 5
    assert {name: machine[name].frame for name in compared} == {name: stated[name].nbytes for name in compared}


@pytest.mark.parametrize("name", ["mps2-an385", "microbit", "qemu-riscv32"])
def test_calls_of_the_compilers_own_are_counted(name: str) -> None:
    """Count library calls for float arithmetic on cores without an FPU; the compiler's call graph omits them."""
    if name == "qemu-riscv32":
        need("qemu-system-riscv32", "qemu-system-misc")
        need("riscv64-unknown-elf-gcc", "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf")
    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    module = module_of({"x": x}, {"y": lambda v: ir.call("nn.softmax", [ir.call("tanh", [v["x"]])])})
    board = find_board(name)
    factory = mlfc.build(module, board.target, module_name="model")
    made = emulated_factory(factory, board)
    before, after = made.memory()
    assert any(not frame.function.startswith("tvmgen_") for frame in before.stack.path)
    painted = made.measure({"x": x}).stack_bytes
    assert painted <= before.stack.nbytes + (interrupt_bytes(board) or 0)
    assert before.stack.nbytes <= painted + 64
    assert not differences(before, after)
    assert before.total(CODE["libraries"]) > 500


RECURSIVE = b"""
#include <stdint.h>
struct tvmgen_m_inputs { void *x; };
struct tvmgen_m_outputs { void *y; };
int32_t (*volatile chosen)(int32_t);
static __attribute__((noinline)) int32_t again(int32_t n) { return n ? again(n - 1) * 3 + n : 0; }
int32_t tvmgen_m_run(struct tvmgen_m_inputs *in, struct tvmgen_m_outputs *out) {
  int32_t n = *(int32_t *)in->x;
  %s
  return 0;
}
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"*(int32_t *)out->y = again(n) + 1;", "calls itself"),
        (b"*(int32_t *)out->y = chosen(n) + 1;", "has an unknown call target"),
        (
            b"int32_t a[n]; for (int i = 0; i < n; ++i) a[i] = chosen == 0; *(int32_t *)out->y = a[n / 2];",
            "depends on data",
        ),
    ],
)
def test_what_has_no_bound_is_said(body: bytes, message: str) -> None:
    memory = MemoryInfo(0, 0, constants_bytes=0, io_bytes=8)
    details = ModuleInterface(entry=None, external_workspace=False, inputs=(), outputs=(), memory=memory)
    code = {"src/m_lib0.c": RECURSIVE % body}
    table = planned_table("m", code, details, find_board("mps2-an386"), ["-O1", "-fno-optimize-sibling-calls"])
    assert table.stack.nbytes is None
    assert message in table.stack.untold[0]


def test_what_does_not_fit_is_said_before_and_after_linking(models: Path, tmp_path: Path) -> None:
    text = (Path(mlfc.__file__).parent / "micro" / "boards" / "mps2-an386.toml").read_text()
    factory = built(models / "kws_ref_model.tflite", "c -mcpu=cortex-m4")

    def board(flash: int, ram: int, stack: int) -> Any:
        sized = text.replace("0x00400000", hex(flash), 1).replace("0x00400000", hex(ram), 1)
        return parse_board(sized.replace("stack_bytes = 65536", f"stack_bytes = {stack}"), "small.toml")

    plan = factory.code.sizes
    with pytest.raises(BudgetError, match=r"of 'ram' by .* bytes: workspace .*the peak is in .*largest tensors there"):
        emulated_factory(factory, board(0x40000, plan.workspace, 1024))
    with pytest.raises(BudgetError, match=r"of 'flash' by .* bytes: constants .*the largest: "):
        emulated_factory(factory, board(plan.constants - 1, 0x40000, 1024))
    # the constants fit, the code does not, as the linker reports
    with pytest.raises(BudgetError, match=r"'flash' by .* bytes; the largest: model_lib1.c.o .*conv2d_\d+_weights"):
        emulated_factory(factory, board(plan.constants + 4096, 0x40000, 1024))
    with pytest.raises(BudgetError, match="what the project reserves for its stack"):
        emulated_factory(factory, board(0x40000, plan.workspace + plan.io + 2048, 4096))


def test_command_line(models: Path, tmp_path: Path) -> None:
    need_board("mps3-an547")
    model = str(models / "hello_world_int8.tflite")
    before = json.loads(succeeded("inspect", model, "--board", "mps3-an547", "--json", cwd=tmp_path))
    rows = {row["what"]: row["bytes"] for row in before["rows"]}
    assert rows[IO] == 2
    assert before["stack"]["bytes"] == sum(item["bytes"] for item in before["stack"]["path"])
    said = succeeded("compile", model, "--board", "mps3-an547", "-o", "hello.tar", cwd=tmp_path)
    assert "stack of an inference" in said
    ran = succeeded("run", "hello.tar", "--board", "mps3-an547", "--memory", "--json", cwd=tmp_path)
    memory = json.loads(ran)["memory"]
    assert memory["differences"] == []
    linked = {row["what"]: row["bytes"] for row in memory["linked"]["rows"] if row["region"] == "code"}
    assert linked[CONSTANTS] == rows[CONSTANTS]
    # the budget includes the stack: inputs, outputs and workspace alone would fit
    needed = rows[WORKSPACE] + rows[IO]
    refused = run_mlfc("compile", model, "--board", "mps3-an547", "--ram", needed + 50, "-o", "no.tar", cwd=tmp_path)
    assert refused.returncode == 1
    assert "stack of an inference" in refused.stderr
    assert not (tmp_path / "no.tar").exists()


def test_without_a_compiler_the_table_says_what_to_install(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    model = str(models / "hello_world_int8.tflite")
    shown = succeeded("inspect", model, "--board", "mps2-an386", cwd=tmp_path)
    assert "apt-get install gcc-arm-none-eabi" in shown


def test_a_build_whose_reserve_is_too_small_is_said(models: Path, tmp_path: Path) -> None:
    need_board("mps2-an386")
    model = models / "hello_world_int8.tflite"
    succeeded("project", "create", model, "hello", "--template", "makefile", "--board", "mps2-an386", cwd=tmp_path)
    built = run_mlfc("project", "build", "hello", "--option", "stack_bytes=64", cwd=tmp_path)
    assert built.returncode == 1
    assert "stack reserve" in built.stdout
    assert "bytes, exceeds the reserve by" in built.stderr

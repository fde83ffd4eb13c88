"""Dynamic models on emulated microcontrollers, without a heap, with test vectors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

import mlfc
from mlfc.errors import InputError, OptionError, RunError
from mlfc.micro.board.board import find_board
from mlfc.micro.firmware.planned_memory import plan_table, planned_table
from mlfc.micro.memory.memory_table import IO, WORKSPACE, differences
from mlfc.micro.memory.stack_bound import interrupt_bytes
from mlfc.micro.project.generate import generate_project
from mlfc.micro.run import emulator
from mlfc.micro.run.emulator import EmulatedModule, emulated_archive, emulated_factory
from mlfc.micro.run.firmware_run import LINES, CalledOperator, read_calls
from mlfc.micro.run.project_run import build_project, run_selftest
from tests import open_models
from tests.conftest import need
from tests.unit.test_cli import mlfc as run_mlfc
from tests.unit.test_cli import succeeded
from tests.vm_models import expected, two_layers

Array = npt.NDArray[Any]

# results on the host are not tested here
pytestmark = pytest.mark.usefixtures("unoptimized_builds")
BOARD = "mps2-an386"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an archive for the board's core, with the smallest and largest number of rows and one in between."""
    module, params = two_layers(4)
    factory = mlfc.build(module, find_board(BOARD).target, params, executor="vm", module_name="net")
    path: Path = mlfc.export_model_library_format(factory, tmp_path_factory.mktemp("vm") / "net.tar", test_vectors=3)
    return path


@pytest.fixture(scope="module")
def unbounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module, params = two_layers()
    factory = mlfc.build(module, params=params, executor="vm", module_name="net")
    path: Path = mlfc.export_model_library_format(factory, tmp_path_factory.mktemp("vm") / "net.tar")
    return path


def test_vectors_of_all_batches_hold_on_a_cortex_m(archive: Path) -> None:
    found = run_selftest(archive, find_board(BOARD), cflags="-O1")
    assert found.passed
    assert [line.partition(":")[0] for line in found.lines[:3]] == [f"PASS net, vector {index}" for index in range(3)]


def test_memory_of_a_board_is_the_work_area(archive: Path) -> None:
    module = mlfc.archive.inspect(archive)["modules"]["net"]
    details = mlfc.archive.rebuild(archive)[0].interface()
    rows = [row for row in plan_table(details, find_board(BOARD)).rows if row.what == WORKSPACE]
    assert [row.nbytes for row in rows] == [module["vm"]["work_bytes"]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"project_type": "host_driven"}, "projects of the type host_driven do not run.*--type standalone"),
        ({"project_type": "selftest", "board": "arduino_mega"}, "arduino_mega does not support"),
    ],
)
def test_projects_refuse_what_they_cannot_run(
    archive: Path, options: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=said):
        generate_project("makefile", archive, tmp_path / "project", {"board": BOARD, **options})
    assert list(tmp_path.iterdir()) == []


def test_a_project_of_its_self_test_is_made(archive: Path, tmp_path: Path) -> None:
    folder = generate_project("makefile", archive, tmp_path / "project", {"board": BOARD, "project_type": "selftest"})
    assert (folder / "crt/include/mlfc_vm.h").is_file()


@pytest.mark.parametrize(
    ("template", "board"),
    [
        ("zephyr", "nucleo_l4r5zi"),
        ("arduino", "arduino_nano_33_ble"),
        ("esp_idf", "esp32c3"),
        ("cmsis_pack", BOARD),
        ("package", "host"),
    ],
)
def test_templates_for_static_models_alone_say_so(template: str, board: str, archive: Path, tmp_path: Path) -> None:
    for project_type in ("standalone", "selftest"):
        with pytest.raises(OptionError, match=f"template {template} does not support.*template makefile or cmake"):
            generate_project(template, archive, tmp_path / "p", {"board": board, "project_type": project_type})
    assert list(tmp_path.iterdir()) == []


def test_firmware_without_bounds_says_how_to_get_them(unbounded: Path, tmp_path: Path) -> None:
    said = r"is unbounded, and firmware has no heap.*--shape x=batch:1\.\.8,8"
    with pytest.raises(OptionError, match=said):
        generate_project("makefile", unbounded, tmp_path / "project", {"board": BOARD, "project_type": "selftest"})
    with pytest.raises(OptionError, match=said):
        emulated_archive(unbounded, find_board(BOARD))


SHAPES = {
    "detector": {"x": (1, 3, mlfc.Dim("h", 4, 16), mlfc.Dim("w", 4, 16))},
    "recurrent": {"x": (mlfc.Dim("length", 1, 20), 1, 6)},
    "looping": {"x": (mlfc.Dim("batch", 1, 4), 4)},
}
MAKERS = {"detector": open_models.detector, "recurrent": open_models.recurrent, "looping": open_models.looping}
SIZES = {"detector": ((4, 4), (16, 16), (7, 9)), "recurrent": ((1,), (20,), (13,)), "looping": ((1, 0), (4, 9), (2, 3))}


def inputs_of(kind: str, sizes: tuple[int, ...]) -> dict[str, Array]:
    rng = np.random.default_rng(sum(sizes))
    shape = {"detector": (1, 3, *sizes), "recurrent": (*sizes, 1, 6), "looping": (sizes[0], 4)}[kind]
    x = rng.normal(size=shape).astype(np.float32)
    return {"n": np.array(sizes[1]), "x": x} if kind == "looping" else {"x": x}


@pytest.mark.parametrize(
    ("board", "kind"),
    [
        ("mps2-an386", "detector"),
        ("mps3-an547", "recurrent"),
        ("mps2-an385", "looping"),
        ("qemu-riscv32", "recurrent"),
        ("qemu-riscv32", "looping"),
    ],
)
def test_open_models_equal_onnxruntime_and_keep_their_promises(board: str, kind: str) -> None:
    """Check memory to the byte, and that the painted stack is within the bound known before the build."""
    if board == "qemu-riscv32":
        need("qemu-system-riscv32", "qemu-system-misc")
        need("riscv64-unknown-elf-gcc", "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf")
    model = MAKERS[kind]()
    module, params = mlfc.import_model(model, shapes=SHAPES[kind])
    factory = mlfc.build(module, find_board(board).target, params, module_name="net")
    made = emulated_factory(factory, find_board(board), cflags="-O1")
    before, after = made.memory()
    assert not differences(before, after)
    assert before.total(WORKSPACE) == factory.interface().vm.work_bytes
    assert before.stack == after.stack
    bound = before.stack.nbytes
    session = onnxruntime.InferenceSession(model)
    for sizes in SIZES[kind]:
        inputs = inputs_of(kind, sizes)
        run = made.measure(inputs)
        for output, reference in zip(run.outputs.values(), session.run(None, inputs), strict=True):
            np.testing.assert_allclose(output, reference, rtol=1e-5, atol=1e-6)
        painted = run.stack_bytes
        assert painted <= bound + (interrupt_bytes(find_board(board)) or 0)
        assert bound <= painted + 96


def test_the_stack_of_a_deep_kernel_counts(tmp_path: Path) -> None:
    board = find_board(BOARD)
    module, params = two_layers(4)
    factory = mlfc.build(module, board.target, params, executor="vm", module_name="net")
    code = {path: bytes(data) for path, data in factory.code.built_files.items()}
    path = next(path for path, text in code.items() if b"int32_t tvmgen_net_fused_nn_softmax(" in text)
    head, begin, rest = code[path].partition(b"int32_t tvmgen_net_fused_nn_softmax(")
    parameters, opening, body = rest.partition(b") {\n")
    deep = b"volatile uint8_t deep[3000]; deep[0] = 1; deep[2999] = deep[0];\n"
    changed = {**code, path: head + begin + parameters + opening + deep + body}
    details = factory.interface()
    stacks = [planned_table("net", files, details, board, ["-O1"]).stack for files in (code, changed)]
    assert stacks[1].nbytes > 3000 > stacks[0].nbytes
    assert stacks[1].path[0].function == "tvmgen_net_vm_run"


@pytest.fixture(scope="module")
def looping() -> EmulatedModule:
    """Return firmware of a loop that counts the instructions of each operator."""
    module, params = mlfc.import_model(open_models.looping(), shapes=SHAPES["looping"])
    board = find_board(BOARD)
    factory = mlfc.build(module, board.target, params, module_name="net")
    return emulated_factory(factory, board, cflags="-O1", profile=True)


def test_operators_are_counted_in_each_turn_of_a_loop(looping: EmulatedModule) -> None:
    x = np.zeros((2, 4), np.float32)
    runs = [looping.measure({"n": np.array(count), "x": x}) for count in (0, 1, 4)]
    functions = [item.function for item in looping.operators]
    turn = next(index for index, name in enumerate(functions) if "multiply" in name)
    assert [run.calls[turn] for run in runs] == [0, 1, 4]
    assert [run.operators[turn] > 0 for run in runs] == [False, True, True]
    assert runs[1].operators[turn] < runs[2].operators[turn] < 5 * runs[1].operators[turn]
    assert all(sum(run.operators) < run.instructions for run in runs)
    with pytest.raises(OptionError, match="does not transfer the outputs of operators"):
        emulated_factory(mlfc.build(two_layers(4)[0], executor="vm"), find_board(BOARD), trace=True)


@pytest.mark.parametrize(
    "text", ["trace 2 00000000 1\nnumbers\n", "trace 1 00000000 1\n", "numbers 1\n", "trace 0 0 1\n"]
)
def test_lines_that_name_no_call_are_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / LINES).write_text("trace 1 00000000 5\nnumbers 3 4\n" + text)
    with pytest.raises(RunError, match="line 3 names no call of 2 operators"):
        read_calls(tmp_path, 2)
    (tmp_path / LINES).write_text("trace 1 00000000 5\nnumbers 3 4\ntrace 1 00000000 6\nnumbers\n")
    assert read_calls(tmp_path, 2) == (CalledOperator((), 0), CalledOperator(((3, 4), ()), 11))


def test_errors_before_a_run_and_of_a_run_are_those_of_the_host(
    looping: EmulatedModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = looping
    with pytest.raises(InputError, match="its dtype is float64"):
        made.run({"n": np.array(1), "x": np.zeros((2, 4))})
    said = r"'batch' \(1 to 4, the same wherever it is\) on axis 0, got "
    with pytest.raises(InputError, match=f"{said}5"):
        made.run({"n": np.array(1), "x": np.zeros((5, 4), np.float32)})
    # the board checks what the host has not checked, and reports it
    monkeypatch.setattr(emulator, "require_fitting", lambda *_: None)
    with pytest.raises(InputError, match=f"{said}0"):
        made.run({"n": np.array(1), "x": np.zeros((0, 4), np.float32)})


def test_command_line_runs_an_open_model_on_a_board(archive: Path, tmp_path: Path) -> None:
    options = ["run", str(archive), "--board", BOARD, "--memory", "--json"]
    told = json.loads(succeeded(*options, "--shape", "x=3,8", cwd=tmp_path))
    assert told["outputs"][0]["shape"] == [3, 4]
    assert told["stack_bytes"] <= told["memory"]["linked"]["stack"]["bytes"] + 108
    counted = json.loads(succeeded(*options[:3], BOARD, "--profile", "--json", "--shape", "x=3,8", cwd=tmp_path))
    known = mlfc.inspect(archive)["modules"]["net"]["operators"]
    rows = counted["operators"]
    assert sorted(row["function"] for row in rows) == sorted(item["function"] for item in known)
    assert all(row["instructions"] > 0 for row in rows)
    # three rows through dense layers 8x16 and 16x4
    assert sorted(row["macs"] for row in rows) == [0, 3 * 16 * 4, 3 * 8 * 16]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    # the cost of the hooks, apart from reading the counter, is excluded
    assert sum(row["instructions"] for row in rows) < counted["instructions"]
    assert counted["instructions"] < told["instructions"] + 100 * len(rows)


def test_a_standalone_project_is_made_and_runs(archive: Path, tmp_path: Path) -> None:
    folder = generate_project("makefile", archive, tmp_path / "project", {"board": BOARD, "project_type": "standalone"})
    project = build_project(folder, {"cflags": "-O1"})
    before, after = project.memory()
    assert not differences(before, after)
    assert run_mlfc("project", "run", folder, "--json", cwd=tmp_path).returncode == 0  # with generated inputs
    x = np.random.default_rng(3).normal(size=(2, 8)).astype(np.float32)
    found = project.firmware(300).run({"x": x})
    np.testing.assert_allclose(found["probabilities"], expected(x, two_layers(4)[1]), rtol=1e-5)


def test_verify_compares_a_board_with_onnxruntime_at_sizes_within_the_bounds(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(open_models.looping())
    found = mlfc.verify(path, board=BOARD, shapes=SHAPES["looping"], samples=2)
    assert found.is_within


def test_fit_counts_instructions_of_the_largest_inputs(tmp_path: Path) -> None:
    model = open_models.recurrent()
    (tmp_path / "net.onnx").write_bytes(model)
    options = ("--board", BOARD, "--shape", "x=length:1..20,1,6", "--emulate", "--json")
    (row,) = json.loads(succeeded("fit", "net.onnx", *options, cwd=tmp_path))["boards"]
    module, params = mlfc.import_model(model, shapes=SHAPES["recurrent"])
    board = find_board(BOARD)
    made = emulated_factory(mlfc.build(module, board.target, params, module_name="net"), board)
    largest = made.measure(inputs_of("recurrent", (20,))).instructions
    assert abs(row["instructions"] - largest) < 0.02 * largest


def test_metadata_of_older_versions_have_the_same_plan(archive: Path) -> None:
    details = mlfc.archive.rebuild(archive)[0].interface()
    older = replace(details, vm=replace(details.vm, input_bytes=None))
    board = find_board(BOARD)
    assert plan_table(older, board).total(IO) == plan_table(details, board).total(IO) == 4 * 8 * 4

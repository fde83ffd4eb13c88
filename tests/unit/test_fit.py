"""The boards that a model fits: the results of single boards, found with few compilations."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive.details import full_module_info
from mlfc.errors import ToolchainError
from mlfc.micro.board.board import Board, boards, find_board, parse_board
from mlfc.micro.board.object_code import core_flags
from mlfc.micro.firmware import planned_memory
from mlfc.micro.firmware.planned_memory import planned_table, tried
from mlfc.micro.fit import boards as fit_boards
from mlfc.micro.fit.boards import Count, Setting, board_budgets, code_kind, counting_board
from mlfc.relay import ir
from mlfc.support.content import to_bytes
from mlfc.target.target import parse_target
from tests.conftest import need
from tests.harness import module_of
from tests.unit.test_cli import mlfc as command
from tests.unit.test_cli import succeeded

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the cache of earlier runs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def small(flash: int, ram: int, stack: int, name: str = "small", psram: int | None = None) -> Board:
    """Return a board with a flash and one or two RAMs."""
    text = boards().get("mps2-an386").text.replace("stack_bytes = 65536", f"stack_bytes = {stack}")
    text = text.replace('name = "mps2-an386"', f'name = "{name}"', 1)
    before, after = text.split('[[memory]]\nname = "psram"')
    text = text.replace("0x01000000", str(psram)) if psram else f"{before}{after[after.index('[uart]') :]}"
    return parse_board(text.replace("0x00400000", hex(flash), 1).replace("0x00400000", hex(ram), 1), name)


def chain() -> tuple[ir.IRModule, dict[str, np.ndarray[Any, Any]]]:
    """Return three convolutions with large tensors and small weights, which can be tiled by rows."""

    def body(v: Any) -> ir.Expr:
        value = v["x"]
        for index in range(3):
            generator = np.random.default_rng(index)
            weight = ir.Constant(generator.standard_normal((3, 3, value.type.shape[3], 8)).astype(np.float32))
            options: dict[str, Any] = {"kernel_size": (3, 3), "channels": 8, "padding": (1, 1, 1, 1)}
            layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO", "strides": (2, 2) if index else (1, 1)}
            value = ir.call("nn.relu", [ir.call("nn.conv2d", [value, weight], **options, **layouts)])
        return value

    return module_of({"x": np.zeros((1, 32, 32, 3), np.float32)}, {"y": body}), {}


def test_code_of_one_kind_is_the_same_for_all_of_its_cores() -> None:
    """Check that equal features imply equal code, because each kind of core is compiled only once."""
    module, params = mlfc.import_model(DIGITS)
    kinds: dict[object, list[str]] = {}
    plain, paired, vectors = ("m0", "m3", "m23"), ("m4", "m7", "m33"), ("m55", "m85")
    for core in (*plain, *paired, *vectors):
        target = parse_target(f"c -mcpu=cortex-{core}")
        files = mlfc.build(module, str(target), params).code.built_files
        text = "".join(f"{name} {to_bytes(data).decode()}" for name, data in files.items())
        kinds.setdefault(code_kind(target), []).append(text.replace(f"/* target: {target} */", ""))
    assert [len(texts) for texts in kinds.values()] == [3, 3, 2]
    assert all(len({*texts}) == 1 for texts in kinds.values())


def test_budgets_are_those_of_single_boards_and_take_few_compilations(monkeypatch: pytest.MonkeyPatch) -> None:
    need("arm-none-eabi-gcc", "gcc-arm-none-eabi")
    calls: Counter[str] = Counter()

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return function(*args, **options)

        return call

    monkeypatch.setattr(fit_boards, "build_module", counted("builds", fit_boards.build_module))
    monkeypatch.setattr(fit_boards, "tried", counted("trials", fit_boards.tried))
    module, params = mlfc.import_model(DIGITS)
    chosen = [board for board in map(boards().get, boards()) if board.arch == "cortex-m"]
    table = board_budgets(module, params, chosen, name="digits")
    flags = {(board.target, core_flags(board, {})) for board in chosen}
    assert calls["builds"] == 3
    assert calls["trials"] <= len(flags) + 1 < len(chosen) / 3
    rows = {row.board.name: row for row in table.rows}
    assert {*rows} == {board.name for board in chosen}
    for name in ("stm32h743", "nucleo_f446re", "microbit"):
        row, board = rows[name], find_board(name)
        factory = mlfc.build(module, board.target, params, module_name="digits")
        alone = planned_table("digits", factory.code.built_files, full_module_info(factory), board)
        assert row.fits
        assert row.setting == Setting()
        assert row.table == alone
    order = [row.fullness for row in table.rows if row.fits]
    assert order == sorted(order)


def test_boards_that_are_too_small_get_what_helps() -> None:
    need("arm-none-eabi-gcc", "gcc-arm-none-eabi")
    module, params = chain()
    chosen = [
        small(1 << 20, 1 << 20, 1024, "enough"),
        small(1 << 20, 40_000, 1024, "placed"),
        small(1 << 20, 22_000, 1024, "tiled"),
        small(1 << 20, 2048, 1024, "tiny"),
        small(4096, 1 << 20, 1024, "flash"),
        small(1 << 20, 8192, 1024, "spread", psram=40_000),
    ]
    table = board_budgets(module, params, chosen, name="chain")
    rows = {row.board.name: row for row in table.rows}
    assert {name: row.fits for name, row in rows.items()} == {
        "enough": True, "placed": True, "tiled": True, "tiny": False, "flash": False, "spread": True,
    }  # fmt: skip
    assert rows["enough"].setting == Setting()
    assert rows["placed"].setting == Setting(workspace_io=True)
    assert rows["tiled"].setting == Setting(workspace_io=True, ram=22_000 - 1024)
    assert rows["tiled"].setting.options == "--workspace-io --ram 20976"
    assert rows["spread"].setting.options == "--workspace-io --board-pools"
    assert [row.fits for row in table.rows] == [True, True, True, True, False, False]
    assert "exceeded by" in rows["tiny"].problem
    # the advice states the bytes that a build saves
    plain = full_module_info(mlfc.build(module, "c -mcpu=cortex-m4", params)).memory
    least = full_module_info(mlfc.build(module, "c -mcpu=cortex-m4", params, **vars(rows["tiny"].setting))).memory
    advice = {item.ram_bytes: item.text for item in table.advice}
    assert "tiled by rows" in advice[plain.workspace_bytes + plain.io_bytes - least.workspace_bytes]
    quantized = next(item for item in table.advice if "mlfc quantize" in item.text)
    floats = 4 * (3 * 3 * 3 * 8 + 2 * 3 * 3 * 8 * 8)
    assert quantized.flash_bytes == floats * 3 // 4


def test_another_stack_is_named_where_only_that_fits() -> None:
    need("arm-none-eabi-gcc", "gcc-arm-none-eabi")
    module, params = mlfc.import_model(DIGITS)
    (row,) = board_budgets(module, params, [small(1 << 20, 4096, 4000)], name="digits").rows
    assert row.fits
    assert row.stack_bytes is not None
    stated = int(row.problem.rpartition("=")[2])
    assert row.stack_bytes <= stated <= 4096 - ((row.used("ram") or 0) - row.stack_bytes)


def test_what_no_compiler_knows_is_left_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    module, params = mlfc.import_model(DIGITS)
    monkeypatch.setenv("PATH", "/nowhere")
    (row,) = board_budgets(module, params, [find_board("stm32h743")], emulate=True).rows
    assert (row.fits, row.stack_bytes, row.milliseconds) == (None, None, None)
    assert "arm-none-eabi-gcc is not on the PATH" in row.problem


def test_a_trial_is_kept_until_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    need("arm-none-eabi-gcc", "gcc-arm-none-eabi")
    module, params = mlfc.import_model(DIGITS)
    board = find_board("mps2-an386")
    factory = mlfc.build(module, board.target, params, module_name="digits")
    code, details = factory.code.built_files, full_module_info(factory)
    first = tried("digits", code, details, board)

    def refuse(*_args: object) -> None:
        raise ToolchainError("compiled again")

    monkeypatch.setattr(planned_memory, "trial_build", refuse)
    assert first.stack.nbytes
    assert tried("digits", code, details, board) == first
    changed = {**code, "src/more.c": b"int more;"}
    for again in (
        tried("digits", changed, details, board),
        tried("digits", code, details, board, ["-O1"]),
        tried("digits", code, details, find_board("mps2-an500")),
    ):
        assert again.stack.untold == ("compiled again",)
    monkeypatch.setattr(planned_memory, "_stamp", lambda _path: "another compiler")
    planned_memory._identity.cache_clear()
    assert tried("digits", code, details, board).stack.untold == ("compiled again",)
    planned_memory._identity.cache_clear()


def test_instructions_are_counted_on_a_board_whose_core_runs_the_code() -> None:
    found = {name: counting_board(find_board(name)) for name in ("nucleo_f446re", "rp2040", "ek_ra8m1", "esp32c6")}
    machines = {name: board and board.emulator and board.emulator.machine for name, board in found.items()}
    assert machines == {
        "nucleo_f446re": "mps2-an386", "rp2040": "mps2-an385", "ek_ra8m1": "mps3-an547", "esp32c6": "virt",
    }  # fmt: skip
    assert counting_board(find_board("esp32s3")) is None
    assert Count(instructions=180_000).milliseconds(180_000_000) == 1
    assert Count(instructions=5, cycles=16_000).milliseconds(16_000_000) == 1
    assert Count(unknown="no emulator").milliseconds(1000) is None
    assert Count(instructions=1).milliseconds(None) is None


def test_the_command_and_its_refusals(tmp_path: Path) -> None:
    shutil.copy(DIGITS, tmp_path)
    text = succeeded("fit", "digits.onnx", "--board", "STM32H743", "--board", "microbit", cwd=tmp_path)
    assert "digits.onnx fits 2 of 2 boards" in text
    document = json.loads(succeeded("fit", "digits.onnx", "--board", "stm32h743", "--json", cwd=tmp_path))
    (board,) = document["boards"]
    assert board["flash_percent"] == round(100 * board["flash_bytes"] / (2 << 20), 2)
    succeeded("compile", "digits.onnx", cwd=tmp_path)
    (tmp_path / "own.toml").write_text(boards().get("microbit").text.replace("stack_bytes = ", "stack_bytes = 1"))
    for words, message in (
        (("digits.tar",), "expected a model file"),
        (("digits.onnx", "--board", "host"), "lists no memories"),
        (("digits.onnx", "--board", "stm32f407"), "stm32f4_disco (STM32F407VG)"),
        (("digits.onnx", "--trust-board"), "requires --board"),
        (("digits.onnx", "--board", "own.toml", "--board", "microbit"), "two boards have the name 'microbit'"),
    ):
        result = command("fit", *words, cwd=tmp_path)
        assert result.returncode == 2
        assert message in result.stderr

"""Pools and constants on a board are at addresses in their memories, without other effects."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive.details import module_info
from mlfc.factory import Factory
from mlfc.memory import ConstantPool, Pool
from mlfc.micro.board.board import Board, board_pools
from mlfc.micro.firmware.bare_metal import ELF, project_files, write_files
from mlfc.micro.run.emulator import BuiltFirmware, build, emulated_archive, emulated_factory
from mlfc.verify.litert import LiteRtReference
from tests.conftest import need
from tests.emulator.conftest import need_board
from tests.harness import seeded_inputs

MODEL = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.tflite"
# board, its fast RAM, its other RAM, its fast flash, its other flash
BOARDS = [("mps3-an547", "dtcm", "ram", "itcm", "code"), ("mps2-an386", "ram", "psram", "flash", None)]


class Firmware(BuiltFirmware):
    """Firmware in a given folder, so that other tools can read it."""

    def __init__(self, factory: Factory, board: Board, folder: Path) -> None:
        details = module_info(factory)
        write_files(folder, project_files(factory.module_name, factory.code.files, details, board))
        build(folder, board, trace=False, cflags="-O1")
        super().__init__(folder, details, board)
        self.elf = folder / ELF


def symbols(made: Firmware, board: Board) -> Iterator[tuple[str, int]]:
    """Yield names and addresses of a program's symbols, from binutils."""
    nm = need(f"{board.toolchain.prefix}nm", " ".join(board.toolchain.packages))
    text = subprocess.run([nm, made.elf], check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        address, _, name = line.split()
        yield name, int(address, 16)


def places(made: Firmware, board: Board, start: str) -> set[str]:
    """Return the names of the memories that contain the symbols whose names begin with `start`."""
    found = [address for name, address in symbols(made, board) if name.startswith(start)]
    return {next(item.name for item in board.memories if item.origin <= at < item.end) for at in found}


def firmware(board: Board, folder: Path, **choice: Any) -> Firmware:
    module, params = mlfc.import_model(MODEL)
    return Firmware(mlfc.build(module, board.target, params, module_name="model", **choice), board, folder)


def check(made: BuiltFirmware) -> None:
    inputs = seeded_inputs(made.inputs, 3)
    expected = LiteRtReference(MODEL).run(inputs)
    for name, output in made.run(inputs).items():
        np.testing.assert_array_equal(output, expected[name])


@pytest.mark.parametrize(("name", "fast", "slow", "flash", "_other"), BOARDS)
@pytest.mark.parametrize("given", [False, True])
def test_pools_lie_in_memories_of_their_names(
    name: str, fast: str, slow: str, flash: str, _other: str | None, given: bool, tmp_path: Path
) -> None:
    board = need_board(name)
    pools = [Pool(fast, 400), Pool(slow)]
    made = firmware(board, tmp_path, pools=pools, workspace_io=True, external_workspace=given)
    for memory in (fast, slow):
        symbol = f"workspace_{memory}" if given else f"{memory}_workspace_pool"
        assert places(made, board, symbol) == {memory}
    check(made)


@pytest.mark.parametrize(("name", "fast", "slow", "flash", "other"), BOARDS)
def test_constants_lie_in_memories_of_their_names(
    name: str, fast: str, slow: str, flash: str, other: str | None, tmp_path: Path
) -> None:
    board = need_board(name)
    made = firmware(board, tmp_path, constants=[ConstantPool(slow, 1500), ConstantPool(flash)])
    # the start-up code copies the content of RAM from flash
    assert places(made, board, "constant_conv2d") == {slow, flash}
    check(made)
    if other is not None:
        choice = [ConstantPool(flash, 1500), ConstantPool(other, external=True)]
        made = firmware(board, tmp_path / "loaded", constants=choice)
        assert places(made, board, "constant_conv2d") == {flash}
        assert places(made, board, "constants_code") == {other}
        check(made)


def test_a_boards_memories_are_pools_by_speed(tmp_path: Path) -> None:
    board = need_board("mps3-an547")
    pools = board_pools(board)
    assert [pool.name for pool in pools] == ["dtcm", "ram", "ddr"]
    assert pools[1].nbytes == board.ram.nbytes - board.stack_bytes
    module, params = mlfc.import_model(MODEL)
    factory = mlfc.build(module, board.target, params, module_name="model", pools=pools, workspace_io=True)
    assert [span.name for span in factory.plan.spans] == ["dtcm"]
    made = emulated_archive(mlfc.export_model_library_format(factory, tmp_path / "model.tar"), board, cflags="-O1")
    planned, linked = made.memory()
    for table in (planned, linked):
        assert table.total("workspace", "dtcm") == factory.plan.workspace_bytes
        assert table.total("inputs and outputs") == table.total("workspace", "ram") == 0
    check(made)


def test_ram_falls_by_what_inputs_and_intermediates_share(models: Path) -> None:
    board = need_board("mps2-an386")
    module, params = mlfc.import_model(models / "ad01_int8.tflite")
    ram = {}
    for io in (False, True):
        factory = mlfc.build(module, board.target, params, workspace_io=io)
        made = emulated_factory(factory, board, cflags="-O1")
        run = made.measure(seeded_inputs(made.inputs, 0))
        ram[io] = run.ram_bytes - run.stack_bytes - factory.code.sizes.workspace
    assert 0 <= ram[True] < 200
    assert ram[False] >= 2 * 640

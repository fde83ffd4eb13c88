"""The memory table of a board, from a plan and from a linker map, and the messages if memory is exceeded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mlfc
from mlfc.archive.details import full_module_info
from mlfc.errors import BudgetError, ToolchainError
from mlfc.micro.board.board import Board, find_board, parse_board
from mlfc.micro.firmware.planned_memory import check_fit, overflow_error, plan_table
from mlfc.micro.memory.memory_table import (
    CONSTANTS,
    FIRMWARE,
    IO,
    LIBRARIES,
    MODEL,
    WORKSPACE,
    LinkedPart,
    MemoryRow,
    MemoryTable,
    differences,
    read_map,
)
from mlfc.micro.memory.stack_bound import StackBound
from mlfc.micro.project.generate import generate_project
from mlfc.support.module_info import ConstantPoolInfo, ModuleInfo, PoolInfo

BOARDS = Path(mlfc.__file__).parent / "micro" / "boards"
DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"

# output of GNU ld 2.40 for arm-none-eabi
MAP = """\
Discarded input sections

 .text          0x00000000      0x100 build/main.c.o

Memory Configuration

Name             Origin             Length             Attributes
flash            0x00000000         0x00400000         xr

Linker script and memory map

LOAD build/main.c.o
                0x00010000                        STACK_BYTES = 0x10000

.vectors        0x00000000       0x40
 *(.vectors)
 .vectors       0x00000000       0x40 build/board/startup.c.o
                0x00000000                vector_table

.text           0x00000040      0x1f4
 *(.text .text.*)
 .text.main     0x00000040       0xa8 build/main.c.o
                0x00000040                main
 .text.tvmgen_model_fused_qnn_dense
                0x000000e8       0x48 build/model/src/model_lib1.c.o
                0x000000e8                tvmgen_model_fused_qnn_dense
 .text          0x00000130       0x10 /usr/lib/libc_nano.a(lib_a-memset.o)
                0x00000130                memset
 *fill*         0x00000140        0x4
 .rodata.str1.4
                0x00000144       0x10 build/main.c.o
                                 0x12 (size before relaxing)
 .rodata.constant_dense_0_weights
                0x00000180       0x80 build/model/src/model_lib1.c.o
                0x00000200        0x4 LONG 0x234 LOADADDR (.data)

.data           0x20000000        0x8 load address 0x00000234
 .data.counter  0x20000000        0x8 build/board/counter.c.o

.noinit         0x20000040      0x100 load address 0x0000023c
 .bss.noinit.tvm
                0x20000040      0x100 build/model/src/model_lib0.c.o

.bss            0x20000140       0x10 load address 0x0000023c
 COMMON         0x20000140        0x8 build/main.c.o
                0x20000150                        . = ALIGN (0x8)

.comment        0x00000000       0x26
 .comment       0x00000000       0x26 build/main.c.o
OUTPUT(firmware.elf elf32-littlearm)
"""


def test_a_map_is_read_piece_by_piece(tmp_path: Path) -> None:
    path = tmp_path / "firmware.map"
    path.write_text(MAP)
    pieces = read_map(path)
    sources = {"model_lib0.c", "model_lib1.c", "tvmgen_model.h"}
    found = [(piece.section, piece.address, piece.nbytes, piece.file and piece.owner(sources)) for piece in pieces]
    assert found == [
        (".vectors", 0, 0x40, FIRMWARE),
        (".text.main", 0x40, 0xA8, FIRMWARE),
        (".text.tvmgen_model_fused_qnn_dense", 0xE8, 0x48, MODEL),
        (".text", 0x130, 0x10, LIBRARIES),
        (".rodata.str1.4", 0x144, 0x10, FIRMWARE),
        (".rodata.constant_dense_0_weights", 0x180, 0x80, MODEL),
        # data from the linker script itself, and padding
        (".rodata.constant_dense_0_weights", 0x40, 0x64, None),
        (".data.counter", 0x20000000, 8, FIRMWARE),
        (".bss.noinit.tvm", 0x20000040, 0x100, MODEL),
        ("COMMON", 0x20000140, 8, FIRMWARE),
        ("COMMON", 0x20000140, 8, None),
    ]
    data = pieces[7]
    assert (data.load, data.is_zeroed, pieces[8].is_zeroed) == (0x234, False, True)


def test_objects_of_the_model_are_known_by_their_sources() -> None:
    def owner(file: str) -> str:
        return LinkedPart(".text", ".text", 0, 4, file).owner({"model_lib1.c"})

    assert owner("build/model/src/model_lib1.c.o") == MODEL
    assert owner("CMakeFiles/x.dir/model/codegen/host/src/model_lib1.c.obj") == MODEL
    assert owner("libmodel.a(model_lib1.c.o)") == MODEL
    assert owner("/lib/libc.a(model_lib1.o)") == LIBRARIES
    assert owner("build/other_model_lib1.c.o") == FIRMWARE


def test_what_is_no_map_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "firmware.map"
    path.write_bytes(b"\xff\xfe nothing")
    with pytest.raises(ToolchainError, match="expected a map file of GNU ld"):
        read_map(path)


def small_board(flash: int, ram: int) -> Board:
    text = (BOARDS / "mps2-an386.toml").read_text().replace("stack_bytes = 65536", "stack_bytes = 256")
    sized = text.replace("0x00400000", hex(flash), 1).replace("0x00400000", hex(ram), 1)
    return parse_board(sized, "small.toml")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("ld: region `flash' overflowed by 9576 bytes", "by 9,576 bytes; the largest: main.c.o"),
        ("ld: region `ram' overflowed by 1 byte", "exceeds the 512 bytes of 'ram' by 1 bytes; the largest: model_lib0"),
        ("data and stack do not fit into ram", "with what the project reserves for its stack"),
    ],
)
def test_what_a_linker_says_becomes_one_message(said: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "firmware.map"
    path.write_text(MAP)
    error = overflow_error(said, path, small_board(512, 512))
    assert isinstance(error, BudgetError)
    assert message in str(error)


def test_other_faults_of_a_linker_are_left_to_others(tmp_path: Path) -> None:
    assert overflow_error("undefined reference to `x'", tmp_path / "none.map", small_board(512, 512)) is None
    assert overflow_error("region `other' overflowed by 1 bytes", tmp_path / "none.map", small_board(512, 512)) is None
    # without a map the message is shorter
    assert overflow_error("region `ram' overflowed by 1 bytes", tmp_path / "none.map", small_board(512, 512))


@pytest.fixture(scope="module")
def details() -> ModuleInfo:
    module, params = mlfc.import_model(DIGITS)
    factory = mlfc.build(module, "c -mcpu=cortex-m4", params, module_name="digits")
    return full_module_info(factory)


def test_the_plan_says_workspace_tensors_and_constants(details: ModuleInfo) -> None:
    table = plan_table(details, find_board("mps3-an547"))
    memory = details.memory
    assert table.total(WORKSPACE, "ram") == memory.workspace_bytes
    assert table.total(IO, "ram") == memory.io_bytes
    assert table.total(CONSTANTS, "code") == memory.constants_bytes
    use = {region.name: region.used for region in table.regions}
    assert use["ram"] == memory.workspace_bytes + memory.io_bytes
    assert use["code"] == memory.constants_bytes
    assert all(region.free == region.nbytes - region.used for region in table.regions)


def test_pools_count_in_the_regions_of_their_names(details: ModuleInfo) -> None:
    pools = (PoolInfo("dtcm", 300, 0, 0), PoolInfo("elsewhere", 20, 300, 0))
    constants = (ConstantPoolInfo("dtcm", 100, None),)
    placed = replace(details, pools=pools, constant_pools=constants, workspace_io=True)
    table = plan_table(placed, find_board("mps3-an547"))
    assert (table.total(WORKSPACE, "dtcm"), table.total(WORKSPACE, "ram"), table.total(IO)) == (300, 20, 0)
    rest = details.memory.constants_bytes - 100
    assert (table.total(CONSTANTS, "dtcm"), table.total(CONSTANTS, "code")) == (100, rest)
    # constants in RAM are copied from flash
    assert {region.name: region.used for region in table.regions}["code"] == rest + 100


def test_the_graph_executor_reads_its_constants_in_flash(details: ModuleInfo) -> None:
    board = find_board("mps2-an386")
    assert plan_table(replace(details, executor="graph"), board).rows == plan_table(details, board).rows


def table_of(*rows: MemoryRow, stack: int | None = None, **options: Any) -> MemoryTable:
    board = find_board("mps2-an386")
    return MemoryTable(board.name, True, rows, board.memories, StackBound(stack), **options)


def test_a_difference_names_its_row() -> None:
    before = table_of(MemoryRow(WORKSPACE, "ram", 100), MemoryRow(IO, "ram", 8), MemoryRow(CONSTANTS, "flash", 64))
    assert not differences(before, before)
    after = table_of(MemoryRow(WORKSPACE, "ram", 100), MemoryRow(IO, "ram", 12), MemoryRow(CONSTANTS, "flash", 60))
    texts = [str(item) for item in differences(before, after)]
    assert texts == [
        "inputs and outputs in ram: 8 bytes were promised, 12 are linked",
        "constants: 64 bytes were promised, 60 are linked",
    ]
    moved = table_of(MemoryRow(WORKSPACE, "external", 100), MemoryRow(IO, "ram", 8), MemoryRow(CONSTANTS, "flash", 64))
    assert len(differences(before, moved)) == 2
    # constants that the compiler folded into code still count
    folded = table_of(
        MemoryRow(WORKSPACE, "ram", 100),
        MemoryRow(IO, "ram", 8),
        MemoryRow(CONSTANTS, "flash", 60),
        folded=(("dense_0_bias", 4),),
    )
    assert not differences(before, folded)


def test_a_reserve_that_is_smaller_than_the_bound_is_refused() -> None:
    check_fit(table_of(stack=512, reserve=512), None)
    check_fit(table_of(stack=513), None)
    with pytest.raises(BudgetError, match="513 bytes, exceeds the reserve by 1 bytes"):
        check_fit(table_of(stack=513, reserve=512), None)


def test_projects_that_do_not_fit_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    text = (BOARDS / "mps2-an386.toml").read_text().replace("stack_bytes = 65536", "stack_bytes = 256")
    path.write_text(text.replace("0x00400000", "0x00001000", 1))
    with pytest.raises(
        BudgetError, match=r"bytes exceed the 4,096 of 'flash' by .* bytes: constants .*; the largest: "
    ):
        generate_project("makefile", DIGITS, tmp_path / "project", {"board": str(path), "project_type": "standalone"})
    assert list(tmp_path.iterdir()) == [path]


def test_a_limit_stands_for_the_region(details: ModuleInfo) -> None:
    table = plan_table(details, find_board("mps2-an386"))
    used = table.regions[1].used
    check_fit(table, details, {"ram": used})
    with pytest.raises(
        BudgetError, match=r"exceed the .* of 'ram' by 1 bytes: .*the peak is in .*the largest tensors there: "
    ):
        check_fit(table, details, {"ram": used - 1})


def test_pools_that_no_memory_is_named_after_are_told(details: ModuleInfo) -> None:
    pools = (PoolInfo("dtcm", 8, 0, 0), PoolInfo("dctm", 16, 8, 0))
    rows = plan_table(replace(details, pools=pools), find_board("stm32h743")).rows
    found = {row.region: row.note for row in rows if row.what == WORKSPACE}
    assert found == {"dtcm": "", "axi_sram": "the pool dctm, which is not a memory of the board"}


def test_smaller_code_is_offered_where_it_may_help(details: ModuleInfo) -> None:
    table = table_of(
        MemoryRow(WORKSPACE, "ram", 100), MemoryRow(CONSTANTS, "flash", 64), MemoryRow("code of the model", "flash", 50)
    )
    hints = []
    for region, limit, goal in (
        ("flash", 64, "speed"), ("flash", 63, "speed"), ("flash", 64, "size"), ("ram", 99, "speed"),
    ):  # fmt: skip
        with pytest.raises(BudgetError) as caught:
            check_fit(table, replace(details, optimize=goal), {region: limit})
        hints.append("--optimize size" in str(caught.value))
    assert hints == [True, False, False, False]

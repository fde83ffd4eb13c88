"""Damaged and malicious bytecode: one error with its place, in Python and in C alike, at little cost."""

from __future__ import annotations

import ctypes
import dataclasses
import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from fuzz.bytecode import MUTATORS, seeds
from mlfc.errors import ArchiveError, InternalError, OptionError
from mlfc.runtime import LibraryModule, VmModule
from mlfc.support.bytecode import (
    INSTRUCTIONS,
    Executable,
    Function,
    OpenExtent,
    StorageRegister,
    Symbol,
    TensorRegister,
    Value,
    decode,
    disassemble,
    encode,
    verify,
)
from mlfc.support.bytecode.file import HEADER, SECTIONS
from tests.counting import counted_calls
from tests.vm_programs import Program, RandomProgram, built_library

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "vm.md"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> LibraryModule:
    return LibraryModule(built_library(tmp_path_factory.mktemp("vm")))


def loads_in_c(library: LibraryModule, data: bytes) -> bool:
    """Tell whether the C interpreter takes a file, which ends where its memory ends for sanitizers alone."""
    opened, error = ctypes.c_void_p(), ctypes.create_string_buffer(64)
    native = library.library
    native.mlfc_vm_host_open.argtypes = (
        ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p,
    )  # fmt: skip
    table = library.address("tvmgen_vmtest_vm_code")
    status = native.mlfc_vm_host_open(data, len(data), table, 4, ctypes.byref(opened), error)
    if status == 0:
        native.mlfc_vm_host_close(opened)
    return bool(status == 0)


def test_files_are_read_as_written() -> None:
    for seed in range(20):
        executable = RandomProgram(random.Random(seed)).executable
        data = encode(executable)
        found = decode(data)
        # names are among the strings of a file
        assert dataclasses.replace(found, strings=()) == dataclasses.replace(executable, strings=())
        assert found.strings[: len(executable.strings)] == executable.strings
        assert encode(found) == data


def test_every_truncation_is_refused(library: LibraryModule) -> None:
    data = seeds()[1]
    for length in range(len(data)):
        with pytest.raises(ArchiveError, match=r"fuzz, (byte \d+|function)|fuzz"):
            decode(data[:length], place="fuzz")
        assert not loads_in_c(library, data[:length])


def test_c_takes_what_python_takes_and_refuses_the_rest(library: LibraryModule) -> None:
    chance = random.Random(11)
    taken, refused = 0, []
    for _ in range(1500):
        data = chance.choice(MUTATORS)(chance.choice(seeds()), chance)
        try:
            executable = decode(data)
        except ArchiveError as error:
            # what the file does not say is where registers are written
            if "may be read before" not in error.cause and "nested too deeply" not in error.cause:
                refused.append(data)
            continue
        try:
            VmModule(executable).model_with(library, interpreter="python")
        except OptionError:
            continue  # the name is damaged: no library has code of it
        except ArchiveError:
            assert not loads_in_c(library, data)
            continue
        assert loads_in_c(library, data)
        taken += 1
    assert taken > 100
    assert len(refused) > 500
    assert not any(loads_in_c(library, data) for data in refused)


def test_forged_counts_cost_nothing(library: LibraryModule) -> None:
    for number, section in enumerate(SECTIONS):
        for count in (2**31, 2**32 - 1, 1 << 20):
            for offset in (0, 4):
                forged = bytearray(seeds()[2])
                struct.pack_into("<I", forged, HEADER.size - 8 * len(SECTIONS) + 8 * number + offset, count)
                with counted_calls() as calls, pytest.raises(ArchiveError, match="byte"):
                    decode(bytes(forged))
                assert calls.number < 2000, section
                assert not loads_in_c(library, bytes(forged))


def broken(**changes: Any) -> Executable:
    """Return a small executable with some fields changed."""
    program = Program(1, 1)
    program.input("x", "int32", (4,))
    program.output("y", "int32", (4,))
    program.main.return_([program.main.parameters[0]])
    return dataclasses.replace(program.build(), **changes)


MAIN = broken().functions[0]


@pytest.mark.parametrize(
    ("executable", "message"),
    [
        (broken(name=""), "header: the module has no name"),
        (broken(functions=()), "there is no function"),
        (broken(arena_bytes=-2), "the size of the arena"),
        (broken(states=(None, None)), "2 states exceed the inputs"),
        (broken(states=(9,)), "state 'x': constant 9 is not known"),
        (broken(states=(None,), outputs=(Value("y", "int32", (5,)),)), "its next value has another type"),
        (broken(states=(None,), inputs=(Value("x", "int32", (None,)),)), "its shape is not fixed"),
        (broken(states=(None,), inputs=(Value("x", "int32", (2**30,)),)), "its size is not possible"),
        (broken(inputs=()), "1 parameters and 1 results, but the model has 0 inputs"),
        (broken(inputs=(Value("x", "int3", (4,)),)), "input 'x': unknown dtype 'int3'"),
        (broken(inputs=(Value("x", "int32", (OpenExtent(0),)),)), "symbol 0 is not known"),
        (broken(inputs=(Value("x", "int32", (1,) * 9),)), "9 dimensions exceed 8"),
        (broken(symbols=(Symbol("n", 5, 4),)), "symbol 'n': bounds 5 to 4"),
        (broken(integers=(2**63,)), "does not fit in 64 bits"),
        (broken(functions=(dataclasses.replace(MAIN, tensors=9),)), "9 tensor registers exceed"),
        (broken(functions=(dataclasses.replace(MAIN, integers=2**31),)), "integer registers exceed"),
        (broken(functions=(dataclasses.replace(MAIN, labels=(1,)),)), "label 0 is not at an instruction"),
        (broken(functions=(dataclasses.replace(MAIN, code=()),)), "control passes the end"),
        (broken(functions=(dataclasses.replace(MAIN, code=(0x115, 0)),)), "takes 1 operands, got 0"),
        (broken(functions=(dataclasses.replace(MAIN, code=(0x215, 1)),)), "tensor register 1 is out of range"),
        (broken(functions=(dataclasses.replace(MAIN, code=(0x215, 2**31 + 9)),)), "constant 9 is out of range"),
        (broken(functions=(dataclasses.replace(MAIN, code=(0x2FF, 0)),)), "instruction 0: opcode 255 is unknown"),
        (broken(functions=(dataclasses.replace(MAIN, code=(0x15, 0)),)), "'return' cannot have 0 words"),
        (broken(functions=(dataclasses.replace(MAIN, code=(0x915, 0)),)), "'return' cannot have 9 words"),
        (broken(functions=(dataclasses.replace(MAIN, code=(0x212, 0)),)), "label 0 is out of range"),
        (broken(functions=(dataclasses.replace(MAIN, code=(0x214, 7)),)), "function 7 is out of range"),
        (broken(functions=(dataclasses.replace(MAIN, code=(0x210, 7)),)), "kernel 7 is out of range"),
        (broken(functions=(dataclasses.replace(MAIN, code=(0x216, 7)),)), "string 7 is out of range"),
    ],
)
def test_broken_tables_are_named(executable: Executable, message: str) -> None:
    with pytest.raises(ArchiveError, match=re.escape(message)):
        verify(executable)


def test_registers_are_written_before_they_are_read() -> None:
    program = Program(0, 0)
    main = program.main
    condition, other = main.integer(0), main.integer_register()
    skip = main.label()
    main.branch(condition, skip)
    main.integer(1, other)
    main.place(skip)
    main.compute("add", other, 1)
    main.return_([])
    with pytest.raises(ArchiveError, match="instruction 3: integer register 1 may be read before it is written"):
        program.build()
    for end in ("drop", "release"):
        program = Program(0, 0)
        main = program.main
        storage = main.storage(64)
        tensor = main.tensor(storage, 0, "int8", [1])
        loop = main.label()
        main.place(loop)
        main.tensor(storage, 0, "int8", [1])
        main.move(tensor)
        main.drop(tensor) if end == "drop" else main.release(storage)
        main.jump(loop)
        kind = "tensor" if end == "drop" else "storage"
        with pytest.raises(ArchiveError, match=f"{kind} register 0 may be read before"):
            program.build()


def test_loops_entered_anywhere_end_the_analysis() -> None:
    # each pass over the blocks finds one more register unset: as many as there are blocks in reverse
    program = Program(0, 0)
    main = program.main
    labels = [main.label() for _ in range(120)]
    registers = [main.integer(0) for _ in labels]
    tensors = [main.move(program.flags) for _ in labels]
    main.jump(labels[-1])
    for number, label in enumerate(labels):
        main.place(label)
        if number:
            main.drop(tensors[number])
            main.branch(registers[number], labels[number - 1])
        main.branch(registers[number], labels[0])
        main.fail("end")
    with counted_calls() as calls, pytest.raises(ArchiveError, match="nested too deeply"):
        program.build()
    assert calls.number < 100_000


def test_builders_refuse_what_compilers_get_wrong() -> None:
    program = Program(0, 0)
    label = program.main.label()
    program.main.jump(label)
    with pytest.raises(InternalError, match="never placed"):
        program.build()
    program.main.place(label)
    with pytest.raises(InternalError, match="placed twice"):
        program.main.place(label)
    with pytest.raises(InternalError, match="expected 3 buffers and 1 numbers, got 1 buffers and 0 numbers"):
        program.main.invoke(program.add, [TensorRegister(0)])
    program = Program(0, 0)
    program.main.release(StorageRegister(3))
    program.main.return_([])
    with pytest.raises(ArchiveError, match="storage register 3 is out of range: there are 0"):
        program.build()


def test_an_arena_has_all_places() -> None:
    for size, offset, message in ((64, 64, "64 bytes at 64"), (1, 8, "1 bytes at 8"), (0, -64, "0 bytes at -64")):
        program = Program(0, 0)
        program.main.storage(size, offset)
        program.main.return_([])
        with pytest.raises(ArchiveError, match=re.escape(f"{message} are not within the 64 bytes of the arena")):
            program.build(64)


def test_the_page_has_every_instruction_with_its_operands() -> None:
    rows = dict(re.findall(r"^\| \d+ \| `(\w+)` \| ([^|]*) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert list(rows) == [instruction.name for instruction in INSTRUCTIONS]
    for instruction in INSTRUCTIONS:
        named = [name for name in rows[instruction.name].split(", ") if "..." not in name and name]
        assert named == list(instruction.fields), instruction.name


def test_text_shows_the_whole_program() -> None:
    text = disassemble(decode(seeds()[1]))
    assert "module vmtest" in text
    assert "symbol rows: 1 to 8" in text
    assert "input x: int32[rows, 16]" in text
    assert "kernel add: reads 2, writes 1, numbers 1" in text
    assert isinstance(decode(seeds()[1]).functions[0], Function)

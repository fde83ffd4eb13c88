"""Bytecode of the virtual machine under damage: decoded, and what verifies is run in Python on stand-ins of kernels."""

from __future__ import annotations

import ctypes
import random
import struct
from functools import cache
from typing import Any

import numpy as np

from fuzz.mutation import BLIND, Mutator
from mlfc.errors import MlfcError
from mlfc.runtime.executors.vm.interpreter import Interpreter, Limits
from mlfc.runtime.executors.vm.memory import NUMPY_DTYPES
from mlfc.support.bytecode import Executable, decode, encode
from mlfc.support.bytecode.file import HEADER, SECTIONS
from mlfc.support.bytecode.instructions import CPU, NUMBERED_DTYPES
from tests.vm_programs import Program, RandomProgram

_LIMITS = Limits(memory=1 << 20, turns=300, depth=8)
_MOST_ELEMENTS = 1 << 10
_WORDS = (0, 1, 2, 3, 7, 8, 64, 0xFFFF, 0x3FFFFFFF, 0x40000000, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF)


@cache
def seeds() -> tuple[bytes, ...]:
    """Return files of valid programs of all kinds that end in results."""
    chance = random.Random(5)
    empty = Program(0, 0)
    empty.main.return_([])
    found = [encode(empty.build())]
    while len(found) < 13:
        program = encode(RandomProgram(chance, is_bounded=len(found) % 3 == 0).executable)
        try:
            read(program)
        except MlfcError:
            continue
        found.append(program)
    return (*found, encode(_keeping()))


def _keeping() -> Executable:
    """Return a program that returns its state and keeps its input, of which it begins with a constant; and zeros."""
    program = Program(3, 3)
    for name in ("x", "kept", "zeros"):
        program.input(name, "int64", (3,))
        program.output(f"{name}_next", "int64", (3,))
    program.state(program.integers)
    program.state()
    x, kept, zeros = program.main.parameters
    program.main.return_([kept, x, zeros])
    return program.build()


def word_replaced(seed: bytes, chance: random.Random) -> bytes:
    """Return a file with a few words of its last section, the code, replaced: by a limit, or by another word."""
    data = bytearray(seed)
    words = HEADER.unpack_from(data)[4 + 2 * SECTIONS.index("code")]
    states = HEADER.unpack_from(data)[4 + 2 * SECTIONS.index("states") + 1]
    start = len(data) - states - (words + words % 2) * 4
    for _ in range(chance.randint(1, 3) if words else 0):
        at = start + 4 * chance.randrange(words)
        other = start + 4 * chance.randrange(words)
        (value,) = struct.unpack_from("<I", data, other)
        small = struct.unpack_from("<I", data, at)[0] ^ chance.randrange(4)
        struct.pack_into("<I", data, at, chance.choice((value, small, small, chance.choice(_WORDS))))
    return bytes(data)


MUTATORS: tuple[Mutator, ...] = (*BLIND, word_replaced, word_replaced, word_replaced)


class _Tables:
    """Stands in for native code: kernels look at their arguments and change nothing, constants are zeros."""

    address = 0

    def __init__(self, executable: Executable) -> None:
        self._memory = np.zeros(8 * _MOST_ELEMENTS + 64, np.uint8)
        start = self._memory.ctypes.data + -self._memory.ctypes.data % 64
        self.kernels = tuple(self._kernel for _ in executable.kernels)
        self.devices = (CPU,) * len(executable.kernels)
        self.constants = tuple((start, _nbytes(each.dtype, each.shape)) for each in executable.constants)

    @staticmethod
    def _kernel(buffers: bytes, numbers: bytes) -> int:
        for address, size in struct.iter_unpack("@Pq", buffers):
            if size:
                ctypes.string_at(address, size)
        return int(sum(numbers) % 5 == 4)


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    size = NUMPY_DTYPES[NUMBERED_DTYPES[dtype]].itemsize
    for extent in shape:
        size *= extent
    return size


def read(data: bytes) -> None:
    """Decode a file and run what it holds, if its tables are small; raise MlfcError if it is refused or fails."""
    executable = decode(data, place="fuzz")
    shapes = [tuple(each if isinstance(each, int) else 2 for each in value.extents) for value in executable.inputs]
    sizes = [_nbytes(value.dtype, shape) for value, shape in zip(executable.inputs, shapes, strict=True)]
    sizes += [_nbytes(each.dtype, each.shape) for each in executable.constants]
    if max(sizes, default=0) > 8 * _MOST_ELEMENTS or executable.arena_bytes > 1 << 20:
        return
    # numpy refuses shapes whose extents are too large, even without elements
    if any(extent > 1 << 30 for shape in shapes for extent in shape):
        return
    inputs = [
        np.zeros(shape, NUMPY_DTYPES[NUMBERED_DTYPES[value.dtype]])
        for value, shape in zip(executable.inputs, shapes, strict=True)
    ]
    tables: Any = _Tables(executable)
    interpreter = Interpreter(executable, tables, _no_packed)
    interpreter.run(0, inputs, _LIMITS)


def _no_packed(name: str) -> Any:
    raise MlfcError("there are no packed functions", place=name)

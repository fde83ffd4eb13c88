"""How much memory the C interpreter takes for an executable."""

from __future__ import annotations

from mlfc.support.bytecode.executable import Executable, Function
from mlfc.support.bytecode.instructions import ALIGNMENT, BY_NAME
from mlfc.support.dtypes import nbytes

# bytes of what is in the work area (``crt/src/runtime/crt/vm/machine.h``) where pointers have 64 bits
_FRAME, _TENSOR, _INTEGER, _STORAGE, _LIST = 96, 96, 8, 32, 16
_BUFFER, _NUMBER, _ARGUMENT = 16, 8, 88
_STEP = 16
"""What every part of the work area is a multiple of."""
_CALL, _LIST_NEW, _PACKED = (BY_NAME[name].opcode for name in ("call", "list", "invoke_packed"))


def work_bytes(executable: Executable) -> int | None:
    """Return the bytes of a work area that is large enough on every machine: the arena, registers and arguments.

    None where no number is: storage is allocated while it runs, or functions call themselves.
    """
    if not executable.is_bounded:
        return None
    packed = 0
    for number, function in enumerate(executable.functions):
        for _, instruction, operands in function.instructions():
            if instruction.opcode == _LIST_NEW or (instruction.opcode == _CALL and operands[0] <= number):
                return None
            if instruction.opcode == _PACKED:
                packed = max(packed, len(operands) - 1)
    parts = (
        _part(executable.arena_bytes, 1),
        _part(max((kernel.buffers for kernel in executable.kernels), default=0), _BUFFER),
        _part(max((kernel.numbers for kernel in executable.kernels), default=0), _NUMBER),
        _part(packed, _ARGUMENT),
        *map(_frame_bytes, executable.functions),
        ALIGNMENT,
    )
    return sum(parts)


def state_offsets(executable: Executable) -> tuple[int, ...]:
    """Return where the states begin in the memory of the C interpreter's caller, and where the last one ends."""
    offsets, end = [], 0
    for value in executable.kept:
        size = nbytes(value.dtype)
        for extent in value.extents:
            size *= extent if isinstance(extent, int) else 0
        offsets.append(-(-end // ALIGNMENT) * ALIGNMENT)
        end = offsets[-1] + size
    return (*offsets, end)


def _frame_bytes(function: Function) -> int:
    parts = (
        _part(1, _FRAME),
        _part(function.tensors, _TENSOR),
        _part(function.integers, _INTEGER),
        _part(function.storages, _STORAGE),
        _part(function.lists, _LIST),
        _part(function.integers, 1),
    )
    return sum(parts)


def _part(count: int, each: int) -> int:
    return -(-count * each // _STEP) * _STEP

"""Instructions as closures: each is decoded once, takes the registers of a frame and returns the next one's number.

The registers of a frame are one list: the run, tensors, integers, storages, lists, then the integer pool and the
constants, so that every operand is an index of it. Code is verified, so indices are in range and what is read is set.
"""

from __future__ import annotations

import ctypes
import operator
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from mlfc.runtime.executors.vm.failures import Code, Fault
from mlfc.runtime.executors.vm.list_steps import LIST_STEPS
from mlfc.runtime.executors.vm.memory import Storage, VmBlock, VmTensor, copy_bytes
from mlfc.runtime.executors.vm.native_tables import NativeTables
from mlfc.support.bytecode.executable import Executable, Function, Kernel
from mlfc.support.bytecode.instructions import (
    ALIGNMENT,
    CONSTANT_BIT,
    CPU,
    DTYPES,
    NO_OFFSET,
    OPERATIONS,
    READABLE,
    STORAGE_BIT,
    Operand,
    Tail,
)
from mlfc.support.dtypes import limits, nbytes

if TYPE_CHECKING:
    from mlfc.runtime.executors.vm.interpreter import Run

Registers: TypeAlias = list[Any]
Step: TypeAlias = Callable[[Registers], int]

RETURNED, CALLED = -1, -2
"""In place of the next instruction's number: the run has results, or the call to begin."""
_MOST, _LEAST = 2**63 - 1, -(2**63)
_ITEM_BYTES = tuple(nbytes(dtype) for dtype in DTYPES)
_ELEMENTS: tuple[Any, ...] = tuple(
    getattr(ctypes, "c_ubyte" if dtype == "bool" else f"c_{dtype}") for dtype in READABLE
)
_BOOL = READABLE.index("bool")
_LIMITS = tuple(limits(dtype) for dtype in READABLE)
_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul,
    "floordiv": operator.floordiv, "floormod": operator.mod,
    "min": min, "max": max,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Where registers of each kind begin in the list, and the constants that it ends with."""

    tensors: int
    integers: int
    storages: int
    lists: int
    pool: int
    constants: int

    @classmethod
    def of(cls, function: Function, pool: int) -> Layout:
        """Return the layout of a function's frames, with `pool` integers."""
        tensors = 1
        integers = tensors + function.tensors
        storages = integers + function.integers
        lists = storages + function.storages
        first = lists + function.lists
        return cls(tensors, integers, storages, lists, first, first + pool)

    def index(self, kind: Operand, word: int) -> int:
        """Return an operand's index if it is of a kind with registers, else the word itself."""
        if kind is Operand.BUFFER and word & STORAGE_BIT and not word & CONSTANT_BIT:
            return self.storages + (word & ~STORAGE_BIT)
        if kind in (Operand.TENSOR, Operand.BUFFER) and word & CONSTANT_BIT:
            return self.constants + (word & ~CONSTANT_BIT)
        if kind is Operand.INTEGER and word & CONSTANT_BIT:
            return self.pool + (word & ~CONSTANT_BIT)
        first = {
            Operand.TENSOR: self.tensors, Operand.BUFFER: self.tensors, Operand.TENSOR_REGISTER: self.tensors,
            Operand.TO_TENSOR: self.tensors, Operand.END_TENSOR: self.tensors,
            Operand.INTEGER: self.integers, Operand.TO_INTEGER: self.integers,
            Operand.STORAGE: self.storages, Operand.TO_STORAGE: self.storages, Operand.END_STORAGE: self.storages,
            Operand.LIST: self.lists, Operand.TO_LIST: self.lists,
        }.get(kind, 0)  # fmt: skip
        return first + word


class Decoder:
    """Makes the steps of one function."""

    def __init__(self, executable: Executable, function: Function, tables: NativeTables, layout: Layout) -> None:
        self._executable = executable
        self._function = function
        self._tables = tables
        self._layout = layout
        starts = [at for at, _, _ in function.instructions()]
        self._number_at = {at: number for number, at in enumerate(starts)}

    def steps(self) -> list[Step]:
        """Return a step for each instruction."""
        found: list[Step] = []
        for number, (_, instruction, words) in enumerate(self._function.instructions()):
            kinds = [*instruction.operands, *self._tail(instruction.tail, words, len(instruction.operands))]
            operands = [self._layout.index(kind, word) for kind, word in zip(kinds, words, strict=True)]
            make = getattr(self, f"_{instruction.name}", None) or LIST_STEPS[instruction.name]
            found.append(make(number + 1, *operands))
        return found

    def _tail(self, tail: Tail, words: Sequence[int], fixed: int) -> list[Operand]:
        count = len(words) - fixed
        if tail is Tail.EXTENTS:
            return [Operand.INTEGER] * count
        if tail is Tail.ARGUMENTS:
            kernel = self._executable.kernels[words[0]]
            return [Operand.BUFFER] * kernel.buffers + [Operand.INTEGER] * kernel.numbers
        if tail is Tail.CALL:
            callee = self._executable.functions[words[0]]
            return [Operand.TENSOR] * callee.parameters + [Operand.TO_TENSOR] * callee.results
        return [Operand.TENSOR] * count

    def _integer(self, following: int, d: int, value: int) -> Step:
        def step(r: Registers) -> int:
            r[d] = r[value]
            return following

        return step

    def _compute(self, following: int, operation: int, d: int, a: int, b: int) -> Step:
        name = OPERATIONS[operation]
        if name in _COMPARISONS:
            compare = _COMPARISONS[name]

            def step(r: Registers) -> int:
                r[d] = int(compare(r[a], r[b]))
                return following

        elif name in ("and", "or"):
            both = name == "and"

            def step(r: Registers) -> int:
                r[d] = int(bool(r[a] and r[b]) if both else bool(r[a] or r[b]))
                return following

        else:
            combine = _OPERATORS[name]

            def step(r: Registers) -> int:
                try:
                    result = combine(r[a], r[b])
                except ZeroDivisionError:
                    raise Fault(Code.DIVISION, r[a], r[b]) from None
                if not _LEAST <= result <= _MOST:
                    raise Fault(Code.OVERFLOW, r[a], r[b])
                r[d] = result
                return following

        return step

    def _extent(self, following: int, d: int, tensor: int, axis: int) -> Step:
        def step(r: Registers) -> int:
            extents = r[tensor].extents
            if axis >= len(extents):
                raise Fault(Code.AXIS, axis, len(extents))
            r[d] = extents[axis]
            return following

        return step

    def _rank(self, following: int, d: int, tensor: int) -> Step:
        def step(r: Registers) -> int:
            r[d] = len(r[tensor].extents)
            return following

        return step

    def _element(self, following: int, d: int, tensor: int, index: int) -> Step:
        def step(r: Registers) -> int:
            r[d] = read_element(r[tensor], r[index])
            return following

        return step

    def _set_element(self, following: int, tensor: int, index: int, value: int) -> Step:
        def step(r: Registers) -> int:
            write_element(r[tensor], r[index], r[value])
            return following

        return step

    def _require_range(self, following: int, value: int, low: int, high: int, string: int) -> Step:
        text = self._executable.strings[string]

        def step(r: Registers) -> int:
            if not r[low] <= r[value] <= r[high]:
                raise Fault(Code.RANGE, r[value], r[low], r[high], text=text)
            return following

        return step

    def _require_equal(self, following: int, a: int, b: int, string: int) -> Step:
        text = self._executable.strings[string]

        def step(r: Registers) -> int:
            if r[a] != r[b]:
                raise Fault(Code.EQUAL, r[a], r[b], text=text)
            return following

        return step

    def _storage(self, following: int, d: int, size: int, offset: int, device: int) -> Step:
        place = None if offset == NO_OFFSET else self._executable.integers[offset & ~CONSTANT_BIT]
        room = self._executable.arena_bytes - (place or 0)

        def step(r: Registers) -> int:
            count, run = r[size], r[0]
            if count < 0:
                raise Fault(Code.NEGATIVE, count)
            if device not in run.devices or (place is not None and device != CPU):
                raise Fault(Code.DEVICE, device)
            if place is None:
                block = VmBlock(run.account, count, None if device == CPU else run.devices[device])
                r[d] = Storage(block.address, count, block, device)
            elif count > room:
                raise Fault(Code.OUTSIDE, count, room)
            else:
                r[d] = Storage(run.arena_address + place, count, run.arena, CPU)
            return following

        return step

    def _release(self, following: int, storage: int) -> Step:
        def step(r: Registers) -> int:
            r[storage] = None
            return following

        return step

    _drop = _release

    def _tensor(self, following: int, d: int, within: int, start: int, dtype: int, *extents: int) -> Step:
        shape_of = self._shape(start, dtype, extents)

        def step(r: Registers) -> int:
            source = r[within]  # a storage or tensor
            at, shape, size = shape_of(r)
            if size > source.nbytes - at:
                raise Fault(Code.OUTSIDE, size, source.nbytes - at)
            if source.device == CPU:
                r[d] = VmTensor(source.address + at, size, dtype, shape, source.owner, source.writable)
            else:
                at += source.start
                r[d] = VmTensor(source.address, size, dtype, shape, source.owner, source.writable, source.device, at)
            return following

        return step

    _view = _tensor

    def _shape(
        self, start: int, dtype: int, extents: Sequence[int]
    ) -> Callable[[Registers], tuple[int, tuple[int, ...], int]]:
        """Return what gives the start of a tensor, its shape and its bytes; at once where they are in the pool."""
        pool = range(self._layout.pool, self._layout.constants)
        if all(index in pool for index in (start, *extents)):
            values = [self._executable.integers[index - self._layout.pool] for index in (start, *extents)]
            try:
                known = _checked_shape(values[0], dtype, values[1:])
            except Fault:
                pass  # it is one only if the instruction is reached
            else:
                return lambda _: known
        return lambda r: _checked_shape(r[start], dtype, [r[extent] for extent in extents])

    _move = _integer

    def _copy(self, following: int, tensor: int, source: int) -> Step:
        def step(r: Registers) -> int:
            into, given = r[tensor], r[source]
            if not into.writable:
                raise Fault(Code.READ_ONLY, -1)
            if into.nbytes != given.nbytes:
                raise Fault(Code.SIZES, into.nbytes, given.nbytes)
            copy_bytes(into, given, r[0].devices)
            return following

        return step

    def _paste(self, following: int, tensor: int, start: int, source: int) -> Step:
        def step(r: Registers) -> int:
            into, at, given = r[tensor], r[start], r[source]
            if not into.writable:
                raise Fault(Code.READ_ONLY, -1)
            if at < 0:
                raise Fault(Code.NEGATIVE, at)
            if given.nbytes > into.nbytes - at:
                raise Fault(Code.OUTSIDE, given.nbytes, into.nbytes - at)
            for device in (into.device, given.device):
                if device != CPU:
                    raise Fault(Code.DEVICE, device)
            ctypes.memmove(into.address + at, given.address, given.nbytes)
            return following

        return step

    def _blocks(
        self, following: int, tensor: int, start: int, step: int, source: int, origin: int, stride: int, size: int,
        count: int,
    ) -> Step:  # fmt: skip
        def copy(r: Registers) -> int:
            into, given, nbytes, times = r[tensor], r[source], r[size], r[count]
            if not into.writable:
                raise Fault(Code.READ_ONLY, -1)
            for number in (r[start], r[step], r[origin], r[stride], nbytes, times):
                if number < 0:
                    raise Fault(Code.NEGATIVE, number)
            for device in (into.device, given.device):
                if device != CPU:
                    raise Fault(Code.DEVICE, device)
            if not nbytes or not times:
                return following
            # blocks of a tensor never overlap, so their number is bounded by its bytes
            if times > into.nbytes // nbytes or not _fits(r[start], r[step], nbytes, times, into.nbytes):
                raise Fault(Code.OUTSIDE, nbytes, into.nbytes)
            if not _fits(r[origin], r[stride], nbytes, times, given.nbytes):
                raise Fault(Code.OUTSIDE, nbytes, given.nbytes)
            to, at = into.address + r[start], given.address + r[origin]
            for _ in range(times):
                ctypes.memmove(to, at, nbytes)
                to += r[step]
                at += r[stride]
            return following

        return copy

    def _to_device(self, following: int, d: int, tensor: int, device: int) -> Step:
        whole = frozenset(self._tables.constants)

        def step(r: Registers) -> int:
            source, run = r[tensor], r[0]
            if device not in run.devices:
                raise Fault(Code.DEVICE, device)
            if source.device == device:
                r[d] = source
                return following
            if (source.address, source.nbytes) in whole:
                r[d] = run.constant_on(source, device)
                return following
            block = VmBlock(run.account, source.nbytes, None if device == CPU else run.devices[device])
            made = VmTensor(block.address, source.nbytes, source.dtype, source.extents, block, True, device)
            copy_bytes(made, source, run.devices)
            r[d] = made
            return following

        return step

    def _invoke(self, following: int, number: int, *operands: int) -> Step:
        kernel: Kernel = self._executable.kernels[number]
        launch, device = self._tables.kernels[number], self._tables.devices[number]
        read = operands[: kernel.reads]
        written = operands[kernel.reads : kernel.buffers]
        numbers = operands[kernel.buffers :]
        # as C lays out the arrays of buffers and numbers
        pack_buffers = struct.Struct("@" + "Pq" * kernel.buffers).pack
        pack_numbers = struct.Struct(f"@{len(numbers)}q").pack
        reads = kernel.reads

        def step(r: Registers) -> int:
            buffers: list[int] = []
            for index in read:
                tensor = r[index]
                if tensor.device != device or tensor.start:
                    raise Fault(Code.DEVICE, tensor.device)
                buffers.append(tensor.address)
                buffers.append(tensor.nbytes)
            for index in written:
                tensor = r[index]
                if tensor.device != device or tensor.start:
                    raise Fault(Code.DEVICE, tensor.device)
                if not tensor.writable:
                    raise Fault(Code.READ_ONLY, reads + written.index(index))
                buffers.append(tensor.address)
                buffers.append(tensor.nbytes)
            status = launch(pack_buffers(*buffers), pack_numbers(*[r[index] for index in numbers]))
            if status:
                raise Fault(Code.KERNEL, status, text=kernel.name)
            return following

        return step

    def _invoke_packed(self, following: int, string: int, *tensors: int) -> Step:
        name = self._executable.strings[string]

        def step(r: Registers) -> int:
            run: Run = r[0]
            run.call_packed(name, [r[tensor] for tensor in tensors])
            return following

        return step

    def _target(self, label: int) -> int:
        return self._number_at[self._function.labels[label]]

    def _jump(self, following: int, label: int) -> Step:
        target = self._target(label)
        is_backward = target < following

        def step(r: Registers) -> int:
            if is_backward:
                r[0].count_turn()
            return target

        return step

    def _branch(self, following: int, value: int, label: int) -> Step:
        target = self._target(label)
        is_backward = target < following

        def step(r: Registers) -> int:
            if r[value]:
                return following
            if is_backward:
                r[0].count_turn()
            return target

        return step

    def _call(self, following: int, number: int, *operands: int) -> Step:
        parameters = self._executable.functions[number].parameters
        given, targets = operands[:parameters], operands[parameters:]

        def step(r: Registers) -> int:
            run: Run = r[0]
            run.count_turn()
            run.pending = (number, [r[index] for index in given], targets, following)
            return CALLED

        return step

    def _return(self, following: int, *results: int) -> Step:
        def step(r: Registers) -> int:
            run: Run = r[0]
            run.results = [r[index] for index in results]
            run.returned_at = following - 1
            return RETURNED

        return step

    def _fail(self, _following: int, string: int) -> Step:
        text = self._executable.strings[string]

        def step(_: Registers) -> int:
            raise Fault(Code.FAILED, text=text)

        return step


def _fits(start: int, step: int, nbytes: int, count: int, room: int) -> bool:
    """Tell whether blocks of bytes are within memory of `room` bytes."""
    return start + (count - 1) * step + nbytes <= room


def _checked_shape(start: int, dtype: int, extents: list[int]) -> tuple[int, tuple[int, ...], int]:
    """Return a start, a shape and its bytes; raise Fault unless they are possible."""
    if start < 0:
        raise Fault(Code.NEGATIVE, start)
    if start % ALIGNMENT:
        raise Fault(Code.MISALIGNED, start)
    size = _ITEM_BYTES[dtype]
    for extent in extents:
        if extent < 0:
            raise Fault(Code.NEGATIVE, extent)
        size *= extent
        if size > _MOST:
            raise Fault(Code.SIZE, extent)
    return start, tuple(extents), size


def _checked_element(tensor: VmTensor, index: int) -> int:
    """Return the address of an element of integers or bool."""
    if tensor.device != CPU:
        raise Fault(Code.DEVICE, tensor.device)
    if tensor.dtype >= len(READABLE):
        raise Fault(Code.DTYPE, tensor.dtype)
    size = _ITEM_BYTES[tensor.dtype]
    count = tensor.nbytes // size
    if not 0 <= index < count:
        raise Fault(Code.ELEMENT, index, count)
    return tensor.address + index * size


def read_element(tensor: VmTensor, index: int) -> int:
    """Return an element of integers or bool."""
    address = _checked_element(tensor, index)
    value: int = _ELEMENTS[tensor.dtype].from_address(address).value
    if value > _MOST:
        raise Fault(Code.OVERFLOW, _MOST)
    return int(value != 0) if tensor.dtype == _BOOL else value


def write_element(tensor: VmTensor, index: int, value: int) -> None:
    """Write an element of integers or bool."""
    if not tensor.writable:
        raise Fault(Code.READ_ONLY, -1)
    address = _checked_element(tensor, index)
    low, high = _LIMITS[tensor.dtype]
    if not low <= value <= high:
        raise Fault(Code.OVERFLOW, value)
    _ELEMENTS[tensor.dtype].from_address(address).value = value

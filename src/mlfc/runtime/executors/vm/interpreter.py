"""The interpreter in Python: functions decoded once into closures, and runs of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlfc.errors import MlfcError
from mlfc.runtime.devices.device import Device, cpu, set_device
from mlfc.runtime.executors.vm.failures import Code, Fault, run_error
from mlfc.runtime.executors.vm.memory import (
    ENTRY_BYTES,
    Account,
    VmBlock,
    VmTensor,
    aligned,
    aligned_zeros,
    as_array,
    as_ndarray,
    copy_bytes,
    number_of,
    of_array,
    of_ndarray,
)
from mlfc.runtime.executors.vm.native_tables import NativeTables
from mlfc.runtime.executors.vm.steps import RETURNED, Decoder, Layout, Registers, Step
from mlfc.runtime.modules.module import Function as PackedFunction
from mlfc.runtime.tensor.ndarray import NDArray
from mlfc.support.arrays import Array
from mlfc.support.bytecode.executable import Executable, OpenExtent, Value
from mlfc.support.bytecode.instructions import CPU, NUMBERED_DTYPES
from mlfc.support.dtypes import to_numpy

Find = Callable[[str], PackedFunction]
"""Returns a packed function of the library by its name."""


@dataclass(frozen=True)
class Limits:
    """What a run may take; 0 is no limit.

    Attributes
    ----------
    memory : int
        Bytes of the arena, of storages, frames and lists at one time.
    turns : int
        Backward jumps and calls.
    depth : int
        Calls within calls, the first included.
    """

    memory: int = 0
    turns: int = 0
    depth: int = 0


@dataclass(frozen=True)
class _Decoded:
    """A function: its steps, the registers of a new frame but the first, and what a frame costs."""

    steps: list[Step]
    registers: Registers
    cost: int


class Run:
    """One run: what its instructions share."""

    def __init__(self, program: Interpreter, limits: Limits, arena: Array | None) -> None:
        self.account = Account(limits.memory)
        self.devices = program.devices
        self.arena = arena
        self.arena_address = 0 if arena is None else arena.ctypes.data
        self.results: list[VmTensor] = []
        self.returned_at = 0
        self.pending: tuple[int, list[VmTensor], Sequence[int], int] = (0, [], (), 0)
        self._limits = limits
        self._turns = 0
        self._program = program

    def count_turn(self) -> None:
        """Count a backward jump or a call; raise Fault if there are too many."""
        self._turns += 1
        if self._limits.turns and self._turns > self._limits.turns:
            raise Fault(Code.TURNS, self._limits.turns)

    def enter(self, function: int, arguments: Sequence[Any], depth: int) -> Registers:
        """Return the registers of a new frame; raise Fault if it exceeds a limit."""
        decoded = self._program.decoded[function]
        if self._limits.depth and depth > self._limits.depth:
            raise Fault(Code.DEPTH, self._limits.depth)
        self.account.take(decoded.cost, self._program.executable.functions[function].name)
        registers = decoded.registers.copy()
        registers[0] = self
        registers[1 : 1 + len(arguments)] = arguments
        return registers

    def leave(self, function: int) -> None:
        """Count the end of a frame."""
        self.account.used -= self._program.decoded[function].cost

    def constant_on(self, source: VmTensor, device: int) -> VmTensor:
        """Return a constant on a device, where the model keeps it for later runs."""
        kept = self._program.on_devices
        found = kept.get((source.address, device))
        if found is None or found.extents != source.extents or found.dtype != source.dtype:
            block = VmBlock(Account(0), source.nbytes, self.devices[device])
            found = VmTensor(block.address, source.nbytes, source.dtype, source.extents, block, True, device)
            copy_bytes(found, source, self.devices)
            found.writable = False
            kept[source.address, device] = found
        return found

    def call_packed(self, name: str, tensors: Sequence[VmTensor]) -> None:
        """Call a packed function of the library on tensors."""
        values = [
            as_array(tensor) if tensor.device == CPU else as_ndarray(tensor, self.devices[tensor.device])
            for tensor in tensors
        ]
        try:
            self._program.find(name)(*values)
        except MlfcError as error:
            raise Fault(Code.PACKED, -1, text=name) from error


class Interpreter:
    """An executable ready to run in Python.

    Parameters
    ----------
    executable : Executable
    tables : NativeTables
    find : callable
        Returns packed functions.
    devices : mapping of int to Device
        By DLPack's device type.

    Attributes
    ----------
    on_devices : dict of (int, int) to VmTensor
        Copies of constants on devices, by their address on the host and the device type: made once.
    """

    def __init__(
        self, executable: Executable, tables: NativeTables, find: Find, devices: Mapping[int, Device] | None = None
    ) -> None:
        self.executable = executable
        self.find = find
        self.devices = {CPU: cpu(), **(devices or {})}
        self.on_devices: dict[tuple[int, int], VmTensor] = {}
        self._tables = tables
        self._arenas: list[Array] = []
        self.decoded = tuple(self._decode(number) for number in range(len(executable.functions)))

    def _decode(self, number: int) -> _Decoded:
        executable = self.executable
        function = executable.functions[number]
        layout = Layout.of(function, len(executable.integers))
        constants = [
            VmTensor(address, size, NUMBERED_DTYPES[constant.dtype], constant.shape, self._tables, False)
            for (address, size), constant in zip(self._tables.constants, executable.constants, strict=True)
        ]
        registers = [*[None] * layout.pool, *executable.integers, *constants]
        count = function.tensors + function.integers + function.storages + function.lists
        steps = Decoder(executable, function, self._tables, layout).steps()
        return _Decoded(steps, registers, count * ENTRY_BYTES)

    def run(self, function: int, inputs: Sequence[Array | NDArray], limits: Limits) -> list[Array]:
        """Run a function on contiguous arrays, copied unless they begin at a multiple of the alignment, or on devices.

        Returns
        -------
        list of ndarray
            Memory of their own, on the host.

        Raises
        ------
        MlfcError
            With the function and the instruction; see `run_error`.
        """
        return [
            found.numpy() if isinstance(found, NDArray) else found for found in self.results(function, inputs, limits)
        ]

    def results(self, function: int, inputs: Sequence[Array | NDArray], limits: Limits) -> list[Array | NDArray]:
        """Run a function as `run` does; return results where they are: on a device, or in memory of the host."""
        executable = self.executable
        inputs = [array if isinstance(array, NDArray) else aligned(array) for array in inputs]
        arena = self._take_arena()
        run = Run(self, limits, arena)
        for device in self.devices.values():
            if device.type_code != CPU:
                set_device(device.type_code, device.index)
        try:
            tensors = self._start(run, function, inputs)
            results = self._execute(run, function, tensors)
            shared = {id(arena), id(self._tables), *map(id, inputs), *map(id, self.on_devices.values())}
            return self._own_arrays(results, shared)
        except Fault as fault:
            raise run_error(executable, fault, None) from fault.__cause__
        finally:
            if arena is not None:
                self._arenas.append(arena)

    def _own_arrays(self, results: Sequence[VmTensor], shared: set[int]) -> list[Array | NDArray]:
        """Return results as arrays; those in memory that others have, by its `id`, are copied."""
        arrays: list[Array | NDArray] = []
        for tensor in results:
            if tensor.device != CPU:
                found = as_ndarray(tensor, self.devices[tensor.device])
                arrays.append(found.copyto(found.device) if id(tensor.owner) in shared else found)
                shared.add(id(tensor.owner))
                continue
            array = as_array(tensor)
            arrays.append(array.copy() if id(tensor.owner) in shared else array)
            shared.add(id(tensor.owner))
        return arrays

    def _take_arena(self) -> Array | None:
        """Return memory for the arena: that of an earlier run if there is some, so that runs may overlap."""
        if self.executable.arena_bytes < 0:
            return None
        try:
            return self._arenas.pop()
        except IndexError:
            return aligned_zeros(self.executable.arena_bytes)

    def _start(self, run: Run, function: int, inputs: Sequence[Array | NDArray]) -> list[VmTensor]:
        run.account.take(max(0, self.executable.arena_bytes))
        tensors = []
        for number, array in enumerate(inputs):
            dtype = number_of(to_numpy(array.dtype) if isinstance(array, NDArray) else array.dtype)
            if dtype is None:
                raise Fault(Code.BAD_INPUT, number, -1, 255)
            tensors.append(of_ndarray(array, dtype) if isinstance(array, NDArray) else of_array(array, dtype))
        if function == 0:
            check_values(self.executable, self.executable.inputs, tensors, Code.BAD_INPUT, {})
        return tensors

    def _execute(self, run: Run, function: int, arguments: Sequence[VmTensor]) -> list[VmTensor]:
        """Run frames until the first function returns."""
        callers: list[tuple[int, Registers, Sequence[int], int]] = []
        registers = run.enter(function, arguments, 1)
        steps = self.decoded[function].steps
        number = 0
        while True:
            try:
                while number >= 0:
                    number = steps[number](registers)
                if number == RETURNED:
                    if not callers:
                        return self._checked(run, function, arguments)
                    run.leave(function)
                    function, registers, targets, number = callers.pop()
                    for target, result in zip(targets, run.results, strict=True):
                        registers[target] = result
                    run.results = []
                    steps = self.decoded[function].steps
                    continue
                callee, given, targets, following = run.pending
                number = following - 1
                called = run.enter(callee, given, len(callers) + 2)
                run.pending = (0, [], (), 0)
                callers.append((function, registers, targets, following))
                function, registers, number = callee, called, 0
                steps = self.decoded[function].steps
            except Fault as fault:
                if number == RETURNED:
                    number = run.returned_at
                raise run_error(self.executable, fault, (function, number)) from fault.__cause__

    def _checked(self, run: Run, function: int, arguments: Sequence[VmTensor]) -> list[VmTensor]:
        results = run.results
        if function == 0:
            symbols: dict[int, int] = {}
            check_values(self.executable, self.executable.inputs, arguments, Code.BAD_INPUT, symbols)
            check_values(self.executable, self.executable.outputs, results, Code.BAD_OUTPUT, symbols)
        return results


def check_values(
    executable: Executable, values: Sequence[Value], tensors: Sequence[VmTensor], code: Code, symbols: dict[int, int]
) -> None:
    """Raise Fault unless tensors are what the model declares; `symbols` has the extents known so far."""
    for number, (value, tensor) in enumerate(zip(values, tensors, strict=True)):
        if tensor.dtype != NUMBERED_DTYPES[value.dtype]:
            raise Fault(code, number, -1, tensor.dtype, text=value.name)
        if len(tensor.extents) != len(value.extents):
            raise Fault(code, number, -2, len(tensor.extents), text=value.name)
        for axis, (declared, extent) in enumerate(zip(value.extents, tensor.extents, strict=True)):
            if isinstance(declared, OpenExtent):
                symbol = executable.symbols[declared.symbol]
                fits = symbol.low <= extent <= symbol.high and symbols.setdefault(declared.symbol, extent) == extent
            else:
                fits = declared is None or declared == extent
            if not fits:
                raise Fault(code, number, axis, extent, text=value.name)

"""Emulated models: firmware built for a board, run and measured on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.archive.details import full_module_info
from mlfc.archive.read.module_parts import read_parts
from mlfc.errors import InputError, OptionError, RunError
from mlfc.factory import Factory
from mlfc.micro.board.board import Board
from mlfc.micro.board.object_code import object_paths
from mlfc.micro.firmware import bare_metal
from mlfc.micro.firmware.graph_source import GraphSource, graph_of_factory, graph_of_parts, require_code_alone
from mlfc.micro.firmware.planned_memory import check_fit, plan_table, planned_table
from mlfc.micro.firmware.runtime_firmware import graph_firmware, tvm_firmware
from mlfc.micro.memory.memory_table import LinkedProgram, MemoryTable, linked_table
from mlfc.micro.project.model import details_of
from mlfc.micro.run import firmware_run
from mlfc.micro.run.firmware_build import build, section_sizes
from mlfc.runtime.executors.vm.failures import require_fitting
from mlfc.runtime.modules.module import Module
from mlfc.runtime.tensor.arrays import Values, by_name, only, require_readable, run_real
from mlfc.support.content import Data
from mlfc.support.dim_walk import counted
from mlfc.support.dims import LARGEST
from mlfc.support.executable import Executable, decode
from mlfc.support.module_info import ModuleInfo, ModuleInterface, OperatorInfo
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.tensor_info import Array

_AOT = "Compile the model with --executor aot, or run a graph with --host-driven"


@dataclass(frozen=True)
class BoardRun:
    """Results of consecutive inferences on a board, and the mean costs of one."""

    steps: tuple[Mapping[str, Array], ...]  # outputs of each inference
    # of an inference alone, accurate to a tick of the board's counter; None if the board does not count
    instructions: int | None
    startup_instructions: int | None  # from reset to the first inference, without measuring code
    cycles: int | None  # of an inference, if the board's counter counts cycles
    operators: tuple[int, ...]  # instructions of each operator in order; empty unless requested
    # the CRC-32 of each operator's output, step after step; empty unless the firmware traces
    checksums: tuple[int, ...]
    # runs of each operator in all steps and their multiply-accumulates; empty if each runs once, or without counting
    calls: tuple[int, ...]
    macs: tuple[int, ...]
    # code, constants and initial data of the firmware; None on a machine with an operating system
    flash_bytes: int | None
    ram_bytes: int | None  # data, workspace, inputs and outputs, and the measured stack of an inference
    stack_bytes: int  # the stack alone

    @property
    def outputs(self) -> Mapping[str, Array]:
        """The outputs of the last inference."""
        return self.steps[-1]


class BuiltFirmware:
    """Firmware of a module, built in a folder, and run by the board's emulator or this machine.

    `elf`: the program's path in the folder.
    `timeout`: limit of one inference in seconds.
    `executable`: description of a dynamic module.

    Raises OptionError if the board's firmware cannot run here.
    """

    def __init__(
        self,
        folder: Path,
        details: ModuleInterface,
        board: Board,
        *,
        elf: str = bare_metal.ELF,
        is_traced: bool = False,
        timeout: float = 300.0,
        executable: Executable | None = None,
    ) -> None:
        self._executable = executable
        self.inputs = details.inputs
        self.outputs = details.outputs
        self.states = details.states
        self.operators: Sequence[OperatorInfo] = details.operators or ()
        self.board = board
        self.program = firmware_run.run_command(board, elf)[0]
        self._place, self._elf, self._timeout, self._is_traced = folder, elf, timeout, is_traced
        self.flash_bytes, self._static_ram = section_sizes(folder / elf)

    def operators_of(self, run: BoardRun) -> list[OperatorInfo]:
        """Return the operators with the multiply-accumulates of a run."""
        macs = run.macs or [item.macs for item in self.operators]
        return [replace(item, macs=count) for item, count in zip(self.operators, macs, strict=True)]

    @property
    def extents(self) -> Mapping[str, tuple[int, int]]:
        """Bounds, minimum and maximum, of each dynamic dimension."""
        symbols = self._executable.symbols if self._executable else ()
        return {symbol.name: (symbol.low, symbol.high or LARGEST) for symbol in symbols}

    def run(self, *inputs: Any, real: bool = False) -> dict[str, Array]:
        """Run one inference; see `AotModule.run`. States start with their initial values."""
        return run_real(self, inputs) if real else dict(self.measure(only(inputs)).outputs)

    def measure(self, inputs: Values) -> BoardRun:
        """Run one inference, and return its outputs and costs; as `measure_steps` for one set of inputs."""
        return self.measure_steps([inputs])

    def measure_steps(self, sequence: Sequence[Values]) -> BoardRun:
        """Run consecutive inferences, which keep the model's states, and return their outputs and costs.

        Raises InputError or ProblemsError if the inputs do not match the model; RunError if the firmware fails or does
        not end in time.
        """
        folder, steps = self._emulated(sequence), len(sequence)
        report = firmware_run.read_report(folder)
        count = len(self.operators) if self._is_traced else 0
        traced = firmware_run.read_trace(folder, count, steps) if count and not self._executable else ()
        called = firmware_run.read_calls(folder, count) if count and self._executable else ()
        spent = [sum(operator.ticks for operator in traced[index::count]) for index in range(count if traced else 0)]
        spent = spent or [operator.ticks for operator in called]
        emulator, stack, ticks = self.board.emulator, report["stack"], report["ticks"] / steps
        rate = emulator.instructions_per_tick if emulator else None
        cycles = emulator.cycles_per_tick if emulator else None
        has_sizes = self.board.arch != "host"
        has_shapes = self._executable is not None
        return BoardRun(
            tuple(firmware_run.read_outputs(folder, self.outputs, steps, has_shapes=has_shapes)),
            _counted(ticks, rate),
            _counted(report["startup"], rate),
            _counted(ticks, cycles),
            tuple(round(each * rate / steps) for each in spent) if rate else (),
            tuple(operator.checksum for operator in traced),
            tuple(len(operator.calls) for operator in called),
            tuple(_macs(known, operator.calls) for known, operator in zip(self.operators, called, strict=False)),
            self.flash_bytes if has_sizes else None,
            self._static_ram + stack if has_sizes else None,
            stack,
        )

    def operator_outputs(self, sequence: Sequence[Values], sizes: Mapping[int, int]) -> list[dict[int, bytes]]:
        """Run consecutive inferences of traced firmware, and return the outputs of some operators in each.

        `sequence`: as for `measure_steps`; raises its errors.
        `sizes`: bytes of each requested output, by operator index.
        """
        folder = self._place
        firmware_run.choose(folder, sizes, len(self.operators))
        try:
            self._emulated(sequence)
        finally:
            (folder / firmware_run.CHOSEN).unlink()
        return firmware_run.read_tensors(folder, sizes, len(sequence))

    def _emulated(self, sequence: Sequence[Values]) -> Path:
        """Run consecutive inferences, and return the folder with the output files."""
        folder, executable = self._place, self._executable
        if len(sequence) > 1 and not self.inputs:
            raise InputError("the model has no inputs", next_step="Run it once")
        given = bare_metal.NEXT_SET.join(b"".join(self._bytes_of(inputs)) for inputs in sequence)
        (folder / bare_metal.INPUTS).write_bytes(given)
        try:
            firmware_run.emulate(folder, self.board, self._timeout * len(sequence), self._elf)
        except RunError:
            recorded = None if executable is None else bare_metal.recorded_error(folder, executable)
            if recorded is None:
                raise
            raise recorded from None
        return folder

    def _bytes_of(self, inputs: Values) -> Iterator[bytes]:
        """Yield the parts of one set of inputs in the firmware's file."""
        arrays = by_name(inputs, self.inputs, "input").values()
        if self._executable is not None:
            require_fitting(self._executable, [*map(require_readable, arrays)])
        for array in arrays:
            if self._executable is not None:
                yield np.array(array.shape, bare_metal.SIZE).tobytes()
            yield array.tobytes()


class EmulatedModule(BuiltFirmware):
    """An AOT module as firmware that is built for a board and runs under its emulator.

    `name`, `code`, `details`, `board`: as for `bare_metal.project_files`.
    `firmware`: for graphs; as for `bare_metal.project_files`.
    `profile`: count the instructions of each operator, on boards that support it; the hooks increase the total.
    `trace`: compute a checksum of each operator's output, and support `operator_outputs`; implied by `profile`.
    `cflags`: C compiler flags; default: from the module's ``optimize``.
    `timeout`: limit of one emulation in seconds.

    Raises OptionError if the board's firmware cannot run here, or `profile` is set and the board does not count
    instructions; ToolchainError if the compiler, make or the emulator is missing, or the firmware does not build;
    BudgetError if the firmware does not fit into the board's memory.
    """

    def __init__(
        self,
        name: str,
        code: Mapping[str, Data],
        details: ModuleInterface,
        board: Board,
        *,
        firmware: bare_metal.Firmware | None = None,
        profile: bool = False,
        trace: bool = False,
        cflags: str | None = None,
        timeout: float = 300.0,
        executable: Executable | None = None,
    ) -> None:
        firmware_run.run_command(board)
        if profile and (board.emulator is None or board.emulator.instructions_per_tick is None):
            raise OptionError(
                f"the board '{board.name}' cannot count instructions per operator",
                next_step="Remove --board to measure times" if board.arch == "host" else "Remove --profile",
            )
        if firmware is None:
            check_fit(plan_table(details, board), details)
            firmware = bare_metal.dynamic_firmware(name, details) if executable else None
        is_traced = profile or trace
        if is_traced and executable is None:  # the dynamic runtime calls the hook itself
            objects = object_paths(code)
            if objects:  # only C code contains the hook
                raise OptionError(
                    f"module '{name}' cannot be profiled per operator: it consists of objects",
                    place=objects[0],
                    next_step="Compile the model with --target c for that",
                )
        self._module, self._cflags = (name, code, details), cflags or bare_metal.optimization_level(details)
        self._temporary = TemporaryFolder()
        folder = Path(self._temporary.name)
        bare_metal.write_files(folder, bare_metal.project_files(name, code, details, board, firmware))
        build(folder, board, trace=is_traced, cflags=self._cflags)
        super().__init__(folder, details, board, is_traced=is_traced, timeout=timeout, executable=executable)

    def memory(self) -> tuple[MemoryTable, MemoryTable]:
        """Return the planned memory of the module and the memory of the linked firmware on the board."""
        name, code, details = self._module
        if details.executor == "graph":
            step = "Compile the model with --executor aot"
            raise OptionError("memory tables require the executor aot", next_step=step)
        if not isinstance(details, ModuleInfo):  # compiled by TVM, without a plan
            raise OptionError(
                f"module '{name}' was not compiled by mlfc and lacks memory metadata",
                next_step="Compile the model with: mlfc compile MODEL",
            )
        if not self.board.memories:
            raise OptionError(f"the board '{self.board.name}' lists no memories")
        before = planned_table(name, code, details, self.board, self._cflags.split())
        folder, sources = Path(self._temporary.name), {Path(path).name for path in code}
        return before, linked_table(
            LinkedProgram(folder / bare_metal.ELF, folder / bare_metal.MAP, sources), details, self.board
        )


def emulated_factory(factory: Factory, board: Board, **options: Any) -> EmulatedModule:
    """Return a result of `build` as firmware; the options are those of `EmulatedModule`."""
    graph = graph_of_factory(factory) if factory.executor == "graph" else None
    executable, imports = factory.unit.executable, factory.lib.imported_modules
    name, details = factory.module_name, full_module_info(factory)
    options |= _running(name, details, board, graph, executable, imports, options)
    return EmulatedModule(name, factory.code.built_files, details, board, **options)


def emulated_archive(
    path: str | os.PathLike[str], board: Board, module: str | None = None, **options: Any
) -> EmulatedModule:
    """Return a module of an archive as firmware; the options are those of `EmulatedModule`."""
    parts = read_parts(path, module)
    name = parts.record.name
    if parts.executor is None:
        raise OptionError(
            f"module '{name}' has no executor, which firmware requires",
            place=parts.place,
            next_step="Compile the model with: mlfc compile MODEL",
        )
    graph = graph_of_parts(parts) if parts.executor == "graph" else None
    executable = None if parts.executable is None else decode(parts.executable, place=parts.place)
    details = details_of(parts)
    options |= _running(name, details, board, graph, executable, parts.imports, options)
    return EmulatedModule(name, parts.code, details, board, **options)


def _running(
    name: str,
    details: ModuleInterface,
    board: Board,
    graph: GraphSource | None,
    executable: Executable | None,
    imports: Sequence[Module],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the options of `EmulatedModule` for a module; raise an error if its firmware lacks a requested one."""
    if graph is not None or not isinstance(details, ModuleInfo):
        if options.get("profile") or options.get("trace"):  # its code has no operator hooks
            reason = "was not compiled by mlfc" if graph is None else "is for the graph executor"
            cause = f"module '{name}' {reason}, so its firmware cannot be profiled per operator"
            raise OptionError(cause, next_step=_AOT)
        return {"firmware": tvm_firmware(name, details) if graph is None else graph_firmware(graph, board)}
    if executable is not None:
        if options.get("trace"):
            raise OptionError(
                f"module '{name}' is for the virtual machine, whose firmware does not transfer the outputs of "
                "operators",
                next_step="Make the dynamic dimensions static: --shape NAME=1,3,224,224",
            )
        require_code_alone(name, imports)
    return {"executable": executable}


def _macs(operator: OperatorInfo, calls: Sequence[Sequence[int]]) -> int:
    """Return the multiply-accumulates of calls with these sizes, 0 if unknown."""
    if operator.run_macs is None:
        return operator.macs * len(calls)
    return sum(max(0, counted(operator.run_macs, numbers) or 0) for numbers in calls)


def _counted(ticks: float, rate: float | None) -> int | None:
    return None if rate is None else round(ticks * rate)

"""Execution of built projects: on this machine, under an emulator, or on a connected board."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlfc.archive.read.module_parts import ModuleParts, read_parts
from mlfc.errors import OptionError, ProjectError, RunError, TransportClosedError
from mlfc.micro.board.board import Board, find_board
from mlfc.micro.firmware.bare_metal import ELF, MAP, optimization_level, project_files, write_files
from mlfc.micro.firmware.graph_source import GraphSource, graph_of_parts
from mlfc.micro.firmware.host_driven import host_driven_firmware
from mlfc.micro.firmware.planned_memory import overflow_error, plan_table
from mlfc.micro.memory.memory_table import LinkedProgram, MemoryTable, linked_table
from mlfc.micro.project.firmware import SELFTEST, firmware_of
from mlfc.micro.project.generate import templates
from mlfc.micro.project.model import details_of, project_source
from mlfc.micro.project.record import ARCHIVE, BOARD, BUILT, RECORD, SERVER, ProjectRecord, read_record
from mlfc.micro.project_api import GeneratedProject
from mlfc.micro.rpc.remote import PreparedRemoteCall
from mlfc.micro.rpc.session import Session
from mlfc.micro.rpc.transport import emulator_transport, program_transport, serial_transport
from mlfc.micro.run.emulator import BuiltFirmware
from mlfc.micro.run.firmware_build import build
from mlfc.micro.run.firmware_run import execute, failure, run_command
from mlfc.runtime.executors.graph_module import GraphModule
from mlfc.runtime.executors.profile import Profile
from mlfc.runtime.modules.runnable import HasModel
from mlfc.runtime.tensor.arrays import by_name, only, require_readable, run_real
from mlfc.support.executable import decode
from mlfc.support.module_info import ModuleInterface
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.tensor_info import Array

_READ_BYTES = 4096
# timeouts of applications that keep running on their boards
_LAST_LINE = re.compile(rb"^(PASS|FAIL) [0-9]+ of [0-9]+|: done\r?$")
_VERDICTS = {0: "PASS ", 1: "FAIL "}


class DrivenModel(HasModel):
    """A model whose operators run on a device, with its parameters copied there.

    `source`: the model that the device's firmware was built from.

    Raises RunError if the firmware is for another model, or the device fails.
    """

    def __init__(self, source: GraphSource, session: Session) -> None:
        lib = session.get_system_lib()
        missing = [name for name in source.graph.functions if not lib.implements_function(name)]
        if missing:
            raise RunError(
                f"the device's firmware is for another model: it lacks the function '{missing[0]}'",
                next_step="Build its firmware and write it to the board: mlfc project create, build, flash",
            )
        lib.params = source.params
        self._session = session
        self._model = source.load(lib, session.device)

    @property
    def model(self) -> GraphModule:
        """The graph executor of the model."""
        return self._model

    def tensors(self, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, Array]:
        """Run the operators one by one, and return all outputs by the names of the graph's nodes."""
        self._set(inputs)
        made: dict[str, Array] = {}
        for _, arrays in self.model.executor.steps():
            made.update(arrays)
        return made

    def profile(self, inputs: Mapping[str, Any] | Sequence[Any], repeat: int = 1) -> Profile:
        """Time every operator by the device's own clock, without transport and host.

        `repeat`: number of runs of the whole graph.
        """
        rows, seconds = [], []
        for _ in range(repeat):
            self._set(inputs)
            start = time.perf_counter()
            rows.append([self._timed(call) for _, call in self.model.executor.calls()])
            seconds.append(time.perf_counter() - start)
        outputs = {info.name: self.model.executor.get_output(index) for index, info in enumerate(self.outputs)}
        return Profile(self.model.operator_times(rows), tuple(seconds), outputs)

    def _set(self, inputs: Mapping[str, Any] | Sequence[Any]) -> None:
        names = self.model.executor.get_input_info()
        for name, array in zip(names, by_name(inputs, self.inputs, "input").values(), strict=True):
            self.model.executor.set_input(name, require_readable(array))

    def _timed(self, call: Callable[[], int]) -> float:
        """Run an operator once and return its nanoseconds."""
        if isinstance(call, PreparedRemoteCall):
            return call.time()[0] * 1e9
        # a copy within the device's memory, which cannot be timed as a function
        call()
        return 0.0


class DrivenAotModel:
    """A model compiled ahead of time that runs as a whole on a device.

    Raises RunError if the firmware is for another model, or the device fails.
    """

    def __init__(self, name: str, details: ModuleInterface, session: Session) -> None:
        self.inputs = details.inputs
        self.outputs = details.outputs
        self._executor = session.create_aot_executor(name)

    def run(self, *inputs: Any, real: bool = False) -> dict[str, Array]:
        """Run one inference; see `AotModule.run`."""
        if real:
            return run_real(self, inputs)
        for index, array in enumerate(by_name(only(inputs), self.inputs, "input").values()):
            self._executor.set_input(index, require_readable(array))
        self._executor.run()
        return {
            info.name: self._executor.get_output(index).reshape(info.shape) for index, info in enumerate(self.outputs)
        }


def build_host_driven(source: GraphSource, board: Board, folder: Path, cflags: str = "-O3") -> None:
    """Write the firmware of a model into a folder and build it.

    Raises OptionError if the board's serial port has no driver; ToolchainError if the compiler or make
    is missing, or the firmware does not build or fit.
    """
    firmware = host_driven_firmware(source, board)
    write_files(folder, project_files(source.name, source.code, None, board, firmware))
    build(folder, board, trace=False, cflags=cflags)


@contextmanager
def driven_model(
    source: GraphSource, board: Board, port: str | None = None, log: Callable[[str], None] | None = None
) -> Iterator[DrivenModel]:
    """Yield a model on a device during the context.

    Parameters
    ----------
    source : GraphSource
    board : Board
    port : str, optional
        The serial port of a board that has the firmware. Without it, firmware is built and run on this machine, under
        the board's emulator unless the board is a computer.
    log : callable, optional
        Called with each line that the device logs.

    Raises
    ------
    OptionError, ToolchainError
        If the firmware cannot be built, or the board has no emulator.
    RunError
        If the device fails, or does not reply.
    """
    if port is not None:
        with Session(serial_transport(port, board), log=log) as session:
            yield DrivenModel(source, session)
        return
    with TemporaryFolder() as name:
        folder = Path(name)
        build_host_driven(source, board, folder)
        if board.arch == "host":
            transport = program_transport([str(folder / ELF)], folder)
        else:
            transport = emulator_transport(board, folder, ELF)
        with Session(transport, log=log) as session:
            yield DrivenModel(source, session)


@dataclass(frozen=True, eq=False)
class BuiltProject:
    """A built project generated by mlfc."""

    folder: Path
    record: ProjectRecord
    board: Board
    parts: ModuleParts  # the module that it was generated for
    details: ModuleInterface  # of the module

    @property
    def is_bare_metal(self) -> bool:
        """True if all firmware is mlfc's, so that this machine or an emulator runs it, and its linker map exists."""
        name = self.record.template
        return name in templates() and templates().get(name).is_bare_metal

    def firmware(self, timeout: float) -> BuiltFirmware:
        """Return firmware of the type standalone; raise OptionError if the board's firmware cannot run here."""
        described = self.parts.executable
        executable = None if described is None else decode(described, place=self.parts.place)
        elf = self.record.firmware
        return BuiltFirmware(self.folder, self.details, self.board, elf=elf, timeout=timeout, executable=executable)

    def memory(self) -> tuple[MemoryTable | None, MemoryTable] | None:
        """Return the planned and the linked memory; None without a linker map of mlfc.

        The plan covers firmware that only runs a module once, without the graph executor.
        """
        elf = self.folder / self.record.firmware
        map_file = elf.with_name(MAP)
        if not self.is_bare_metal or not self.board.memories or not map_file.exists():
            return None
        sources = {Path(path).name for path in self.parts.code}
        linked = linked_table(LinkedProgram(elf, map_file, sources), self.details, self.board)
        is_planned = self.record.project_type == "standalone" and self.record.executor in ("aot", "vm")
        return plan_table(self.details, self.board) if is_planned else None, linked


def _board(folder: Path) -> Board:
    # callers that run a project's own programs also trust its board
    return find_board(str(folder / BOARD), trust=True)


def known_record(folder: Path) -> ProjectRecord | None:
    """Return the description of a project by mlfc; None for a project by another tool."""
    foreign = not (folder / RECORD).exists() and (folder / SERVER).exists()
    return None if foreign else read_record(folder)


def build_project(folder: Path, options: Mapping[str, Any], *, force: bool = False) -> BuiltProject | None:
    """Build a project by its API server, and return it; None for a project by another tool.

    `force`: rebuild.

    Raises OptionError if it is not a project, or is already built and `force` is not set; ProjectError, with the tool's
    last lines, if the build fails; BudgetError if the firmware does not fit into the board's memory.
    """
    record = known_record(folder)
    if record is not None and (folder / record.firmware).exists():
        if not force:
            raise OptionError(f"There is already a build in {folder}. To force rebuild it use '-f' or '--force'.")
        shutil.rmtree(folder / BUILT, ignore_errors=True)
        (folder / record.firmware).unlink(missing_ok=True)
    try:
        with GeneratedProject(folder, options) as api:
            api.build()
    except ProjectError as error:
        map_file = (folder / record.firmware).with_name(MAP) if record is not None else None
        too_large = map_file and overflow_error(str(error), map_file, _board(folder))
        raise (too_large or error) from None
    return built_project(folder) if record is not None else None


def built_project(folder: Path) -> BuiltProject:
    """Return the project in a folder; raise OptionError if it is not a project by mlfc, or not built."""
    record = read_record(folder)
    if not (folder / record.firmware).exists():
        raise OptionError(f"Could not find a build in {folder}", next_step=f"Build it: mlfc project build {folder}")
    parts = read_parts(folder / ARCHIVE, record.module)
    return BuiltProject(folder, record, _board(folder), parts, details_of(parts))


@contextmanager
def driven_project(
    project: BuiltProject, options: Mapping[str, Any], log: Callable[[str], None] | None = None
) -> Iterator[DrivenModel | DrivenAotModel]:
    """Yield the model on the project's device, through its API server, during the context.

    `project`: of the type host_driven.
    `options`: of the project: ``port``, ...
    `log`: called with each line that the device logs.
    """
    source = graph_of_parts(project.parts) if project.parts.executor == "graph" else None
    with GeneratedProject(project.folder, options) as api, Session(api.transport(), log=log) as session:
        if source is None:
            yield DrivenAotModel(project.record.module, project.details, session)
        else:
            yield DrivenModel(source, session)


def console(folder: Path, options: Mapping[str, Any], timeout: float) -> Iterator[str]:
    """Yield the lines that a project's firmware prints, up to its last line or exit.

    Raises IoTimeoutError if it is silent for `timeout` seconds.
    """
    with GeneratedProject(folder, options) as api:
        device = api.transport()
        device.open()
        waiting = b""
        while True:
            try:
                waiting += device.read(_READ_BYTES, timeout)
            except TransportClosedError:
                break
            *lines, waiting = waiting.split(b"\n")
            for line in lines:
                yield _text(line)
                if _LAST_LINE.search(line):
                    return
            # an endless line is yielded in pieces
            if len(waiting) > _READ_BYTES:
                yield _text(waiting)
                waiting = b""
        if waiting:
            yield _text(waiting)


def _text(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", "replace")


@dataclass(frozen=True)
class SelftestRun:
    """Result of a self-test."""

    passed: bool
    lines: tuple[str, ...]  # one per test vector, and the verdict


def run_selftest(
    path: str | os.PathLike[str],
    board: Board,
    module: str | None = None,
    *,
    cflags: str | None = None,
    timeout: float = 300.0,
) -> SelftestRun:
    """Build firmware that checks a module's test vectors, and run it under the board's emulator.

    `path`: an archive with test vectors, or a model, which is compiled for the board with some.
    `cflags`: C compiler flags; default: from the module's ``optimize``.
    `timeout`: limit of the emulation in seconds.

    Raises OptionError if the board's firmware cannot run here, or the archive has no test vectors; ToolchainError if
    the compiler, make or the emulator is missing, or the firmware does not build or fit; RunError if the firmware ends
    without a verdict.
    """
    run_command(board)
    with project_source(path, board, SELFTEST, module) as model, TemporaryFolder() as name:
        folder = Path(name)
        firmware = firmware_of(model, board, SELFTEST)
        write_files(folder, project_files(model.name, model.code, model.details, board, firmware))
        build(folder, board, trace=False, cflags=cflags or optimization_level(model.details))
        return run_built(folder, board, timeout)


def run_built(folder: Path, board: Board, timeout: float = 300.0, elf: str = ELF) -> SelftestRun:
    """Run the built firmware of a self-test in a folder.

    Raises OptionError or ToolchainError if the board's firmware cannot run here, or the emulator is missing; RunError
    if the firmware ends without a verdict.
    """
    status, said = execute(folder, board, timeout, elf)
    lines = tuple(line for line in said.splitlines() if line.startswith(tuple(_VERDICTS.values())))
    if status not in _VERDICTS or not lines or not lines[-1].startswith(_VERDICTS[status]):
        raise RunError(failure(status, said), place=board.name)
    return SelftestRun(status == 0, lines)

"""Models on a device that a host drives: graphs, operator by operator, and modules compiled ahead of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlfc.errors import RunError
from mlfc.micro.board.board import Board
from mlfc.micro.firmware.bare_metal import ELF, project_files, write_files
from mlfc.micro.firmware.graph_source import GraphSource
from mlfc.micro.firmware.host_driven import host_driven_firmware
from mlfc.micro.rpc.remote import PreparedRemoteCall
from mlfc.micro.rpc.session import Session
from mlfc.micro.rpc.transport import Transport, emulator_transport, program_transport, serial_transport
from mlfc.micro.run.firmware_build import build
from mlfc.runtime.executors.graph_module import GraphModule
from mlfc.runtime.executors.profile import Profile
from mlfc.runtime.modules.runnable import HasModel
from mlfc.runtime.tensor.arrays import by_name, require_readable
from mlfc.support.arrays import Array
from mlfc.support.module_info import ModuleInterface
from mlfc.support.temporary import TemporaryFolder


class DrivenModel(HasModel):
    """A model whose operators run on a device, with its parameters copied there.

    `source`: the model that the device's firmware was made from.

    Raises RunError if the firmware is of another model, or the device fails.
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
        """The graph executor that runs it."""
        return self._model

    def tensors(self, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, Array]:
        """Run operator after operator, and return all that they make by the names of the graph's nodes."""
        self._set(inputs)
        made: dict[str, Array] = {}
        for _, arrays in self.model.executor.steps():
            made.update(arrays)
        return made

    def profile(self, inputs: Mapping[str, Any] | Sequence[Any], repeat: int = 1) -> Profile:
        """Time every operator by the device's own clock, without the line and the host.

        `repeat`: runs of the whole graph.
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
        # a copy inside the device's memory, which is no function that could be timed
        call()
        return 0.0


class DrivenAotModel:
    """A model that is compiled ahead of time, and runs as a whole on a device.

    Raises RunError if the firmware is of another model, or the device fails.
    """

    def __init__(self, name: str, details: ModuleInterface, session: Session) -> None:
        self.inputs = details.inputs
        self.outputs = details.outputs
        self._executor = session.create_aot_executor(name)

    def run(self, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, Array]:
        """Run one inference, on a mapping by name or on arrays in order."""
        for index, array in enumerate(by_name(inputs, self.inputs, "input").values()):
            self._executor.set_input(index, require_readable(array))
        self._executor.run()
        return {
            info.name: self._executor.get_output(index).reshape(info.shape) for index, info in enumerate(self.outputs)
        }


def build_host_driven(source: GraphSource, board: Board, folder: Path, cflags: str = "-O3") -> None:
    """Write the firmware of a model into a folder and build it.

    Raises OptionError if there is no driver for the board's serial port; ToolchainError if the compiler or make
    is missing, or the firmware does not build or fit.
    """
    firmware = host_driven_firmware(source, board)
    write_files(folder, project_files(source.name, source.code, None, board, firmware))
    build(folder, board, trace=False, cflags=cflags)


@contextmanager
def driven_model(
    source: GraphSource, board: Board, port: str | None = None, log: Callable[[str], None] | None = None
) -> Iterator[DrivenModel]:
    """Give a model on a device, as long as the block runs.

    Parameters
    ----------
    source : GraphSource
    board : Board
    port : str, optional
        The serial port of a board that has the firmware. Without it, firmware is built and run on this machine, under
        the board's emulator if it is no computer.
    log : callable, optional
        Gets the lines that the device logs.

    Raises
    ------
    OptionError, ToolchainError
        If the firmware cannot be built, or there is no emulator.
    RunError
        If the device fails, or does not answer.
    """
    if port is not None:
        with Session(serial_transport(port, board), log=log) as session:
            yield DrivenModel(source, session)
        return
    with TemporaryFolder() as name:
        folder = Path(name)
        build_host_driven(source, board, folder)
        with Session(_local(board, folder), log=log) as session:
            yield DrivenModel(source, session)


def _local(board: Board, folder: Path) -> Transport:
    if board.arch == "host":
        return program_transport([str(folder / ELF)], folder)
    return emulator_transport(board, folder, ELF)

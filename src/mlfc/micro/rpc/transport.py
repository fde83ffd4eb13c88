"""Transports between this machine and a device: standard streams of a program, serial ports of emulators and boards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mlfc.errors import IoTimeoutError, OptionError, RunError, TransportClosedError
from mlfc.micro.board.board import Board
from mlfc.micro.board.programs import environment, need
from mlfc.micro.project_server import protocol
from mlfc.micro.project_server.lines import DeviceLine, ProcessDevice, SerialDevice
from mlfc.support.text import printable


@dataclass(frozen=True)
class Timeouts:
    """Seconds, as the Project API names them; 0 means to wait for ever."""

    session_start_retry_timeout_sec: float  # after which the start of a session is tried again
    session_start_timeout_sec: float  # after which that is given up
    session_established_timeout_sec: float  # how long a reply may take in a session


class Transport(Protocol):
    """A line to a device: an emulator's serial port, a real one, a child's pipes, or a project's API server."""

    def open(self) -> Timeouts:
        """Connect, or start what is to be talked to; raise RunError or ToolchainError where that fails."""

    def close(self) -> None:
        """Disconnect; does nothing where it is closed."""

    def read(self, nbytes: int, timeout_sec: float | None) -> bytes:
        """Return at least one and at most `nbytes` bytes.

        `timeout_sec`: None waits forever; 0 takes what is there.

        Raises IoTimeoutError if nothing came in time; TransportClosedError if the other side is gone.
        """

    def write(self, data: bytes, timeout_sec: float | None) -> None:
        """Write all of `data`; raise as `read` does."""


# seconds in which one operator of a model, or a whole firmware's start, can be waited for
_PROGRAM = Timeouts(2, 20, 120)
_SERIAL = Timeouts(2, 10, 60)


class LineTransport:
    """A line that is made when it is opened."""

    def __init__(self, connect: Callable[[], ProcessDevice | SerialDevice], timeouts: Timeouts, name: str) -> None:
        self._connect = connect
        self._timeouts = timeouts
        self._name = name
        self._line: DeviceLine | None = None

    def open(self) -> Timeouts:
        """Connect; raise RunError where that fails."""
        self.close()
        try:
            self._line = DeviceLine(self._connect())
        except protocol.StepError as error:
            raise RunError(str(error), place=self._name) from None
        return self._timeouts

    def close(self) -> None:
        """Disconnect; does nothing where it is closed."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def read(self, nbytes: int, timeout_sec: float | None) -> bytes:
        """Return at least one and at most `nbytes` bytes; as `Transport.read`."""
        return self._translated(lambda line: line.read_available(nbytes, timeout_sec))

    def write(self, data: bytes, timeout_sec: float | None) -> None:
        """Write all of `data`; as `Transport.write`."""
        self._translated(lambda line: line.write(data, timeout_sec))

    def _translated(self, action: Callable[[DeviceLine], bytes | None]) -> bytes:
        if self._line is None:
            raise TransportClosedError("the line is not open", place=self._name)
        try:
            return action(self._line) or b""
        except protocol.IoTimeoutError as error:
            raise IoTimeoutError(str(error), place=self._name) from None
        except protocol.TransportClosedError as error:
            raise TransportClosedError(
                f"the line is closed: {printable(str(error))}", place=self._name, next_step="Connect again"
            ) from None


def program_transport(command: Sequence[str], folder: Path, timeouts: Timeouts = _PROGRAM) -> LineTransport:
    """Return the line of a program's standard streams, which runs while the line is open."""
    return LineTransport(lambda: ProcessDevice(command, folder, environment()), timeouts, command[0])


def emulator_transport(board: Board, folder: Path, elf: str, timeouts: Timeouts = _PROGRAM) -> LineTransport:
    """Return the serial port of a board that is emulated while the line is open.

    Raises OptionError if no emulator is known for the board; ToolchainError if the emulator is missing.
    """
    if board.emulator is None:
        step = "Connect the board itself and name its port: --port"
        raise OptionError(f"no emulator is known for the board '{board.name}'", next_step=step)
    need(board.emulator.program, board.emulator.packages)
    return program_transport(board.emulator.command(elf, "stdio"), folder, timeouts)


def serial_transport(port: str, board: Board, timeouts: Timeouts = _SERIAL) -> LineTransport:
    """Return a serial port of this machine at the board's speed."""
    return LineTransport(lambda: SerialDevice(port, board.baud), timeouts, port)

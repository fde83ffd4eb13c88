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
    """Timeouts in seconds, named as in the Project API; 0 waits forever."""

    session_start_retry_timeout_sec: float  # retry interval of the start of a session
    session_start_timeout_sec: float  # limit for the start of a session
    session_established_timeout_sec: float  # limit for a reply in a session


class Transport(Protocol):
    """Connection to a device: a serial port, real or emulated, a child's pipes, or a project's API server."""

    def open(self) -> Timeouts:
        """Connect, starting the program if necessary; raise RunError or ToolchainError if that fails."""

    def close(self) -> None:
        """Disconnect; do nothing if it is closed."""

    def read(self, nbytes: int, timeout_sec: float | None) -> bytes:
        """Return at least one and at most `nbytes` bytes.

        `timeout_sec`: None waits forever; 0 returns available bytes.

        Raises IoTimeoutError if nothing arrived in time; TransportClosedError if the peer is gone.
        """

    def write(self, data: bytes, timeout_sec: float | None) -> None:
        """Write all of `data`; raises the errors of `read`."""


# seconds, enough for one operator of a model or the start of firmware
_PROGRAM = Timeouts(2, 20, 120)
_SERIAL = Timeouts(2, 10, 60)


class LineTransport:
    """A transport whose connection is created on opening."""

    def __init__(self, connect: Callable[[], ProcessDevice | SerialDevice], timeouts: Timeouts, name: str) -> None:
        self._connect = connect
        self._timeouts = timeouts
        self._name = name
        self._line: DeviceLine | None = None

    def open(self) -> Timeouts:
        """Connect; raise RunError if that fails."""
        self.close()
        try:
            self._line = DeviceLine(self._connect())
        except protocol.StepError as error:
            raise RunError(str(error), place=self._name) from None
        return self._timeouts

    def close(self) -> None:
        """Disconnect; do nothing if it is closed."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def read(self, nbytes: int, timeout_sec: float | None) -> bytes:
        """Return at least one and at most `nbytes` bytes; see `Transport.read`."""
        return self._translated(lambda line: line.read_available(nbytes, timeout_sec))

    def write(self, data: bytes, timeout_sec: float | None) -> None:
        """Write all of `data`; see `Transport.write`."""
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
    """Return a transport over a program's standard streams; the program runs while the transport is open."""
    return LineTransport(lambda: ProcessDevice(command, folder, environment()), timeouts, command[0])


def emulator_transport(board: Board, folder: Path, elf: str, timeouts: Timeouts = _PROGRAM) -> LineTransport:
    """Return the serial port of a board that is emulated while the transport is open.

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

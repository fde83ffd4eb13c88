"""What carries bytes between this machine and a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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

        `timeout_sec`: None waits for ever; 0 takes what is there.

        Raises IoTimeoutError if nothing came in time; TransportClosedError if the other side is gone.
        """

    def write(self, data: bytes, timeout_sec: float | None) -> None:
        """Write all of `data`; raise as `read` does."""

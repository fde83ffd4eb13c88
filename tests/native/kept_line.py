"""A line that stays open across sessions."""

from __future__ import annotations

from mlfc.micro.rpc.transport import LineTransport, Timeouts


class KeptLine:
    """A line that stays open when a session closes it, as a device behind a serial port keeps running."""

    def __init__(self, line: LineTransport) -> None:
        self._line = line
        self.timeouts = line.open()

    def open(self) -> Timeouts:
        return self.timeouts

    def close(self) -> None:
        pass

    def read(self, nbytes: int, timeout_sec: float | None) -> bytes:
        return self._line.read(nbytes, timeout_sec)

    def write(self, data: bytes, timeout_sec: float | None) -> None:
        self._line.write(data, timeout_sec)

"""Connections to a device: a process's standard streams, or a serial port."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .protocol import IoTimeoutError, StepError, TransportClosedError
from .steps import end_process

MAX_READ = 16 << 20
_PAUSE_BYTES = 1 << 20
_PIECE = 1 << 16
_GRACE_SECONDS = 2.0
_LEAST_SECONDS = 0.5
_SAID_BYTES = 400


class DeviceLine:
    """A device whose reads and writes have timeouts.

    A thread buffers received bytes, so that none are lost between two reads; it pauses if the buffer is not read.
    """

    def __init__(self, device: ProcessDevice | SerialDevice) -> None:
        self._device = device
        self._buffer = bytearray()
        self._wanted = 0
        self._ended = False
        self._closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._take, daemon=True).start()

    def read(self, n: int, timeout: float | None) -> bytes:
        """Return exactly n bytes; on a timeout, received bytes stay in the buffer."""
        return self._read(n, n, timeout)

    def read_available(self, n: int, timeout: float | None) -> bytes:
        """Return at least one and at most n bytes."""
        return self._read(1, n, timeout)

    def _read(self, least: int, most: int, timeout: float | None) -> bytes:
        if not 0 < most <= MAX_READ:
            raise ValueError(f"a read takes 1 to {MAX_READ} bytes, not {most}")
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._wanted = least
            self._changed.notify_all()
            while len(self._buffer) < least:
                if self._ended:
                    raise TransportClosedError(self._device.ending())
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise IoTimeoutError(f"{least} bytes were waited for and {len(self._buffer)} came")
                self._changed.wait(left)
            data = bytes(self._buffer[:most])
            del self._buffer[:most]
            self._changed.notify_all()
            return data

    def write(self, data: bytes, timeout: float | None) -> None:
        """Write all bytes; a timeout makes the device unusable, because the number of written bytes is unknown."""
        if self._closed:
            raise TransportClosedError("the line is closed")
        faults: list[Exception] = []

        def write() -> None:
            try:
                self._device.write(data)
            except Exception as error:  # reported to the caller, which runs in another thread
                faults.append(error)

        worker = threading.Thread(target=write, daemon=True)
        worker.start()
        # even an immediate write takes its thread a moment
        worker.join(None if timeout is None else max(timeout, _LEAST_SECONDS))
        if worker.is_alive():
            self.close()
            raise IoTimeoutError(f"{len(data)} bytes were not written in time")
        if faults:
            raise TransportClosedError(f"the other side is gone: {self._device.ending()}") from faults[0]

    def close(self) -> None:
        """Close the device."""
        with self._changed:
            self._closed = self._ended = True
            self._changed.notify_all()
        self._device.close()

    def _take(self) -> None:
        while True:
            try:
                data = self._device.read_some()
            except Exception:  # closed during the read, or unplugged: the stream has ended
                data = b""
            with self._changed:
                self._buffer += data
                self._ended = self._ended or not data
                self._changed.notify_all()
                while not self._ended and len(self._buffer) >= max(_PAUSE_BYTES, self._wanted):
                    self._changed.wait()
                if self._ended:
                    return


class ProcessDevice:
    """A started program, accessed through its standard streams."""

    def __init__(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        # a file, so that a program with much error output does not block
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the device)
        try:
            self._process = subprocess.Popen(
                arguments, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._said, bufsize=0,
            )  # fmt: skip
        except OSError as error:
            raise StepError(f"{arguments[0]} does not start: {error}") from None

    def read_some(self) -> bytes:
        """Return received bytes, at least one; empty at the end."""
        assert self._process.stdout is not None
        return self._process.stdout.read(_PIECE) or b""

    def write(self, data: bytes) -> None:
        """Write all bytes."""
        assert self._process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[self._process.stdin.write(view) :]

    def close(self) -> None:
        """Terminate the program."""
        end_process(self._process, _GRACE_SECONDS)

    def ending(self) -> str:
        """Return the reason why the stream has ended."""
        with suppress(subprocess.TimeoutExpired):
            status = self._process.wait(_GRACE_SECONDS)
            self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - _SAID_BYTES))
            said = self._said.read().decode("utf-8", "replace").strip()
            return f"the program ended with status {status}" + (f" ({said})" if said else "")
        return "the program closed its output"


class SerialDevice:
    """A serial port."""

    def __init__(self, port: str, baud: int) -> None:
        serial = _pyserial()
        try:
            self._port = serial.Serial(port, baud)
        except (serial.SerialException, ValueError) as error:
            number = getattr(error, "errno", None)
            reason = os.strerror(number) if number else error
            raise StepError(f"the serial port {port} cannot be opened: {reason}") from None

    def read_some(self) -> bytes:
        """Return received bytes, at least one; empty at the end."""
        return bytes(self._port.read(max(1, self._port.in_waiting)))

    def write(self, data: bytes) -> None:
        """Write all bytes."""
        self._port.write(data)

    def close(self) -> None:
        """Close the port, even during a read."""
        with suppress(Exception):  # a read from an unplugged port cannot be cancelled
            self._port.cancel_read()
            self._port.cancel_write()
        self._port.close()

    def ending(self) -> str:
        """Return the reason why the stream has ended."""
        return "the serial port is gone"


def find_port(serial: Mapping[str, Any], serial_number: str | None) -> str:
    """Return the only port with the board's USB IDs; raise StepError if none or several exist."""
    _pyserial()
    from serial.tools import list_ports

    found = [
        port.device
        for port in list_ports.comports()
        if serial.get("vid") is not None
        and (port.vid, port.pid) == (serial["vid"], serial.get("pid"))
        and (not serial_number or port.serial_number == serial_number)
    ]
    if len(found) != 1:
        what = (
            f"several boards are connected ({', '.join(sorted(found))})" if found else "the board's port was not found"
        )
        raise StepError(f"{what}. Name it by the option port, as /dev/ttyACM0 or COM3")
    return str(found[0])


def _pyserial() -> Any:
    try:
        import serial
    except ImportError:
        raise StepError(
            "serial ports need the Python package pyserial. Install it with: pip install pyserial"
        ) from None
    return serial

"""A session with a device: which packets belong to it, and how it starts and ends."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from mlfc.errors import IoTimeoutError, RunError, SessionError, SessionTerminatedError
from mlfc.micro.rpc.framing import GREETING, Unframer, frame
from mlfc.micro.rpc.transport import Timeouts, Transport
from mlfc.runtime.devices.device import cpu
from mlfc.support.text import printable, shortened

if TYPE_CHECKING:
    from mlfc.micro.rpc.remote import Remote, RemoteDevice, RemoteModule
    from mlfc.micro.rpc.remote_executors import RemoteAotExecutor

VERSION = 1
_HEADER_BYTES = 3
_READ_BYTES = 4096
_LOG_LINES = 5
_LOG_CHARACTERS = 1000


class _PacketType(IntEnum):
    START = 0x00
    START_REPLY = 0x01
    TERMINATE = 0x02
    LOG = 0x03
    NORMAL = 0x10


class _Packet(NamedTuple):
    session: int
    type: int
    body: bytes


class Session:
    """Drives a device; a context manager that connects and disconnects.

    Parameters
    ----------
    transport : Transport
        Opened by the session, and closed with it.
    log : callable, optional
        Gets each line that the device logs, without control characters.
    timeouts : Timeouts, optional
        In place of the transport's own.

    Notes
    -----
    Requests are answered one after the other. One that is not answered in time ends the session: a late answer would be
    taken for that to the next.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        log: Callable[[str], None] | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        self._transport = transport
        self._log = log
        self._given = timeouts
        self._timeouts = timeouts or Timeouts(0, 0, 0)
        self._unframer = Unframer()
        self._received: deque[_Packet] = deque()
        self._logged: deque[str] = deque(maxlen=_LOG_LINES)
        self._num_read = 0
        self._id: int | None = None

    def __enter__(self) -> Session:
        opened = self._transport.open()
        self._timeouts = self._given or opened
        try:
            self._start()
        except BaseException:
            self._transport.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session and close the transport; does nothing the second time."""
        try:
            if self._id is not None:
                self._send(_PacketType.TERMINATE, b"", self._id, self._timeouts.session_start_timeout_sec)
        except RunError:
            pass  # the device is gone, which is what was wanted
        finally:
            self._id = None
            self._transport.close()

    @cached_property
    def remote(self) -> Remote:
        """The device's functions and memory."""
        from mlfc.micro.rpc.remote import Remote

        return Remote(self)

    @property
    def device(self) -> RemoteDevice:
        """The device's CPU, for executors."""
        return self.remote.device

    def get_system_lib(self) -> RemoteModule:
        """Return the functions that are linked into the firmware."""
        return self.remote.system_lib()

    def create_aot_executor(self, name: str = "default") -> RemoteAotExecutor:
        """Create an executor of a module that is compiled ahead of time into the firmware.

        Parameters
        ----------
        name : str
            The module's. For ``default`` firmware of mlfc takes the only one it has, whatever its name is.

        Raises
        ------
        RemoteError
            If the firmware has no executor, no module of the name, or no memory.
        """
        from mlfc.micro.rpc.remote_executors import CREATE, RemoteAotExecutor

        create = self.remote.get_global(CREATE)
        return RemoteAotExecutor(self.remote, create(self.get_system_lib(), cpu(), name))

    def exchange(self, request: bytes) -> bytes:
        """Send a request and return the reply.

        Raises
        ------
        IoTimeoutError
            If there is none in time.
        SessionTerminatedError
            If the device ended the session, as it does when it starts again.
        SessionError
            If the session is over.
        TransportClosedError
            If the device is gone.
        """
        if self._id is None:
            raise SessionError("the session with the device is over", next_step="Start another one")
        session, limit = self._id, self._timeouts.session_established_timeout_sec
        # given back only when all went well: after a fault, nobody knows what the next message answers
        self._id = None
        self._send(_PacketType.NORMAL, request, session, limit)
        deadline = _deadline(limit)
        while True:
            message = self._receive(deadline)
            if message is None:
                raise IoTimeoutError(
                    f"failed to read reply message after timeout {limit:g} seconds{self._last_words()}",
                    next_step="Look whether the firmware still runs, or allow more time",
                )
            if message.type == _PacketType.TERMINATE:
                raise SessionTerminatedError(
                    f"the device ended the session: it may have started again{self._last_words()}",
                    next_step="Start another session",
                )
            if message.type == _PacketType.NORMAL and message.session == session:
                self._id = session
                return message.body

    def _start(self) -> None:
        """Agree on a session with the device, asking again where no answer comes."""
        limit, pause = self._timeouts.session_start_timeout_sec, self._timeouts.session_start_retry_timeout_sec
        deadline = _deadline(limit)
        while self._id is None:
            nonce = 1 + secrets.randbelow(255)
            self._transport.write(GREETING, limit or None)
            self._send(_PacketType.TERMINATE, b"", 0, limit)
            self._send(_PacketType.START, bytes((VERSION,)), nonce, limit)
            if not self._agree(nonce, _earlier(deadline, _deadline(pause))) and _is_past(deadline):
                raise IoTimeoutError(
                    f"session start handshake failed after {limit:g} seconds: {self._heard()}{self._last_words()}",
                    next_step="Look at cable, port and speed, and whether the firmware is host-driven",
                )

    def _agree(self, nonce: int, deadline: float | None) -> bool:
        """Wait for the device's answer to this nonce; return whether it came."""
        while (message := self._receive(deadline)) is not None:
            own, other = message.session & 0xFF, message.session >> 8
            if message.type == _PacketType.START_REPLY and own == nonce and other != 0:
                self._require_version(message.body)
                self._id = message.session
                return True
            if message.type == _PacketType.START and own != 0 and other == 0:
                if own == nonce:
                    return False  # both take new ones
                if own < nonce:
                    self._require_version(message.body)
                    self._id = own | nonce << 8
                    self._send(
                        _PacketType.START_REPLY, bytes((VERSION,)), self._id, self._timeouts.session_start_timeout_sec
                    )
                    return True
        return False

    def _require_version(self, body: bytes) -> None:
        if body != bytes((VERSION,)):
            version = body[0] if body else "none"
            raise SessionError(
                f"expected protocol version {VERSION} from the device, got {version}",
                next_step="Build its firmware again with this mlfc",
            )

    def _send(self, kind: _PacketType, body: bytes, session: int, limit: float) -> None:
        header = session.to_bytes(2, "little") + bytes((kind,))
        self._transport.write(frame(header + body), limit or None)

    def _receive(self, deadline: float | None) -> _Packet | None:
        """Return the next message that is no log; None where none came in time."""
        while True:
            while self._received:
                message = self._received.popleft()
                if message.type != _PacketType.LOG:
                    return message
                self._take_log(message.body)
                # a device that logs without end must not keep anyone waiting for longer
                if _is_past(deadline):
                    return None
            if _is_past(deadline):
                return None
            try:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                data = self._transport.read(_READ_BYTES, left)
            except IoTimeoutError:
                return None
            self._num_read += len(data)
            for payload in self._unframer.feed(data):
                if len(payload) >= _HEADER_BYTES:
                    session = int.from_bytes(payload[:2], "little")
                    self._received.append(_Packet(session, payload[2], payload[_HEADER_BYTES:]))

    def _take_log(self, body: bytes) -> None:
        text = printable(body.decode(errors="replace")).rstrip("\n")
        line = shortened(text, _LOG_CHARACTERS)
        self._logged.append(line)
        if self._log is not None:
            self._log(line)

    def _heard(self) -> str:
        if self._num_read == 0:
            return "the device sent nothing"
        return f"the device sent {self._num_read:,} bytes, and none of them answers"

    def _last_words(self) -> str:
        return f"; the device's last words: {' / '.join(self._logged)}" if self._logged else ""


def _deadline(seconds: float) -> float | None:
    """Return when so many seconds are over; 0 is never."""
    return time.monotonic() + seconds if seconds > 0 else None


def _earlier(one: float | None, other: float | None) -> float | None:
    times = [moment for moment in (one, other) if moment is not None]
    return min(times) if times else None


def _is_past(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline

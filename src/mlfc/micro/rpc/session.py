"""Sessions with a device: framing of packets, start and end."""

from __future__ import annotations

import binascii
import secrets
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from mlfc.errors import InputError, IoTimeoutError, RunError, SessionError, SessionTerminatedError
from mlfc.micro.rpc.transport import Timeouts, Transport
from mlfc.runtime.devices.device import cpu
from mlfc.support.text import printable, shortened

if TYPE_CHECKING:
    from mlfc.micro.rpc.remote import Remote, RemoteAotExecutor, RemoteDevice, RemoteModule

# A packet is FF FD, four bytes of length, payload, two bytes of CRC; numbers are little-endian. Every FF of length,
# payload and CRC is doubled; FF FE is ignored everywhere. The CRC is CRC-16/CCITT-FALSE of the bytes as sent, from the
# FF FD to the end of the payload.
START = b"\xff\xfd"
GREETING = b"\xfe"
"""Sent before the first packet to complete an escape whose second byte the reader may be waiting for."""

_ESCAPE, _START, _NOTHING = 0xFF, 0xFD, 0xFE
_DOUBLED = b"\xff\xff"
_LENGTH, _CRC = struct.Struct("<I"), struct.Struct("<H")
_CRC_START = 0xFFFF
MAX_PAYLOAD = 1 << 24
VERSION = 1
_HEADER_BYTES = 3
_READ_BYTES = 4096
_LOG_LINES = 5
_LOG_CHARACTERS = 1000


def crc16(data: bytes, crc: int = _CRC_START) -> int:
    """Return the CRC-16/CCITT-FALSE of bytes, or continue one."""
    return binascii.crc_hqx(data, crc)


def frame(payload: bytes) -> bytes:
    """Return the packet of a payload."""
    if len(payload) > MAX_PAYLOAD:
        raise InputError(f"a packet cannot hold {len(payload):,} bytes: at most {MAX_PAYLOAD:,}")
    body = START + _escaped(_LENGTH.pack(len(payload)) + payload)
    return body + _escaped(_CRC.pack(crc16(body)))


def _escaped(data: bytes) -> bytes:
    return data.replace(b"\xff", _DOUBLED)


class Unframer:
    """Parser of packets in a stream of bytes.

    Skips bytes between packets, and packets that are truncated, damaged, or too long.

    `max_payload`: longer packets are skipped, so that a wrong length allocates nothing.
    `dropped`: number of incomplete packets.
    """

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self._max_payload = max_payload
        self._in_escape = False
        self._in_packet = False
        self._raw = bytearray()
        self._plain = bytearray()
        self._expected = _LENGTH.size
        self.dropped = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the payloads of the packets that `data` completes."""
        for byte in data:
            if self._in_escape:
                self._in_escape = False
                payload = self._escape(byte)
            elif byte == _ESCAPE:
                self._in_escape = True
                continue
            else:
                payload = self._take(bytes((byte,)), byte)
            if payload is not None:
                yield payload

    def _escape(self, byte: int) -> bytes | None:
        if byte == _START:
            if self._in_packet:
                self._drop()
            self._in_packet = True
            self._raw[:] = START
            self._plain.clear()
            self._expected = _LENGTH.size
        elif byte == _ESCAPE:
            return self._take(_DOUBLED, _ESCAPE)
        elif byte == _NOTHING:
            if self._in_packet and not self._has_payload():
                self._raw += bytes((_ESCAPE, _NOTHING))
        elif self._in_packet:
            self._drop()
        return None

    def _has_payload(self) -> bool:
        """Return whether only the CRC, which does not cover itself, is still missing."""
        return self._expected > _LENGTH.size and len(self._plain) >= self._expected - _CRC.size

    def _take(self, raw: bytes, byte: int) -> bytes | None:
        """Add a byte of the packet; return the payload if the packet is complete."""
        if not self._in_packet:
            return None
        if not self._has_payload():
            self._raw += raw
        self._plain.append(byte)
        if len(self._plain) == self._expected == _LENGTH.size:
            (length,) = _LENGTH.unpack(self._plain)
            if length > self._max_payload:
                self._drop()
            self._expected += length + _CRC.size
        elif len(self._plain) == self._expected:
            (crc,) = _CRC.unpack_from(self._plain, self._expected - _CRC.size)
            if crc == crc16(bytes(self._raw)):
                self._in_packet = False
                return bytes(self._plain[_LENGTH.size : -_CRC.size])
            self._drop()
        return None

    def _drop(self) -> None:
        self._in_packet = False
        self.dropped += 1


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
    """Session with a device; a context manager that connects and disconnects.

    Parameters
    ----------
    transport : Transport
        Opened by the session, and closed with it.
    log : callable, optional
        Called with each line that the device logs, without control characters.
    timeouts : Timeouts, optional
        Replace the transport's own.

    Notes
    -----
    Requests are answered in order. A request without a timely reply ends the session, because a late reply would be
    mistaken for the reply to the next request.
    """

    def __init__(
        self, transport: Transport, *, log: Callable[[str], None] | None = None, timeouts: Timeouts | None = None
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
        """End the session and close the transport; do nothing if it has already ended."""
        try:
            if self._id is not None:
                self._send(_PacketType.TERMINATE, b"", self._id, self._timeouts.session_start_timeout_sec)
        except RunError:
            pass  # the device is gone, which is the desired state
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
        """Create an executor of a module compiled ahead of time into the firmware.

        Parameters
        ----------
        name : str
            The module's name. For ``default`` firmware of mlfc uses its only module, regardless of the name.

        Raises
        ------
        RemoteError
            If the firmware has no executor, no module of this name, or not enough memory.
        """
        from mlfc.micro.rpc.remote import CREATE, RemoteAotExecutor

        create = self.remote.get_global(CREATE)
        return RemoteAotExecutor(self.remote, create(self.get_system_lib(), cpu(), name))

    def exchange(self, request: bytes) -> bytes:
        """Send a request and return the reply.

        Raises
        ------
        IoTimeoutError
            If no reply arrives in time.
        SessionTerminatedError
            If the device ended the session, for example by a reset.
        SessionError
            If the session is over.
        TransportClosedError
            If the device is gone.
        """
        if self._id is None:
            raise SessionError("the session with the device is over", next_step="Start another one")
        session, limit = self._id, self._timeouts.session_established_timeout_sec
        # reset only after success: after a fault, the next message may answer an earlier request
        self._id = None
        self._send(_PacketType.NORMAL, request, session, limit)
        deadline = _deadline(limit)
        while True:
            message = self._receive(deadline)
            if message is None:
                raise IoTimeoutError(
                    f"failed to read reply message after timeout {limit:g} seconds{self._last_words()}",
                    next_step="Check whether the firmware still runs, or allow more time",
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
        """Establish a session with the device, retrying if no reply arrives."""
        limit, pause = self._timeouts.session_start_timeout_sec, self._timeouts.session_start_retry_timeout_sec
        deadline = _deadline(limit)
        while self._id is None:
            nonce = 1 + secrets.randbelow(255)
            self._transport.write(GREETING, limit or None)
            self._send(_PacketType.TERMINATE, b"", 0, limit)
            self._send(_PacketType.START, bytes((VERSION,)), nonce, limit)
            until = min(filter(None, (deadline, _deadline(pause))), default=None)
            if not self._agree(nonce, until) and _is_past(deadline):
                some = f"{self._num_read:,} bytes, but no reply" if self._num_read else "nothing"
                raise IoTimeoutError(
                    f"session start handshake failed after {limit:g} seconds: the device sent {some}"
                    f"{self._last_words()}",
                    next_step="Check cable, port and speed, and that the firmware is host-driven",
                )

    def _agree(self, nonce: int, deadline: float | None) -> bool:
        """Wait for the device's reply to this nonce; return whether it arrived."""
        while (message := self._receive(deadline)) is not None:
            own, other = message.session & 0xFF, message.session >> 8
            if message.type == _PacketType.START_REPLY and own == nonce and other != 0:
                self._require_version(message.body)
                self._id = message.session
                return True
            if message.type == _PacketType.START and own != 0 and other == 0:
                if own == nonce:
                    return False  # both sides choose new nonces
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
        """Return the next message that is not a log message; None if none arrived in time."""
        while True:
            while self._received:
                message = self._received.popleft()
                if message.type != _PacketType.LOG:
                    return message
                text = printable(message.body.decode(errors="replace")).rstrip("\n")
                self._logged.append(shortened(text, _LOG_CHARACTERS))
                if self._log is not None:
                    self._log(self._logged[-1])
                # a device that logs endlessly must not extend the timeout
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

    def _last_words(self) -> str:
        return f"; the device's last words: {' / '.join(self._logged)}" if self._logged else ""


def _deadline(seconds: float) -> float | None:
    """Return the deadline after a number of seconds; 0 means never."""
    return time.monotonic() + seconds if seconds > 0 else None


def _is_past(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline

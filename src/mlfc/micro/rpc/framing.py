"""Packets on a line that loses and invents bytes.

``FF FD``, four bytes of length, payload, two bytes of CRC; numbers are little-endian. Every ``FF`` of length, payload
and CRC is doubled; ``FF FE`` means nothing, anywhere. The CRC is CRC-16/CCITT-FALSE of the bytes as they are sent, from
the ``FF FD`` to the last one of the payload.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Iterator

from mlfc.errors import InputError

START = b"\xff\xfd"
GREETING = b"\xfe"
"""Goes before the first packet: it ends an escape for whose second byte the reader may wait."""

_ESCAPE, _START, _NOTHING = 0xFF, 0xFD, 0xFE
_DOUBLED = b"\xff\xff"
_LENGTH, _CRC = struct.Struct("<I"), struct.Struct("<H")
_CRC_START = 0xFFFF
MAX_PAYLOAD = 1 << 24


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
    """Finds packets in a stream of bytes.

    What is no packet is passed over: bytes between packets, packets that are cut off, damaged, or too long.

    `max_payload`: longer packets are skipped, so that a wrong length allocates nothing.
    `dropped`: packets that did not arrive whole.
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
        """Tell whether only the CRC is still to come, which is not part of itself."""
        return self._expected > _LENGTH.size and len(self._plain) >= self._expected - _CRC.size

    def _take(self, raw: bytes, byte: int) -> bytes | None:
        """Add a byte of the packet; return the payload if that completes it."""
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
            return self._complete()
        return None

    def _complete(self) -> bytes | None:
        (crc,) = _CRC.unpack_from(self._plain, self._expected - _CRC.size)
        if crc != crc16(bytes(self._raw)):
            self._drop()
            return None
        self._in_packet = False
        return bytes(self._plain[_LENGTH.size : -_CRC.size])

    def _drop(self) -> None:
        self._in_packet = False
        self.dropped += 1

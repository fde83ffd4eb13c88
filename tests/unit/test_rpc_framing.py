"""Packets on lines that lose, change and insert bytes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfc.errors import InputError
from mlfc.micro.rpc.session import GREETING, MAX_PAYLOAD, Unframer, crc16, frame

# captured from a session of TVM 0.14
CAPTURED = {
    "00 00 02": "ff fd 03 00 00 00 00 00 02 66 77",
    "86 00 00 01": "ff fd 04 00 00 00 86 00 00 01 8a 23",
    "86 86 01 01": "ff fd 04 00 00 00 86 86 01 01 41 99",
}
PAYLOADS = st.lists(st.binary(max_size=60) | st.lists(st.sampled_from([0xFF, 0xFD, 0xFE, 0]), max_size=40).map(bytes))
# noise ends without an open escape, because senders put a greeting before their first packet
NOISE = st.binary(max_size=20).map(lambda noise: noise.replace(b"\xff\xfd", b"") + GREETING)


def received(pieces: Iterable[bytes], unframer: Unframer | None = None) -> list[bytes]:
    reader = unframer or Unframer()
    return [payload for piece in pieces for payload in reader.feed(piece)]


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """Split data at these positions, each taken modulo its length plus one."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


def test_checksum_of_the_standard_text() -> None:
    assert crc16(b"123456789") == 0x29B1


@pytest.mark.parametrize(("payload", "packet"), CAPTURED.items())
def test_captured_packets(payload: str, packet: str) -> None:
    assert frame(bytes.fromhex(payload)) == bytes.fromhex(packet)
    assert received([bytes.fromhex(packet)]) == [bytes.fromhex(payload)]


def test_every_ff_of_length_payload_and_checksum_is_doubled() -> None:
    packet = frame(bytes([0xFF]) * 255)
    assert packet[2:7] == b"\xff\xff\x00\x00\x00"
    # a checksum that ends with FF, found by search
    payload = next(p for p in (i.to_bytes(2, "big") for i in range(1 << 16)) if frame(p).endswith(b"\xff\xff"))
    assert received([frame(payload)]) == [payload]


@given(PAYLOADS, st.lists(st.integers(0, 1 << 20)), st.lists(NOISE))
def test_packets_arrive_through_any_chunks_and_noise(
    payloads: list[bytes], places: list[int], noise: list[bytes]
) -> None:
    between = iter(noise)
    line = b"".join(next(between, b"") + frame(payload) for payload in payloads)
    assert received(cut(line, places)) == payloads


@given(PAYLOADS, st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1), st.binary(min_size=1))
def test_changed_bytes_lose_packets_but_invent_none(
    payloads: list[bytes], changes: list[tuple[int, int]], last: bytes
) -> None:
    line = bytearray(b"".join(map(frame, payloads)))
    for place, value in changes:
        if line:
            line[place % len(line)] = value
    got = received([bytes(line), GREETING, frame(last)])
    # an undamaged packet is always found
    assert got[-1] == last
    assert all(payload in payloads for payload in got[:-1])


@given(PAYLOADS.filter(bool), st.integers(0, 1 << 20))
def test_a_packet_that_is_cut_off_takes_none_with_it(payloads: list[bytes], place: int) -> None:
    packet = frame(payloads[0])
    # cut after an escape, the second FF would consume the next start
    kept = packet[: place % len(packet)].rstrip(b"\xff")
    assert received([kept, *map(frame, payloads)]) == payloads


def test_nothing_is_skipped_anywhere() -> None:
    start, rest = b"\xff\xfd", b"\x01\x00\x00\x00a"
    for place in range(len(rest) + 1):
        body = start + rest[:place] + b"\xff\xfe" + rest[place:]
        # an escape after the payload is not covered by the checksum
        summed = body if place < len(rest) else start + rest
        checksum = crc16(summed).to_bytes(2, "little")
        assert received([body + checksum]) == [b"a"]
        assert received([b"\xff\xfe" + start + rest + crc16(start + rest).to_bytes(2, "little")]) == [b"a"]


def test_wrong_checksums_and_escapes_are_counted() -> None:
    unframer = Unframer()
    packet = frame(b"abc")
    assert received([packet[:-1] + bytes((packet[-1] ^ 1,))], unframer) == []
    assert unframer.dropped == 1
    assert received([packet[:8] + b"\xff\x00" + packet[8:]], unframer) == []
    assert unframer.dropped == 2
    assert received([packet], unframer) == [b"abc"]


def test_a_length_that_lies_takes_no_memory() -> None:
    unframer = Unframer(max_payload=8)
    assert received([b"\xff\xfd" + b"\x09\x00\x00\x00" + bytes(100), frame(bytes(8))], unframer) == [bytes(8)]
    with pytest.raises(InputError, match="at most"):
        frame(bytes(MAX_PAYLOAD + 1))

"""The device's bytes follow microTVM's protocol; they are written out here, without mlfc's own host."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.rpc_device import build_device

# captured from a device with TVM 0.14
TERMINATE = bytes.fromhex("ff fd 03 00 00 00 00 00 02 66 77")
START_86 = bytes.fromhex("ff fd 04 00 00 00 86 00 00 01 8a 23")
REPLY_86_86 = bytes.fromhex("ff fd 04 00 00 00 86 86 01 01 41 99")
NULL, STRING, HANDLE, MODULE, FUNCTION = 4, 11, 3, 9, 10


def crc16(data: bytes) -> int:
    """Return CRC-16/CCITT-FALSE, bit by bit."""
    crc = 0xFFFF
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc


def packet(payload: bytes) -> bytes:
    body = b"\xff\xfd" + (struct.pack("<I", len(payload)) + payload).replace(b"\xff", b"\xff\xff")
    return body + struct.pack("<H", crc16(body)).replace(b"\xff", b"\xff\xff")


class Wire:
    """A device accessed by raw bytes."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.session = b""

    def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def take(self, nbytes: int) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.read(nbytes)

    def take_packet(self) -> bytes:
        """Return the payload of the next packet, after checking its frame."""
        raw = self.take(2)
        assert raw == b"\xff\xfd"

        def plain(count: int) -> bytes:
            nonlocal raw
            data = b""
            while len(data) < count:
                byte = self.take(1)
                raw += byte
                if byte == b"\xff":
                    again = self.take(1)
                    assert again == b"\xff"
                    raw += again
                data += byte
            return data

        (length,) = struct.unpack("<I", plain(4))
        payload = plain(length)
        expected = crc16(raw)
        assert struct.unpack("<H", plain(2)) == (expected,)
        return payload

    def start(self) -> None:
        assert self.take(len(TERMINATE) + 1) == b"\xfe" + TERMINATE
        self.send(b"\xfe" + TERMINATE + START_86)
        reply = self.take_packet()
        assert (reply[0], reply[2], reply[3:]) == (0x86, 1, b"\x01")
        assert reply[1] != 0
        self.session = reply[:2]

    def request(self, code: int, body: bytes) -> tuple[int, bytes]:
        message = struct.pack("<Qi", 4 + len(body), code) + body
        self.send(packet(self.session + b"\x10" + message))
        reply = self.take_packet()
        assert reply[:3] == self.session + b"\x10"
        length, answer = struct.unpack_from("<Qi", reply, 3)
        assert length == len(reply) - 3 - 8
        return answer, reply[15:]

    def close(self) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait()


# global functions are numbered after the last module: from 0x80028000 with TVM's template of 2 modules, as in the
# captured session; ours has 4 modules
GLOBALS = 0x80008000 | 4 << 16


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_device(tmp_path_factory.mktemp("device"))


@pytest.fixture
def wire(program: Path) -> Iterator[Wire]:
    wire = Wire(program)
    yield wire
    # the status is nonzero after a sanitizer report
    assert wire.close() == 0


def test_the_captured_packets_are_what_the_rules_give() -> None:
    assert crc16(b"123456789") == 0x29B1
    assert packet(bytes((0, 0, 2))) == TERMINATE
    assert packet(bytes((0x86, 0, 0, 1))) == START_86
    assert packet(bytes((0x86, 0x86, 1, 1))) == REPLY_86_86


def test_the_order_of_a_captured_session(wire: Wire) -> None:
    wire.start()
    # the system library; its function is freed
    assert wire.request(9, struct.pack("<ii", 1, STRING) + text("runtime.SystemLib")) == (
        4,
        struct.pack("<iiQ", 1, HANDLE, GLOBALS),
    )
    assert wire.request(3, struct.pack("<Qi", GLOBALS, 0)) == (
        4,
        struct.pack("<iiiQQ", 2, 0, HANDLE, MODULE, 0x8000),
    )
    assert wire.request(10, struct.pack("<iiiQq", 2, HANDLE, 0, GLOBALS, FUNCTION)) == (
        4,
        struct.pack("<ii", 1, NULL),
    )
    # an unknown function, then a known one
    name = "tvm.rpc.server.ModuleGetFunction"
    assert wire.request(9, struct.pack("<ii", 1, STRING) + text(name)) == (
        4,
        struct.pack("<iiQ", 1, HANDLE, GLOBALS | 1),
    )

    def get_function(wanted: str) -> tuple[int, bytes]:
        codes = struct.pack("<Qiiii", GLOBALS | 1, 3, MODULE, STRING, 0)
        return wire.request(3, codes + struct.pack("<Q", 0x8000) + text(wanted) + struct.pack("<q", 1))

    assert get_function("_lookup_linked_param") == (4, struct.pack("<iiiQ", 2, 0, NULL, NULL))
    # three blocks of memory: cpu 0, 8 bytes, aligned to 64, float32
    addresses = []
    for _ in range(3):
        codes = struct.pack("<iiiii", 4, 6, 0, 0, 5)
        values = struct.pack("<iiqq", 1, 0, 8, 64) + bytes((2, 32, 1, 0, 0, 0, 0, 0))
        code, reply = wire.request(13, codes + values)
        assert (code, reply[:8]) == (4, struct.pack("<ii", 1, HANDLE))
        addresses.append(struct.unpack("<Q", reply[8:])[0])
    assert len(set(addresses)) == 3
    assert not [address for address in addresses if address % 64]
    assert get_function("add") == (4, struct.pack("<iiiQQ", 2, 0, HANDLE, FUNCTION, 0x80008001))
    # the longest request: packets of 2,048 bytes without frame and header
    name = "tvm.rpc.server.GetCRTMaxPacketSize"
    code, reply = wire.request(9, struct.pack("<ii", 1, STRING) + text(name))
    (handle,) = struct.unpack_from("<Q", reply, 8)
    assert wire.request(3, struct.pack("<Qi", handle, 0)) == (4, struct.pack("<iiiQq", 2, 0, 0, 0, 0x7F5))

    def tensor(address: int) -> bytes:
        return struct.pack("<QiiiBBHqQ", address, 1, 0, 1, 2, 32, 1, 2, 0)

    for address, pair in zip(addresses, ((1.5, -2.0), (0.25, 8.0)), strict=False):
        data = struct.pack("<2f", *pair)
        assert wire.request(7, tensor(address) + struct.pack("<Q", 8) + data) == (4, struct.pack("<ii", 1, NULL))
    sync = struct.pack("<iiiiiQ", 2, 6, HANDLE, 1, 0, 0)
    assert wire.request(15, sync) == (4, struct.pack("<ii", 1, NULL))
    call = struct.pack("<Qiiii", 0x80008001, 3, 7, 7, 7) + b"".join(map(tensor, addresses))
    assert wire.request(3, call) == (4, struct.pack("<iiiQ", 2, 0, NULL, NULL))
    assert wire.request(6, tensor(addresses[2]) + struct.pack("<Q", 8)) == (8, struct.pack("<2f", 1.75, 6.0))
    assert wire.request(15, sync)[0] == 4


def test_an_exception_is_one_text(wire: Wire) -> None:
    wire.start()
    code, reply = wire.request(3, struct.pack("<Qi", 0x12345678, 0))
    assert (code, reply[:8]) == (5, struct.pack("<ii", 1, STRING))
    assert reply[8:16] == struct.pack("<Q", len(reply) - 16)
    assert reply[16:] == f"{0x12345678} is not the handle of a function".encode()


def test_no_answer_to_shutdown(program: Path) -> None:
    wire = Wire(program)
    wire.start()
    wire.send(packet(wire.session + b"\x10" + struct.pack("<Qi", 4, 1)))
    assert wire.take(1) == b""
    assert wire.close() == 0


def test_normal_messages_of_other_sessions_are_left_alone(wire: Wire) -> None:
    wire.start()
    question = struct.pack("<Qi", 4 + 12, 3) + struct.pack("<Qi", GLOBALS, 0)
    wire.send(packet(bytes((wire.session[0], wire.session[1] ^ 1)) + b"\x10" + question))
    wire.send(packet(b"\0\0\x10" + question))
    # the next reply belongs to this request
    code, reply = wire.request(9, struct.pack("<ii", 1, STRING) + text("no such function"))
    assert (code, reply) == (4, struct.pack("<iiQ", 1, HANDLE, 0))


def test_a_host_that_starts_again_gets_a_fresh_session(wire: Wire) -> None:
    wire.start()
    first = wire.session
    wire.send(packet(bytes((0x11, 0, 0, 1))))
    reply = wire.take_packet()
    assert (reply[0], reply[2:]) == (0x11, b"\x01\x01")
    assert reply[:2] != first

"""The device's reader and writer of packets agree with the host's, on arbitrary bytes."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfc.micro.rpc.session import GREETING, Unframer, frame
from tests.native.crt_build import STRICT, compile_c, write_tree

CAPACITY = 64
WRITE = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint8), ctypes.c_size_t)


class UnframerState(ctypes.Structure):
    """The first fields of TVMUnframer, and space for the rest."""

    _fields_ = (
        ("payload", ctypes.c_void_p),
        ("capacity", ctypes.c_size_t),
        ("length", ctypes.c_size_t),
        ("rest", ctypes.c_uint8 * 64),
    )


class Stream(ctypes.Structure):
    """TVMWriteStream."""

    _fields_ = (("write", WRITE), ("context", ctypes.c_void_p))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    tree = write_tree(tmp_path_factory.mktemp("framing"))
    files = sorted((tree / "runtime/src/runtime/crt/microtvm_rpc_common").glob("[!s]*.c"))
    path: Path = compile_c(tree, "framing.so", files, [*STRICT, "-fPIC", "-shared"])
    loaded = ctypes.CDLL(str(path))
    loaded.TVMUnframer_Read.restype = ctypes.c_bool
    return loaded


def read_by_c(library: ctypes.CDLL, data: bytes) -> list[bytes]:
    state, payload = UnframerState(), (ctypes.c_uint8 * CAPACITY)()
    library.TVMUnframer_Init(ctypes.byref(state), payload, ctypes.c_size_t(CAPACITY))
    buffer = (ctypes.c_uint8 * max(1, len(data))).from_buffer_copy(data or b"\0")
    at, left = ctypes.cast(buffer, ctypes.c_void_p), ctypes.c_size_t(len(data))
    found = []
    while left.value:
        if library.TVMUnframer_Read(ctypes.byref(state), ctypes.byref(at), ctypes.byref(left)):
            found.append(bytes(payload[: state.length]))
    return found


def write_by_c(library: ctypes.CDLL, payload: bytes, piece: int) -> bytes:
    written = bytearray()

    def write(_context: int, data: ctypes._Pointer[ctypes.c_uint8], nbytes: int) -> int:
        taken = min(nbytes, piece)
        written.extend(data[:taken])
        return taken

    stream, framer = Stream(WRITE(write), None), (ctypes.c_uint8 * 256)()
    library.TVMFramer_Init(framer, ctypes.byref(stream))
    assert library.TVMFramer_StartPacket(framer, ctypes.c_size_t(len(payload))) == 0
    for start in range(0, len(payload), piece):
        part = payload[start : start + piece]
        assert library.TVMFramer_WritePayload(framer, part, ctypes.c_size_t(len(part))) == 0
    assert library.TVMFramer_FinishPacket(framer) == 0
    return bytes(written)


BYTES = st.sampled_from([0xFF, 0xFD, 0xFE, 0, 1, 4]) | st.integers(0, 255)
PIECES = st.binary(max_size=70).map(frame) | st.lists(BYTES, max_size=12).map(bytes)


@given(st.lists(PIECES, max_size=8).map(b"".join))
def test_both_find_the_same_packets_in_any_bytes(library: ctypes.CDLL, line: bytes) -> None:
    assert read_by_c(library, line) == list(Unframer(CAPACITY).feed(line))


@given(st.lists(BYTES, max_size=200).map(bytes), st.integers(1, 70))
def test_both_write_the_same_packets(library: ctypes.CDLL, payload: bytes, piece: int) -> None:
    assert write_by_c(library, payload, piece) == GREETING + frame(payload)

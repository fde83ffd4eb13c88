"""The host side of a session with the C runtime's RPC server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfc.errors import (
    InputError,
    IoTimeoutError,
    RemoteError,
    RunError,
    SessionError,
    SessionTerminatedError,
    TransportClosedError,
)
from mlfc.micro import Session
from mlfc.micro.rpc import minrpc
from mlfc.micro.rpc.minrpc import Handle, PacketCode, RemoteTensor
from mlfc.micro.rpc.remote import RemoteFunction
from mlfc.micro.rpc.transport import Timeouts
from mlfc.runtime import cpu
from tests.native.kept_line import KeptLine
from tests.native.rpc_device import build_device, transport

pytestmark = pytest.mark.usefixtures("quick_builds")

# for the device that does not answer
SHORT = Timeouts(5, 60, 2)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_device(tmp_path_factory.mktemp("device"), "-Dclock=calls_clock")


@pytest.fixture(scope="module")
def closed_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a device whose hosts may only access memory that they allocated."""
    return build_device(tmp_path_factory.mktemp("closed"), "-DTVM_CRT_RPC_OWN_MEMORY_ONLY=1")


@pytest.fixture(scope="module")
def session(program: Path) -> Iterator[Session]:
    with Session(transport(program)) as session:
        yield session


def function(session: Session, name: str) -> RemoteFunction:
    found = session.get_system_lib().find_function(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "value",
    [0, -1, (1 << 63) - 1, -(1 << 63), 0xFFFF, 1.5, float("inf"), "", "text", "ÿ\x7f", b"", bytes(range(256)), None],
)
def test_values_come_back_as_they_went(session: Session, value: object) -> None:
    assert function(session, "echo")(value) == value


@settings(max_examples=40)
@given(st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=1500), st.floats(allow_nan=False)))
def test_any_value_comes_back(session: Session, value: object) -> None:
    assert function(session, "echo")(value) == value


def test_modules_functions_and_numbers_of_numpy(session: Session) -> None:
    lib = session.get_system_lib()
    echo = function(session, "echo")
    assert echo(lib).handle == lib.handle
    assert echo(echo).handle == echo.handle
    assert echo(np.int8(-3)) == -3
    assert echo(np.float32(0.5)) == 0.5
    assert lib.find_function("nothing") is None
    assert not lib.implements_function("nothing")
    with pytest.raises(InputError, match="argument 0 is a ndarray"):
        echo(np.zeros(3))
    with pytest.raises(InputError, match="64 bits"):
        echo(1 << 64)


@pytest.mark.parametrize("nbytes", [0, 1, 1976, 1977, 1978, 20000])
def test_copies_are_cut_up_and_come_back(session: Session, nbytes: int) -> None:
    assert session.remote.copy_bytes == 2037 - 60
    values = np.random.default_rng(nbytes).integers(0, 256, nbytes).astype(np.uint8)
    array = session.remote.array(values)
    np.testing.assert_array_equal(array.numpy(), values)
    array.free()
    with pytest.raises(RemoteError, match="no memory of the host's"):
        array.free()


def test_tensors_are_handed_to_functions(session: Session) -> None:
    rng = np.random.default_rng(0)
    one, two = rng.standard_normal((2, 3, 5), np.float32)
    arrays = [session.remote.array(values) for values in (one, two, np.zeros_like(one))]
    assert function(session, "add")(*arrays) is None
    np.testing.assert_array_equal(arrays[2].numpy(), one + two)
    back = function(session, "echo")(arrays[2])
    assert (back.shape, back.dtype, back.address) == ((3, 5), (2, 32, 1), arrays[2].tensor.address)
    arrays[1].copy_from(one)
    session.remote.copy(arrays[1].tensor, arrays[2].tensor)
    np.testing.assert_array_equal(arrays[2].numpy(), one)
    with pytest.raises(InputError, match="does not fit"):
        arrays[1].copy_from(one[:1])


def test_failures_have_the_devices_words(session: Session) -> None:
    with pytest.raises(RemoteError, match="no bread") as caught:
        function(session, "refuse")("no bread")
    assert caught.value.place == "refuse"
    with pytest.raises(RemoteError, match=r"\\x1b\[31m red"):
        function(session, "refuse")("\x1b[31m red")
    with pytest.raises(RemoteError, match="no memory for"):
        session.remote.allocate(-1)
    with pytest.raises(RemoteError, match="aligned"):
        session.remote.allocate(4, 3)
    with pytest.raises(RemoteError, match="no function 'nothing'"):
        session.remote.get_global("nothing")
    # the session continues
    assert function(session, "echo")(1) == 1


def test_functions_are_timed_on_the_device(session: Session) -> None:
    arrays = [session.remote.array(np.ones(4, np.float32)) for _ in range(3)]
    lib = session.get_system_lib()
    calls_of_add = function(session, "calls_of_add")
    first = session.remote.time_evaluator(lib, "add", number=3, repeat=4)
    # each call of the function takes a millisecond of the device's clock
    assert first(*arrays) == pytest.approx([0.001] * 4)
    # the number of calls doubles until they take the requested time by the device's clock
    before = calls_of_add()
    assert session.remote.time_evaluator(lib, "add", min_repeat_ms=20)(*arrays) == pytest.approx([0.001])
    assert calls_of_add() - before == 1 + 2 + 4 + 8 + 16 + 32
    with pytest.raises(RemoteError, match="replaced"):
        first(*arrays)
    with pytest.raises(RemoteError, match="out of range"):
        session.remote.time_evaluator(lib, "add", number=0)
    with pytest.raises(RemoteError, match="there is no function nothing"):
        session.remote.time_evaluator(lib, "nothing")
    with pytest.raises(RemoteError, match="no bread"):
        session.remote.time_evaluator(lib, "refuse")("no bread")


def test_logs_reach_the_host(program: Path) -> None:
    lines: list[str] = []
    with Session(transport(program), log=lines.append) as session:
        function(session, "say")("hello \x1b[2J", 3)
    assert lines == ["hello \\x1b[2J"] * 3


def test_a_device_that_does_not_answer(program: Path) -> None:
    with Session(transport(program)) as session:
        function(session, "say")("about to sleep", 1)
        hang = function(session, "hang")
        session._timeouts = SHORT
        with pytest.raises(IoTimeoutError, match=r"after timeout 2 seconds; the device's last words: about to sleep"):
            hang()
        with pytest.raises(SessionError, match="is over"):
            hang()


def test_a_device_that_leaves(program: Path) -> None:
    with Session(transport(program)) as session:
        leave = function(session, "leave")
        with pytest.raises(TransportClosedError, match="ended with status 3"):
            leave()


def test_a_device_that_starts_again(program: Path) -> None:
    line = transport(program)
    with Session(line) as session:
        restart = function(session, "restart")
        with pytest.raises(SessionTerminatedError, match="started again; the device's last words: going down"):
            restart()


def test_the_next_session_finds_the_device_as_new(program: Path) -> None:
    line = transport(program)
    kept = KeptLine(line)
    # a host that disconnects in the middle of a packet
    kept.write(b"\xff\xfd\x20\x00\x00\x00\x00\xff", None)
    with Session(kept) as session:
        address = session.remote.allocate(64)
        lib = session.get_system_lib()
    with Session(kept) as session:
        # the first host's memory and modules have been freed
        with pytest.raises(RemoteError, match="no memory of the host's"):
            session.remote.free_memory(address)
        with pytest.raises(RemoteError, match="is not the handle of a module"):
            session.remote.module_function(lib, "echo", 1)
        assert function(session, "echo")(2) == 2
    line.close()


def test_hosts_touch_only_their_own_memory(closed_program: Path) -> None:
    with Session(transport(closed_program)) as session:
        array = session.remote.array(np.arange(8, dtype=np.float32))
        add = function(session, "add")
        add(array, array, array)
        np.testing.assert_array_equal(array.numpy(), np.arange(8) * 2)
        start, nbytes = array.tensor.address, 32
        for address, size in ((start - 8, 8), (start, nbytes + 1), (start + nbytes, 1), (8, 8), (start + 31, 2)):
            with pytest.raises(RemoteError, match="leaves the memory"):
                session.remote.read(address, size)
            with pytest.raises(RemoteError, match="leaves the memory"):
                session.remote.write(address, bytes(size))
            tensor = RemoteTensor(address, (size,), (1, 8, 1), cpu())
            with pytest.raises(RemoteError, match="outside of the memory"):
                function(session, "echo")(tensor)
        huge = RemoteTensor(start, (1 << 40, 1 << 40), (1, 8, 1), cpu())
        for tensor in (
            huge,
            RemoteTensor(start, (-1,), (1, 8, 1), cpu()),
            RemoteTensor(start, (8,), (1, 8, 1), cpu(), 1 << 63),
        ):
            with pytest.raises(RemoteError, match="outside of the memory"):
                function(session, "echo")(tensor)
        with pytest.raises(RemoteError, match="handles cannot be arguments"):
            function(session, "echo")(Handle(3, start))


BODIES = st.one_of(
    st.binary(max_size=120),
    st.builds(
        lambda count, codes, tail: b"".join(value.to_bytes(4, "little") for value in (count, *codes)) + tail,
        st.integers(0, 16), st.lists(st.integers(0, 14), max_size=14), st.binary(max_size=80),
    ),
)  # fmt: skip


@settings(max_examples=300)
@given(code=st.integers(-1, 24).filter(lambda code: code != PacketCode.SHUTDOWN), body=BODIES)
def test_any_request_is_answered(hostile_session: Session, code: int, body: bytes) -> None:
    request = (len(body) + 4).to_bytes(8, "little") + code.to_bytes(4, "little", signed=True) + body
    answer, _ = minrpc.split(hostile_session.exchange(request))
    assert answer in (PacketCode.RETURN, PacketCode.EXCEPTION, PacketCode.COPY_ACK)


@settings(max_examples=50)
@given(st.binary(max_size=40))
def test_any_packet_is_answered(hostile_session: Session, packet: bytes) -> None:
    answer, _ = minrpc.split(hostile_session.exchange(packet))
    assert answer == PacketCode.EXCEPTION


@pytest.fixture(scope="module")
def hostile_session(closed_program: Path) -> Iterator[Session]:
    with Session(transport(closed_program)) as session:
        yield session
        # after all of that
        assert function(session, "echo")(5) == 5


def test_what_is_no_line_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not start"), Session(transport(tmp_path / "nothing")):
        pass

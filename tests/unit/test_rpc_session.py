"""Sessions over connections that fail in every way, with scripted devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from mlfc.errors import IoTimeoutError, RemoteError, SessionError, SessionTerminatedError, TransportClosedError
from mlfc.micro.rpc import minrpc
from mlfc.micro.rpc.minrpc import PacketCode
from mlfc.micro.rpc.session import Session, Unframer, frame
from mlfc.micro.rpc.transport import Timeouts

START, REPLY, TERMINATE, LOG, NORMAL = 0, 1, 2, 3, 0x10
# never reached: the devices of these tests reply at once or never
PATIENT = Timeouts(60, 60, 60)
RETURN_NOTHING = minrpc.packet(PacketCode.RETURN, minrpc.packed_args([None]))


def message(session: int, kind: int, body: bytes = b"") -> bytes:
    return frame(session.to_bytes(2, "little") + bytes((kind,)) + body)


class Device:
    """A transport to a scripted device.

    Parameters
    ----------
    answer : callable ``(device, session, type, body) -> None``
        Receives each message of the host; `say` replies.
    """

    def __init__(self, answer: Callable[[Device, int, int, bytes], None], timeouts: Timeouts = PATIENT) -> None:
        self._answer = answer
        self._timeouts = timeouts
        self._unframer = Unframer()
        self._output: deque[bytes] = deque()
        self.heard: list[tuple[int, int, bytes]] = []
        self.gone = False
        self.is_open = False

    def open(self) -> Timeouts:
        self.is_open = True
        return self._timeouts

    def close(self) -> None:
        self.is_open = False

    def read(self, nbytes: int, timeout_sec: float | None) -> bytes:
        if self._output:
            data = self._output.popleft()
            if len(data) > nbytes:
                self._output.appendleft(data[nbytes:])
            return data[:nbytes]
        if self.gone:
            raise TransportClosedError("the device went away")
        assert timeout_sec is not None, "a test would wait for ever"
        raise IoTimeoutError("nothing came")

    def write(self, data: bytes, timeout_sec: float | None) -> None:
        if self.gone:
            raise TransportClosedError("the device went away")
        for payload in self._unframer.feed(data):
            session, kind, body = int.from_bytes(payload[:2], "little"), payload[2], payload[3:]
            self.heard.append((session, kind, body))
            self._answer(self, session, kind, body)

    def say(self, data: bytes) -> None:
        self._output.append(data)


def obedient(reply: Callable[[Device, int], None] | None = None) -> Callable[[Device, int, int, bytes], None]:
    """Return a function that starts sessions correctly, and calls `reply` for requests."""

    def answer(device: Device, session: int, kind: int, _body: bytes) -> None:
        if kind == START:
            device.say(message(session | 0x5A00, REPLY, b"\x01"))
        elif kind == NORMAL:
            (reply or (lambda device, session: device.say(message(session, NORMAL, RETURN_NOTHING))))(device, session)

    return answer


def request(device: Device) -> bytes:
    with Session(device) as session:
        return session.exchange(minrpc.packet(PacketCode.SYNC))


def test_a_session_starts_works_and_ends() -> None:
    device = Device(obedient())
    assert request(device) == RETURN_NOTHING
    kinds = [(session & 0xFF if kind != TERMINATE else session, kind) for session, kind, _ in device.heard]
    nonce = kinds[1][0]
    assert nonce != 0
    assert device.heard[0] == (0, TERMINATE, b"")
    assert device.heard[1] == (nonce, START, b"\x01")
    assert device.heard[2][:2] == (nonce | 0x5A00, NORMAL)
    assert device.heard[3] == (nonce | 0x5A00, TERMINATE, b"")
    assert not device.is_open


def test_a_silent_device_is_asked_again_and_given_up() -> None:
    device = Device(lambda *_: None, Timeouts(0.05, 0.3, 60))
    with pytest.raises(IoTimeoutError, match=r"handshake failed after 0\.3 seconds: the device sent nothing"):
        request(device)
    starts = [session for session, kind, _ in device.heard if kind == START]
    assert len(starts) > 1
    assert not device.is_open


def test_a_device_that_says_something_else_is_told_from_a_silent_one() -> None:
    device = Device(lambda *_: None, Timeouts(0.05, 0.3, 60))
    device.say(b"another firmware, 1.0\r\n")
    with pytest.raises(IoTimeoutError, match="the device sent 23 bytes, but no reply"):
        request(device)


def test_a_device_that_wakes_up_late_is_found() -> None:
    def answer(device: Device, session: int, kind: int, body: bytes) -> None:
        if sum(kind == START for _, kind, _ in device.heard) > 2:
            obedient()(device, session, kind, body)

    assert request(Device(answer)) == RETURN_NOTHING


def test_noise_and_broken_packets_before_the_answer() -> None:
    def reply(device: Device, session: int) -> None:
        good = message(session, NORMAL, RETURN_NOTHING)
        device.say(b"\x00\xff\x12 boot: 115200 \xff\xfe")
        device.say(good[:9])
        device.say(good[:-1] + bytes((good[-1] ^ 0x40,)))
        for byte in good:
            device.say(bytes((byte,)))

    assert request(Device(obedient(reply))) == RETURN_NOTHING


@pytest.mark.parametrize(
    "damage", [lambda good: good[:-3], lambda good: good[:-1] + bytes((good[-1] ^ 1,)), lambda _: b""]
)
def test_an_answer_that_is_lost(damage: Callable[[bytes], bytes]) -> None:
    def reply(device: Device, session: int) -> None:
        device.say(damage(message(session, NORMAL, RETURN_NOTHING)))

    with pytest.raises(IoTimeoutError, match="failed to read reply message after timeout 60 seconds"):
        request(Device(obedient(reply)))


def test_an_answer_for_another_session_is_none() -> None:
    def reply(device: Device, session: int) -> None:
        device.say(message(session ^ 0x0100, NORMAL, minrpc.packet(PacketCode.RETURN)))
        device.say(message(session ^ 0x0001, NORMAL, minrpc.packet(PacketCode.RETURN)))

    with pytest.raises(IoTimeoutError, match="failed to read reply"):
        request(Device(obedient(reply)))


def test_a_late_answer_is_not_taken_for_the_next() -> None:
    device = Device(obedient(lambda *_: None))
    with Session(device) as session:
        with pytest.raises(IoTimeoutError):
            session.exchange(minrpc.packet(PacketCode.SYNC))
        device.say(message(device.heard[-1][0], NORMAL, RETURN_NOTHING))
        with pytest.raises(SessionError, match="is over"):
            session.exchange(minrpc.packet(PacketCode.SYNC))


def test_a_device_that_starts_again() -> None:
    def reply(device: Device, _session: int) -> None:
        device.say(message(0, LOG, b"watchdog\n"))
        device.say(b"\xfe" + message(0, TERMINATE))

    with pytest.raises(SessionTerminatedError, match="it may have started again; the device's last words: watchdog"):
        request(Device(obedient(reply)))


def test_a_line_that_is_cut_in_the_middle() -> None:
    def reply(device: Device, session: int) -> None:
        device.say(message(session, NORMAL, RETURN_NOTHING)[:10])
        device.gone = True

    with pytest.raises(TransportClosedError, match="went away"):
        request(Device(obedient(reply)))


def test_logs_without_end_do_not_keep_anyone_waiting() -> None:
    class Chatty(Device):
        def read(self, nbytes: int, timeout_sec: float | None) -> bytes:
            self.say(message(0, LOG, b"tick"))
            return super().read(nbytes, timeout_sec)

    with pytest.raises(IoTimeoutError, match=r"failed to read reply.*tick / tick"):
        request(Chatty(obedient(lambda *_: None), Timeouts(60, 60, 0.2)))


def test_log_lines_are_shown_without_commands_for_terminals() -> None:
    lines: list[str] = []
    device = Device(obedient())
    device.say(message(0, LOG, b"\x1b[2Jhi\xff\n"))
    with Session(device, log=lines.append):
        pass
    assert lines == ["\\x1b[2Jhi\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize("wanted", ["lower", "higher", "equal"])
def test_a_device_that_starts_a_session_itself(wanted: str) -> None:
    taken: list[int] = []

    def answer(device: Device, session: int, kind: int, body: bytes) -> None:
        if kind == START and not taken:
            other = {"lower": 1, "higher": 255, "equal": session}[wanted]
            # the session with the lower number is used
            taken.append(session)
            device.say(message(other, START, b"\x01"))
            if wanted == "higher":
                device.say(message(session | 0xFF00, REPLY, b"\x01"))
        elif kind != REPLY:
            obedient()(device, session, kind, body)

    device = Device(answer)
    assert request(device) == RETURN_NOTHING
    (used,) = {session for session, kind, _ in device.heard if kind == NORMAL}
    if wanted == "lower" and taken != [1]:
        assert used == 1 | taken[0] << 8
        assert (used, REPLY, b"\x01") in device.heard
    elif wanted == "higher" and taken != [255]:
        assert used == taken[0] | 0xFF00


def test_another_version_of_the_protocol() -> None:
    device = Device(
        lambda device, session, kind, _: device.say(message(session | 0x100, REPLY, b"\x02")) if kind == START else None
    )
    with pytest.raises(SessionError, match="expected protocol version 1 from the device, got 2"):
        request(device)


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (b"", "too short"),
        (b"\x05" + bytes(11), "expected a packet of 5 bytes"),
        (minrpc.packet(PacketCode.CALL), "code 3 where RETURN was expected"),
        (minrpc.packet(PacketCode.RETURN), "cut off"),
        (minrpc.packet(PacketCode.RETURN, b"\xff\xff\xff\xff"), "-1 values"),
        (minrpc.packet(PacketCode.RETURN, b"\xff\xff\xff\x7f"), "values"),
        (minrpc.packet(PacketCode.RETURN, b"\x01\0\0\0\x0b\0\0\0" + b"\xff" * 8), "cut off"),
        (minrpc.packet(PacketCode.RETURN, b"\x01\0\0\0\x07\0\0\0" + bytes(16) + b"\xff" * 16), "dimensions"),
        (minrpc.packet(PacketCode.RETURN, b"\x01\0\0\0\x0d\0\0\0" + bytes(8)), "type code 13"),
        (minrpc.packet(PacketCode.RETURN, minrpc.packed_args([1]) + b"x"), "extra bytes"),
        (minrpc.packet(PacketCode.RETURN, minrpc.packed_args([1, 2])), "2 values instead of one"),
    ],
)
def test_answers_that_make_no_sense(reply: bytes, fault: str) -> None:
    device = Device(obedient(lambda device, session: device.say(message(session, NORMAL, reply))))
    with Session(device) as session, pytest.raises(SessionError, match=fault):
        session.remote.synchronize()


def test_an_exception_is_the_devices() -> None:
    body = minrpc.packed_args(["out of \x07 paper"])
    device = Device(
        obedient(
            lambda device, session: device.say(message(session, NORMAL, minrpc.packet(PacketCode.EXCEPTION, body)))
        )
    )
    with Session(device) as session, pytest.raises(RemoteError, match=r"out of \\x07 paper"):
        session.remote.synchronize()


def test_fewer_bytes_of_memory_than_were_asked_for() -> None:
    def reply(device: Device, session: int) -> None:
        code, _ = minrpc.split(device.heard[-1][2])
        if code == PacketCode.COPY_FROM:
            device.say(message(session, NORMAL, minrpc.packet(PacketCode.COPY_ACK, b"abc")))
        else:
            answer = minrpc.packed_args([minrpc.Handle(3, 0)])
            device.say(message(session, NORMAL, minrpc.packet(PacketCode.RETURN, answer)))

    with Session(Device(obedient(reply))) as session, pytest.raises(SessionError, match=r"3 bytes .* where 4"):
        session.remote.read(0x100, 4)

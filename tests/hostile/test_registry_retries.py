"""Registries that fail for a while, and connections that break: retried a bounded number of times, then an error."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mlfc.errors import RegistryError
from mlfc.publish.documents import ARTIFACTS, INDEX, Descriptor, digest_of, index
from mlfc.publish.reference import parse_reference
from mlfc.publish.remote import open_store
from mlfc.publish.retries import PAUSES
from mlfc.publish.store import ArtifactStore, checked
from mlfc.publish.transfer import pull
from tests.conftest import need
from tests.hostile.test_lying_registries import BLOB, TAR, manifest
from tests.registry_servers import Answer, Liar, Request, docker_registry, liar

pytestmark = pytest.mark.usefixtures("away_from_home")
HALF = len(TAR) // 2


@pytest.fixture
def server() -> Iterator[Liar]:
    with liar() as made:
        made.blobs[digest_of(TAR)] = TAR
        made.publish(manifest())
        yield made


@pytest.fixture
def pauses() -> list[float]:
    """Return the list of pauses between retries, in seconds."""
    return []


@pytest.fixture
def store(server: Liar, pauses: list[float]) -> ArtifactStore:
    return open_store(parse_reference(server.reference), wait=pauses.append)


def failing(server: Liar, path: str, answers: list[Answer | None]) -> None:
    """Answer a path with `answers` in order; for None, and after the last one, answer correctly."""

    def answer(request: Request) -> Answer:
        given = answers.pop(0) if answers else None
        if given is not None:
            return given
        kept = server.answers.pop(path)
        try:
            return server.answer(request)
        finally:
            server.answers[path] = kept

    server.answers[path] = answer


def asked(server: Liar, method: str) -> list[Request]:
    return [request for request in server.requests if request.method == method]


def cut(data: bytes = TAR, start: int = 0, end: int = HALF, status: int = 200) -> Answer:
    """Return an answer whose connection closes too early."""
    return Answer(status, {"Content-Length": str(len(data) - start)}, data[start:end])


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_fails_for_a_while_is_asked_again(
    server: Liar, store: ArtifactStore, pauses: list[float], status: int
) -> None:
    failing(server, "GET /manifests/1", [Answer(status), Answer(status)])
    pull(store)
    assert Path("kws.tar").read_bytes() == TAR
    assert pauses == [*PAUSES[:2]]


def test_what_always_fails_is_asked_four_times(server: Liar, store: ArtifactStore, pauses: list[float]) -> None:
    server.lie("GET /manifests/1", 503)
    with pytest.raises(RegistryError, match="answers 503 to GET"):
        pull(store)
    assert len(server.requests) == 1 + len(PAUSES) == 4
    assert pauses == [*PAUSES]
    assert not any(Path().iterdir())


@pytest.mark.parametrize("status", [400, 401, 403, 405, 501])
def test_what_will_fail_again_is_asked_once(
    server: Liar, store: ArtifactStore, pauses: list[float], status: int
) -> None:
    server.lie("GET /manifests/1", status)
    with pytest.raises(RegistryError):
        pull(store)
    assert (len(server.requests), pauses) == (1, [])


@pytest.mark.parametrize(
    ("text", "expected"), [("7", [7.0]), ("0", [0.5]), ("Wed, 21 Oct 2026 07:28:00 GMT", [0.5]), ("-1", [0.5])]
)
def test_the_registry_says_how_long_to_wait(
    server: Liar, store: ArtifactStore, pauses: list[float], text: str, expected: list[float]
) -> None:
    failing(server, "GET /manifests/1", [Answer(429, {"Retry-After": text})])
    pull(store)
    assert pauses == expected


@pytest.mark.parametrize("text", ["31", "9" * 1000])
def test_nobody_waits_for_long(server: Liar, store: ArtifactStore, pauses: list[float], text: str) -> None:
    server.lie("GET /manifests/1", 429, Retry_After=text)
    with pytest.raises(RegistryError, match="limits the rate of requests"):
        pull(store)
    assert (len(server.requests), pauses) == (1, [])


def test_a_download_goes_on_where_it_ended(server: Liar, store: ArtifactStore, pauses: list[float]) -> None:
    rest = Answer(206, {"Content-Range": f"bytes {HALF}-{len(TAR) - 1}/{len(TAR)}"}, TAR[HALF:])
    failing(server, BLOB, [cut(), rest])
    pull(store)
    assert Path("kws.tar").read_bytes() == TAR
    ranges = [request.headers.get("Range") for request in server.requests if "/blobs/" in request.path]
    assert ranges == [None, f"bytes={HALF}-"]
    assert pauses == [*PAUSES[:1]]


def test_a_registry_without_ranges_begins_anew(server: Liar, store: ArtifactStore) -> None:
    failing(server, BLOB, [cut(), cut(end=HALF + 100), None])
    pull(store)
    assert Path("kws.tar").read_bytes() == TAR


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (Answer(206, {}, bytes(len(TAR) - HALF - 1) + b"x"), "expected bytes with the digest"),
        (Answer(206, {}, TAR[HALF:-1]), "the registry announces"),
        (Answer(206, {}, [TAR[HALF:], b"x"]), "expected at most"),
        (Answer(200, {}, b"y" * len(TAR)), "expected bytes with the digest"),
        (Answer(416), "answers 416 to GET"),
        (Answer(404), "is listed, but missing"),
    ],
    ids=["other", "short", "long", "changed", "refused", "gone"],
)
def test_rests_that_are_none(server: Liar, store: ArtifactStore, rest: Answer, message: str) -> None:
    failing(server, BLOB, [cut(), rest])
    with pytest.raises(RegistryError, match=message):
        pull(store)
    assert not any(Path().iterdir())


def test_connections_that_always_end(server: Liar, store: ArtifactStore, pauses: list[float]) -> None:
    failing(server, BLOB, [cut()] + [cut(start=HALF + at, end=HALF + at + 1, status=206) for at in range(9)])
    with pytest.raises(RegistryError, match="the connection fails"):
        pull(store)
    assert pauses == [*PAUSES]
    assert not any(Path().iterdir())


def test_an_upload_that_fails_begins_anew(server: Liar, store: ArtifactStore, pauses: list[float]) -> None:
    blob = Descriptor.of(ARTIFACTS["archive"], b"new")
    path = f"PUT /upload?digest=sha256%3A{blob.digest[7:]}"
    failing(server, path, [Answer(500), Answer(503)])
    store.put_blob(blob, b"new")
    assert [request.body for request in asked(server, "PUT")] == [b"new"] * 3
    assert len(asked(server, "POST")) == 3
    assert pauses == [*PAUSES[:2]]


def test_an_upload_whose_answer_is_lost_is_not_repeated(server: Liar, store: ArtifactStore) -> None:
    blob = Descriptor.of(ARTIFACTS["archive"], b"new")

    def stored(_request: Request) -> Answer:
        server.blobs[blob.digest] = b"new"
        return Answer(502)

    server.answers[f"PUT /upload?digest=sha256%3A{blob.digest[7:]}"] = stored
    store.put_blob(blob, b"new")
    assert len(asked(server, "PUT")) == 1


# Debian's registry rejects a right digest when it reads a link that a concurrent push is writing
@pytest.mark.parametrize("refused", [Answer(503), Answer(400, body=b'{"errors":[{"code":"DIGEST_INVALID"}]}')])
def test_a_tag_is_put_again(server: Liar, store: ArtifactStore, refused: Answer) -> None:
    failing(server, "PUT /manifests/1", [refused])
    store.put_document("1", index([]))
    assert json.loads(server.documents["1"])["mediaType"] == INDEX


def test_a_port_without_registry_is_asked_four_times(pauses: list[float]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        reference = parse_reference(f"oci://127.0.0.1:{taken.getsockname()[1]}/m/x:1")
        with pytest.raises(RegistryError, match="the connection fails"):
            pull(open_store(reference, wait=pauses.append))
    assert pauses == [*PAUSES]


@contextmanager
def wire(host: str, limits: list[tuple[int, int]]) -> Iterator[str]:
    """Yield a proxy whose connections to a host break after a number of bytes in either direction; later ones last."""
    name, _, port = host.partition(":")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    here, _ = listening.accept()
                    there = socket.create_connection((name, int(port)))
                    up, down = limits.pop(0) if limits else (1 << 40, 1 << 40)
                    ends = _both(here, there)
                    for source, target, most in ((here, there, up), (there, here, down)):
                        threading.Thread(target=_pass_on, args=(source, target, most, ends), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def _both(*sockets: socket.socket) -> Callable[[], None]:
    def end() -> None:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    return end


def _pass_on(source: socket.socket, target: socket.socket, most: int, end: Callable[[], None]) -> None:
    with suppress(OSError):
        while most and (data := source.recv(min(most, 1 << 16))):
            target.sendall(data)
            most -= len(data)
    end()


def test_a_real_registry_behind_a_bad_wire(tmp_path: Path) -> None:
    need("docker-registry", "docker-registry")
    content = bytes(range(256)) * 4096
    blob = Descriptor.of(ARTIFACTS["archive"], content)
    pauses: list[float] = []
    with docker_registry(tmp_path / "registry") as host:
        # its first connections break during an upload, the last ones during a download
        limits = [(200_000, 1 << 40), (900_000, 1 << 40)]
        with wire(host, limits) as bad:
            store = open_store(parse_reference(f"oci://{bad}/m/x:1"), wait=pauses.append)
            store.put_blob(blob, content)
            assert pauses == [*PAUSES[:2]]
        limits = [(1 << 40, 300_000), (1 << 40, 400_000)]
        with wire(host, limits) as bad:
            store = open_store(parse_reference(f"oci://{bad}/m/x:1"), wait=pauses.append)
            assert b"".join(checked(store.pieces(blob), blob, "here")) == content
            assert pauses == [*PAUSES[:2]] * 2

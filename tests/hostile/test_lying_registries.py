"""Registries and folders that lie, hang, redirect and deny: one error, bounded traffic, and no file written."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import resource
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlfc.errors import MlfcError, OptionError, OutputError, RegistryError
from mlfc.publish import http
from mlfc.publish.documents import (
    ARTIFACTS,
    CONFIG,
    INDEX,
    MANIFEST,
    MAX_DOCUMENT,
    MAX_ENTRIES,
    MODEL,
    TARGET,
    TITLE,
    Descriptor,
    digest_of,
    index,
    parse_document,
)
from mlfc.publish.reference import parse_reference
from mlfc.publish.remote import open_store
from mlfc.publish.retries import TRANSIENT
from mlfc.publish.store import ArtifactStore
from mlfc.publish.transfer import entries, pull
from tests.registry_servers import Answer, Liar, Request, liar
from tests.unit.test_cli import mlfc

pytestmark = pytest.mark.usefixtures("away_from_home")


def tar_of(name: str, size: int = 100) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        info = tarfile.TarInfo(f"folder/{name}")
        info.size = size
        tar.addfile(info, io.BytesIO(bytes(size)))
    return made.getvalue()


TAR = tar_of("x")
SOON = 0.05  # timeout for answers that never arrive, so the machine's load does not matter


def layer(data: bytes = TAR, title: str = "kws.tar", **changes: Any) -> dict[str, Any]:
    described = {"mediaType": ARTIFACTS["archive"], "digest": digest_of(data), "size": len(data)}
    return {**described, "annotations": {TITLE: title}, **changes}


def manifest(*layers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    head = {"schemaVersion": 2, "mediaType": MANIFEST, "artifactType": MODEL, "annotations": {TARGET: "c"}}
    config = {"mediaType": CONFIG, "digest": digest_of(b"{}"), "size": 2}
    return {**head, "config": config, "layers": [*layers] or [layer()], **changes}


@pytest.fixture
def server() -> Iterator[Liar]:
    with liar() as made:
        made.blobs[digest_of(TAR)] = TAR
        made.publish(manifest())
        yield made


def store_of(server: Liar, **settings: Any) -> ArtifactStore:
    return open_store(parse_reference(server.reference), **{"wait": lambda _seconds: None, **settings})


def refused(server: Liar, message: str, kind: type[MlfcError] = RegistryError, **settings: Any) -> None:
    """Check that a pull fails with one error and leaves no files."""
    with pytest.raises(kind, match=message):
        pull(store_of(server, **settings))
    assert not any(Path().iterdir())


BLOB = f"GET /blobs/{digest_of(TAR)}"


def test_what_is_told_truly_arrives(server: Liar) -> None:
    assert pull(store_of(server))[1:] == (Path("kws.tar"), None)
    assert Path("kws.tar").read_bytes() == TAR


def endless() -> Iterator[bytes]:
    while True:
        yield bytes(1 << 16)


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (TAR[:-1] + b"\1", {}, "expected bytes with the digest"),
        ([TAR[:-512]], {}, r"expected 10,240 bytes of sha256:\w+, got 9,728"),
        (TAR + bytes(512), {}, "the registry announces 10752"),
        ([TAR, bytes(512)], {}, "expected at most 10,240 bytes, got more"),
        (TAR[:-512], {"Content_Length": str(len(TAR))}, "the connection fails"),
        (TAR, {"Content_Encoding": "gzip"}, "got them compressed"),
        (endless(), {}, "expected at most 10,240 bytes, got more"),
    ],
    ids=["other", "short", "announced", "long", "cut", "gzip", "endless"],
)
def test_blobs_that_are_not_what_they_should_be(
    server: Liar, body: bytes | Iterator[bytes], headers: dict[str, str], message: str
) -> None:
    server.lie(BLOB, 200, body, **headers)
    refused(server, message)
    # the server stops after the bytes in the connection's buffers, although its body is endless
    assert server.sent < 64 << 20


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (b"<html>", {"Content_Type": "text/html"}, "invalid document"),
        (b"{}", {"Content_Type": MANIFEST}, "neither a manifest nor an index"),
        (b"[" * 100_000, {"Content_Type": MANIFEST}, "nested too deeply"),
        (b"[" + b"1," * 300_000 + b"1]", {"Content_Type": MANIFEST}, "too many values"),
        (json.dumps(manifest()).encode(), {"Content_Type": INDEX}, "expected media type .* the document declares"),
        (
            json.dumps(manifest()).encode(),
            {"Content_Type": MANIFEST, "Docker_Content_Digest": digest_of(b"")},
            "expected a manifest with the digest sha256:e3b0",
        ),
        (endless(), {"Content_Type": MANIFEST}, "expected at most 4,194,304 bytes"),
    ],
    ids=["html", "object", "deep", "values", "kind", "digest", "endless"],
)
def test_manifests_that_are_none(
    server: Liar, body: bytes | Iterator[bytes], headers: dict[str, str], message: str
) -> None:
    server.lie("GET /manifests/1", 200, body, **headers)
    refused(server, message)
    assert server.sent < MAX_DOCUMENT + (32 << 20)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (manifest(schemaVersion=1), "neither a manifest nor an index"),
        (manifest(mediaType="application/vnd.docker.distribution.manifest.v2+json"), "expected a manifest or an index"),
        (manifest(manifests=[]), "fields of the other type"),
        (manifest(layer(digest="sha256:../../x")), "expected a digest"),
        (manifest(layer(digest=digest_of(TAR).upper())), "expected a digest"),
        (manifest(layer(size=-1)), "expected a number of bytes"),
        (manifest(layer(size=True)), "expected a number of bytes"),
        (manifest(layer(mediaType="")), "expected a media type"),
        (manifest(layer(annotations={TITLE: 1})), "expected a string"),
        (manifest(layer(annotations=[])), "annotations must be strings"),
        (manifest(layer(mediaType="application/vnd.oci.image.layer.v1.tar+gzip")), "got application/vnd.oci.image.lay"),
        (manifest(layer(), layer()), "expected one artifact"),
        (manifest(layers=[layer()] * (MAX_ENTRIES + 1)), "at most 1,000 entries"),
        (manifest(layer(title="kws.a", mediaType=ARTIFACTS["library"])), "not of the declared media type"),
        (manifest(layer(b"missing")), "listed, but missing"),
    ],
)  # fmt: skip
def test_manifests_that_say_what_cannot_be(server: Liar, document: dict[str, Any], message: str) -> None:
    server.publish(json.dumps(document).encode())
    media_type = document["mediaType"]
    server.lie("GET /manifests/1", 200, server.documents["1"], Content_Type=media_type)
    refused(server, message)


@pytest.mark.parametrize(
    "title",
    ["../kws.tar", "/tmp/kws.tar", "..", "", ".bashrc.tar", "a/b.tar", "a\\b.tar", "-x.tar", "conftest.py", "a\0.tar",
     "a\n.tar", "Makefile", "x" * 200 + ".tar", "numpy.so", "readline.cpython-311-x86_64-linux-gnu.so", "_x.abi3.so",
     "libc.so.6", "kernel32.dll", "libm.dylib", "x.pyd", "x.pth", "sitecustomize.py", "kws.o", "kws.tar.so"],
)  # fmt: skip
def test_titles_that_are_no_plain_names(server: Liar, title: str) -> None:
    server.publish(manifest(layer(title=title)))
    refused(server, "safe to write here", OptionError)
    assert pull(store_of(server), Path("mine.tar"))[1] == Path("mine.tar")


def test_a_title_replaces_no_file(server: Liar) -> None:
    Path("kws.tar").write_bytes(b"mine")
    with pytest.raises(OutputError, match="a file of this name exists"):
        pull(store_of(server))
    assert Path("kws.tar").read_bytes() == b"mine"
    pull(store_of(server), force=True)
    pull(store_of(server))  # identical bytes are not a conflict
    assert Path("kws.tar").read_bytes() == TAR


def index_of(*documents: bytes, **changes: Any) -> dict[str, Any]:
    items = [
        {"mediaType": MANIFEST, "digest": digest_of(data), "size": len(data), "annotations": {TARGET: f"t{number}"}}
        for number, data in enumerate(documents)
    ]
    return {"schemaVersion": 2, "mediaType": INDEX, "manifests": [{**item, **changes} for item in items]}


def test_an_index_that_lies_of_its_manifests(server: Liar) -> None:
    data = server.documents["1"]
    for change, message in (
        ({"size": 1}, "expected 1 bytes"),
        ({"size": MAX_DOCUMENT + 1}, "exceeds"),
        ({"digest": digest_of(b"missing")}, "listed, but missing"),
        ({"mediaType": INDEX}, "expected manifests in the index"),
    ):
        server.publish(index_of(data, **change))
        refused(server, message)
    server.publish(index_of(data))
    server.lie(f"GET /manifests/{digest_of(data)}", 200, data.replace(b"kws", b"ksw"), Content_Type=MANIFEST)
    refused(server, "expected a manifest with the digest")


def test_the_target_decides_which_manifest_is_asked_for(server: Liar) -> None:
    data = server.documents["1"]
    server.publish(index_of(data, b"never read"))
    refused(server, "there are artifacts for 2 targets: 't0', 't1'", OptionError)
    with pytest.raises(OptionError, match="unknown target 't2'; available: 't0', 't1'"):
        pull(store_of(server), target="t2")
    assert pull(store_of(server), target="t0")[0].artifact.digest == digest_of(TAR)
    assert not any(digest_of(b"never read") in request.path for request in server.requests)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, r"access is denied \(401\): no \[31mway.* docker login"),
        (403, r"access is forbidden \(403\)"),
        (404, "'1' does not exist"),
        (429, r"limits the rate of requests \(429\)"),
        (500, "answers 500 to GET"),
        (302, "answers 302 to GET"),
    ],
)
def test_refusals(server: Liar, status: int, message: str) -> None:
    said = json.dumps({"errors": [{"code": "DENIED", "message": "no \x1b[31mway\n" + "x" * 1000}]}).encode()
    server.lie("GET /manifests/1", status, said)
    with pytest.raises(RegistryError) as caught:
        pull(store_of(server))
    if status not in TRANSIENT:  # otherwise the program would wait and retry
        done = mlfc("pull", server.reference, cwd=Path.cwd())
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: {server.host and 'oci://'}")
        assert len(done.stderr) < 500
        assert "\x1b" not in done.stderr
    assert not any(Path().iterdir())
    assert re.search(message.replace(r"\[31m", r"\x1b\[31m"), str(caught.value))


@pytest.mark.parametrize("scheme", ["Basic realm=", "Bearer realm=", "Bearer service=x,realm=", "Strange "])
def test_challenges_that_lead_nowhere(server: Liar, scheme: str) -> None:
    for realm in (f"http://{server.host}/token", "http://127.0.0.1:1/token", "file:///etc/passwd", "", "x" * 5000):
        server.lie("GET /manifests/1", 401, b"", Www_Authenticate=f'{scheme}"{realm}"')
        refused(server, r"access is denied|the connection fails")


def test_a_token_is_fetched_with_the_credentials_of_docker(
    server: Liar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = base64.b64encode(b"me:geheim").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {server.host: {"auth": known}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    honest = server.answer

    def answer(request: Request) -> Answer:
        given = request.headers.get("Authorization")
        if request.path.startswith("/token"):
            return Answer(200 if given == f"Basic {known}" else 401, body=b'{"token":"T"}')
        if given != "Bearer T":
            return Answer(401, {"Www-Authenticate": f'Bearer realm="http://{server.host}/token",service="s",scope="p"'})
        return honest(request)

    monkeypatch.setattr(server, "answer", answer)
    pull(store_of(server))
    assert sum(request.path.startswith("/token") for request in server.requests) == 1
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(RegistryError, match=r"the credentials of .* cannot be read"):
        store_of(server)


def test_redirections_end_and_take_no_credentials_along(server: Liar, monkeypatch: pytest.MonkeyPatch) -> None:
    server.lie(BLOB, 307, b"", Location=f"/v2/m/x/blobs/{digest_of(TAR)}")
    refused(server, "redirects more than 5 times")
    honest = server.answer

    def answer(request: Request) -> Answer:
        if request.path.startswith("/token"):
            return Answer(200, body=b'{"token":"T"}')
        if request.headers.get("Authorization") != "Bearer T":
            return Answer(401, {"Www-Authenticate": f'Bearer realm="http://{server.host}/token"'})
        return honest(request)

    monkeypatch.setattr(server, "answer", answer)
    with liar() as other:
        other.blobs[digest_of(TAR)] = TAR
        # another name of this machine counts as another host
        elsewhere = other.host.replace("127.0.0.1", "localhost")
        server.lie(BLOB, 307, b"", Location=f"http://{elsewhere}/v2/m/x/blobs/{digest_of(TAR)}")
        pull(store_of(server))
        assert [request.headers.get("Authorization") for request in other.requests] == [None]


def test_a_registry_that_never_answers(server: Liar) -> None:
    released = threading.Event()

    def silence() -> Iterator[bytes]:
        released.wait()
        yield b""

    try:
        server.lie(BLOB, 200, silence())
        refused(server, "no data from or to the registry for 0.05 s", timeout=SOON)
    finally:
        released.set()


def test_bytes_that_come_too_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(0, 10_000, 20))
    monkeypatch.setattr(http, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    drops = SimpleNamespace(read1=lambda _size, decode_content: b"x", close=lambda: None)
    with pytest.raises(RegistryError, match="the response is too slow: 2 bytes in"):
        list(http.read_answer(drops, 1000, 30, "here"))


def test_tls_is_not_left() -> None:
    session = http.bounded_session(1, plain_http=False, is_local=False)
    with pytest.raises(RegistryError, match="from https to plain http"):
        session.get("http://127.0.0.1:1/token")


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        ([[]], "the response is not a list"),
        ([{"tags": "abc"}], "the response is not a list of tags"),
        ([{"tags": ["../x"]}], "the response is not a list of tags"),
        ([{"tags": [f"t{number}" for number in range(10_001)]}], "more than 10,000 tags"),
    ],
)
def test_lists_of_tags_that_are_none(server: Liar, pages: list[Any], message: str) -> None:
    server.lie("GET /tags/list", 200, json.dumps(pages[0]).encode())
    with pytest.raises(RegistryError, match=message):
        store_of(server).tags()


def test_pages_of_tags_end(server: Liar) -> None:
    count = iter(range(1_000_000))

    def page(_request: Request) -> Answer:
        number = next(count)
        following = {"Link": f'</v2/m/x/tags/list?last={number}>; rel="next"'}
        return Answer(200, following, json.dumps({"tags": [f"t{number}"]}).encode())

    server.answers = {f"GET /tags/list{query}": page for query in ("", *(f"?last={number}" for number in range(1000)))}
    assert len(store_of(server).tags()) == 100


def test_a_full_disk_is_seen_before_and_while_writing(server: Liar) -> None:
    server.publish(manifest(layer(size=(1 << 53) - 1)))
    refused(server, "more than the free space", OutputError)
    data = tar_of("x", 1 << 20)
    server.blobs[digest_of(data)] = data
    server.publish(manifest(layer(data)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, hard))
    try:
        refused(server, "cannot be written", OutputError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert mlfc("pull", server.reference, "-o", "/dev/full", cwd=Path.cwd()).returncode == 2


@pytest.mark.parametrize(
    ("path", "status", "headers", "message"),
    [
        ("POST /blobs/uploads/", 202, {}, "returns no URL for it"),
        ("POST /blobs/uploads/", 202, {"Location": "file:///etc/passwd"}, "the connection fails"),
        ("POST /blobs/uploads/", 403, {}, "forbidden"),
        ("PUT /upload", 500, {}, "answers 500 to PUT"),
        ("PUT /manifests/1", 201, {"Docker_Content_Digest": digest_of(b"")}, "the registry reports sha256:e3b0"),
        ("PUT /manifests/1", 413, {}, "answers 413 to PUT"),
    ],
)
def test_pushes_that_fail_leave_the_tag(
    server: Liar, tmp_path: Path, path: str, status: int, headers: dict[str, str], message: str
) -> None:
    store = store_of(server)
    before = server.documents["1"]
    blob = Descriptor.of(ARTIFACTS["archive"], b"new")
    upload = f"{path}?digest=sha256%3A{blob.digest[7:]}" if path.endswith("/upload") else path
    server.lie(upload, status, b"", **headers)

    def put() -> None:
        store.put_blob(blob, b"new")
        store.put_document("1", index([], MODEL))

    with pytest.raises(RegistryError, match=message):
        put()
    assert server.documents["1"] == before


def test_an_upload_elsewhere_gets_no_credentials(server: Liar) -> None:
    store = store_of(server)
    store._accepted = {"Authorization": "Bearer T"}  # type: ignore[attr-defined]
    with liar() as other:
        server.lie("POST /blobs/uploads/", 202, b"", Location=f"http://{other.host}/v2/m/x/upload?state=1")
        store.put_blob(Descriptor.of("x/y", b"new"), b"new")
        assert [(request.body, request.headers.get("Authorization")) for request in other.requests] == [(b"new", None)]
    assert server.requests[0].headers["Authorization"] == "Bearer T"


def test_documents_are_small() -> None:
    with pytest.raises(RegistryError, match="exceeds 4,194,304 bytes"):
        parse_document(b" " * (MAX_DOCUMENT + 1), "here")


@pytest.mark.parametrize(
    "text",
    ["kws", "http://host/x", "oci://", "oci://host", "oci://host/", "oci://host/X:1", "oci://ho st/x", "oci://host/x:",
     "oci://host/../x", "oci://host/x@sha256:1", "oci://host/x:a/b", "oci://me:you@host/x", "oci://host/x?y", "oci:///x",
     "oci-layout:", "oci-layout:a\0b", "oci://host/" + "a" * 300, "oci://host/" + "a-" * 100],
)  # fmt: skip
def test_references_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match="expected oci://HOST/NAME:TAG"):
        parse_reference(text)


def layout(folder: Path, **files: bytes) -> ArtifactStore:
    """Return a folder with a valid artifact, some of whose files are replaced."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    data = json.dumps(manifest()).encode()
    for content in (TAR, data):
        (blobs / digest_of(content)[7:]).write_bytes(content)
    described = {"mediaType": MANIFEST, "digest": digest_of(data), "size": len(data)}
    named = {**described, "annotations": {"org.opencontainers.image.ref.name": "1"}}
    listed = {"schemaVersion": 2, "manifests": [named]}
    (folder / "oci-layout").write_bytes(files.get("mark", b'{"imageLayoutVersion":"1.0.0"}'))
    (folder / "index.json").write_bytes(files.get("index", json.dumps(listed).encode()))
    if "blob" in files:
        (blobs / digest_of(TAR)[7:]).write_bytes(files["blob"])
    if "manifest" in files:
        (blobs / digest_of(data)[7:]).write_bytes(files["manifest"])
    return open_store(parse_reference(f"oci-layout:{folder}:1"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"mark": b'{"imageLayoutVersion":"2.0.0"}'}, "does not declare version 1"),
        ({"mark": b"[]"}, "does not declare version 1"),
        ({"mark": b" " * 5000}, "oci-layout exceeds"),
        ({"index": b" " * (MAX_DOCUMENT + 1)}, "index.json exceeds"),
        ({"index": b"{"}, "index.json: invalid document"),
        ({"blob": TAR[:-1]}, "expected 10,240 bytes"),
        ({"blob": TAR[:-1] + b"\1"}, "expected bytes with the digest"),
        ({"manifest": b"{}"}, "expected a manifest with the digest"),
    ],
)
def test_folders_that_lie(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        pull(layout(tmp_path / "folder", **files))
    assert not any(Path().iterdir())


def test_a_folder_with_pipes_and_without_files(tmp_path: Path) -> None:
    store = layout(tmp_path / "folder")
    assert pull(store, Path("good.tar"))[1].read_bytes() == TAR
    blob = tmp_path / "folder" / "blobs" / "sha256" / digest_of(TAR)[7:]
    blob.unlink()
    os.mkfifo(blob)  # reading it would block for ever
    with pytest.raises(RegistryError, match="cannot be read"):
        pull(store, Path("bad.tar"))
    (tmp_path / "folder" / "oci-layout").unlink()
    with pytest.raises(RegistryError, match="not an OCI layout"):
        entries(store)
    assert [*Path().iterdir()] == [Path("good.tar")]

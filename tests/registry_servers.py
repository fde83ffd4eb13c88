"""Registries for tests: Debian's `docker-registry`, and an in-process one that returns wrong answers on request."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mlfc.publish.documents import INDEX, digest_of

# "me" with the password "geheim", in the only form that the registry reads
CREDENTIALS = "me:$2y$05$abcdefghijklmnopqrstuuVWu8RjbNovPZWAMRdd7iqaaG0mI53Uu\n"


@contextmanager
def docker_registry(folder: Path, users: str = "") -> Iterator[str]:
    """Run a registry on a free port of the loopback address; yield its host and port."""
    folder.mkdir()
    config: dict[str, Any] = {
        "version": "0.1",
        "log": {"level": "info", "formatter": "json", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}, "maintenance": {}},
        "http": {"addr": "127.0.0.1:0"},
    }
    if users:
        (folder / "htpasswd").write_text(users)
        config["auth"] = {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    command = ["docker-registry", "serve", str(folder / "config.yml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"listening on (127\.0\.0\.1:\d+)", line):
                    break
            else:
                raise AssertionError("the registry ended: " + "".join(said))
            # the registry blocks when its output pipe is full
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield found[1]
        finally:
            process.kill()


@dataclass
class Answer:
    """A response of the lying registry."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | Iterable[bytes] = b""


@dataclass
class Request:
    """A request that the lying registry received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Liar:
    """A registry with one repository ``m/x`` whose answers a test replaces.

    Attributes
    ----------
    documents : dict of str to bytes
        By tag and by digest.
    blobs : dict of str to bytes
        By digest.
    answers : dict of str to function
        Replacement answers by method and path below the repository.
    requests : list of Request
        All requests received so far.
    sent : int
        Bytes sent of endless bodies.
    """

    def __init__(self) -> None:
        self.documents: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.answers: dict[str, Callable[[Request], Answer]] = {}
        self.requests: list[Request] = []
        self.sent = 0
        self.host = ""

    @property
    def reference(self) -> str:
        """The reference of the artifact that tests pull."""
        return f"oci://{self.host}/m/x:1"

    def lie(self, path: str, status: int = 200, body: bytes | Iterable[bytes] = b"", **headers: str) -> None:
        """Replace the answer to a method and path."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers[path] = lambda _request: Answer(status, named, body)

    def publish(self, document: dict[str, Any] | bytes, tag: str = "1") -> str:
        """Store a document under a tag and its digest; return the digest."""
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.documents[tag] = self.documents[digest_of(data)] = data
        return digest_of(data)

    def answer(self, request: Request) -> Answer:
        """Return the replaced answer to a request, or that of an honest registry if the test replaced none."""
        _, _, path = request.path.partition("/v2/m/x")
        given = self.answers.get(f"{request.method} {path}")
        if given is not None:
            return given(request)
        kind, _, name = path.lstrip("/").partition("/")
        if request.method in ("GET", "HEAD"):
            found = {"manifests": self.documents, "blobs": self.blobs}.get(kind, {}).get(name)
            if found is None:
                return Answer(404, body=b'{"errors":[{"code":"UNKNOWN","message":"none here"}]}')
            media_type = (
                json.loads(found).get("mediaType", INDEX) if kind == "manifests" else "application/octet-stream"
            )
            return Answer(200, {"Content-Type": media_type}, found)
        if request.method == "POST":
            return Answer(202, {"Location": "/v2/m/x/upload"})
        if kind == "manifests":
            self.documents[name] = self.documents[digest_of(request.body)] = request.body
        return Answer(201)


@contextmanager
def liar() -> Iterator[Liar]:
    """Run a lying registry in threads of this process."""
    made = Liar()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.command, self.path, dict(self.headers), body)
            made.requests.append(request)
            given = made.answer(request)
            self.send_response(given.status)
            plain = given.body if isinstance(given.body, bytes) else None
            headers = dict(given.headers)
            if plain is not None:
                headers.setdefault("Content-Length", str(len(plain)))
            else:
                headers["Connection"] = "close"
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                for piece in (plain,) if plain is not None else given.body:
                    if self.command != "HEAD":
                        self.wfile.write(piece)
                        made.sent += len(piece)
            except OSError:
                pass
            self.close_connection = plain is None or len(plain) != int(headers["Content-Length"])

        do_GET = do_HEAD = do_POST = do_PUT = _serve  # noqa: N815

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        made.host = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()

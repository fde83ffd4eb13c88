"""A registry that implements OCI's distribution protocol.

The client library `oras` provides the login: credential files and helpers, and the token exchange. Its transfers are
not used: they trust sizes, digests, titles and redirections, wait without limit between attempts, and keep uploads in
memory.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from mlfc.errors import ArchiveError, RegistryError
from mlfc.publish.documents import INDEX, MANIFEST, MAX_DOCUMENT, Descriptor, Document, digest_of, index, parse_document
from mlfc.publish.reference import DIGEST, ArtifactReference, is_tag
from mlfc.publish.retries import TRANSIENT, Retries, TransientError, retry_after
from mlfc.publish.store import ArtifactStore
from mlfc.support.content import Data, chunks_of, nbytes_of
from mlfc.support.json_text import parse_json
from mlfc.support.text import shortened

TIMEOUT = 30.0
"""Maximum seconds without data from or to the registry."""
_MAX_PAGES = 100
_MAX_TAGS = 10_000
_SHOWN_TEXT = 200
_ATTEMPTS = 3


class _RequestBody:
    """A request body that is sent again from its start if the registry first requires a token."""

    def __init__(self, data: Data) -> None:
        self._data = data

    def __len__(self) -> int:
        return nbytes_of(self._data)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        return chunks_of(self._data)


class RemoteStore:
    """A repository of a registry."""

    def __init__(
        self, reference: ArtifactReference, *, plain_http: bool, timeout: float, wait: Callable[[float], object]
    ) -> None:
        try:
            import oras.auth
            import oras.container
            import oras.logger
        except ImportError as error:
            step = 'Run in a checkout of mlfc: pip install ".[registry]"'
            raise RegistryError(f"the package {error.name} is missing", place=str(reference), next_step=step) from error
        from mlfc.publish.http import bounded_session

        self.reference = reference
        self._timeout = timeout
        self._tried = Retries(wait)
        plain = plain_http or reference.is_local
        # the only registry whose name is not its address
        is_docker_hub = reference.host in ("docker.io", "index.docker.io")
        host = "registry-1.docker.io" if is_docker_hub else reference.host
        name = f"library/{reference.name}" if is_docker_hub and "/" not in reference.name else reference.name
        self._root = f"{'http' if plain else 'https'}://{host}/v2/{name}"
        self._session = bounded_session(timeout, plain_http=plain, is_local=reference.is_local)
        # it would print errors that are raised here, or ignored
        oras.logger.logger.set_level(logging.CRITICAL)
        self._container = oras.container.Container(f"{reference.host}/{reference.name}")
        self._container.registry = reference.host
        self._backends = {kind: self._login(oras.auth, kind, plain) for kind in ("token", "basic")}
        self._accepted: dict[str, str] = {}  # the Authorization header that the registry accepted

    def _login(self, auth: Any, kind: str, plain: bool) -> Any:
        """Return the login, by tokens or by name and password, with the credentials for the host, if any."""
        backend = auth.get_auth_backend(kind, self._session, insecure=plain)
        folder = os.environ.get("DOCKER_CONFIG")
        config = Path(folder, "config.json") if folder else None
        try:
            backend.load_configs(self._container, [str(config)] if config and config.exists() else None)
        except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
            raise RegistryError(
                f"the credentials of {self.reference.host} cannot be read: {shortened(str(error))}",
                place=str(config or "~/.docker/config.json"),
                next_step=f"Log in again: docker login {self.reference.host}",
            ) from error
        return backend

    def document(self, wanted: str) -> Document | None:
        """Return the manifest or index of a tag or digest, or None."""
        answer = self._ask("GET", f"/manifests/{wanted}", {"Accept": f"{INDEX}, {MANIFEST}"}, missing=True)
        if answer is None:
            return None
        data = answer.content
        reported = answer.headers.get("Docker-Content-Digest")
        for promised in (reported, wanted):
            if promised and DIGEST.fullmatch(promised) and promised != digest_of(data):
                raise self._fault(f"expected a manifest with the digest {promised}, got {digest_of(data)}")
        media_type = (answer.headers.get("Content-Type") or "").partition(";")[0].strip()
        return parse_document(data, str(self.reference), media_type or None)

    def put_document(self, name: str, document: Document) -> Any:
        """Store a manifest or index under a tag, or under its digest; return the registry's response."""
        answer = self._ask("PUT", f"/manifests/{name}", {"Content-Type": document.media_type}, document.data)
        reported = answer.headers.get("Docker-Content-Digest")
        if reported and reported != document.digest:
            raise self._fault(f"expected the stored digest {document.digest}, the registry reports {reported}")
        return answer

    def pieces(self, blob: Descriptor) -> Iterator[bytes]:
        """Yield the bytes of a blob as they arrive; after a lost connection, resume at the next byte."""
        found = 0
        for tried in count():
            try:
                for piece in self._pieces_from(found, blob):
                    found += len(piece)
                    yield piece
                return
            except TransientError as error:
                if found >= blob.size:  # the connection was lost after the last byte
                    return
                self._tried.pause(tried, error)

    def _pieces_from(self, start: int, blob: Descriptor) -> Iterator[bytes]:
        from mlfc.publish.http import explained, read_answer

        headers = {"Range": f"bytes={start}-"} if start else None
        answer = self._ask_once("GET", f"/blobs/{blob.digest}", headers, stream=True, missing=True)
        if answer is None:
            raise self._fault(f"the blob {blob.digest} is listed, but missing")
        with explained(str(self.reference), self._timeout), answer:
            # a registry without range support starts at the first byte
            passed = start if answer.status_code != 206 else 0
            expected = blob.size - start + passed
            length = answer.headers.get("Content-Length", "")
            if length.isascii() and length.isdecimal() and int(length[:20]) != expected:
                raise self._fault(f"expected {expected:,} bytes of {blob.digest}, the registry announces {length[:20]}")
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise self._fault(f"expected the bytes of {blob.digest} as they are, got them compressed")
            for piece in read_answer(answer.raw, expected, self._timeout, str(self.reference)):
                if passed < len(piece):
                    yield piece[passed:]
                passed = max(0, passed - len(piece))

    def put_blob(self, blob: Descriptor, data: Data) -> None:
        """Store a blob unless it exists; an interrupted upload starts again."""
        self._tried(lambda: self._put_blob(blob, data))

    def _put_blob(self, blob: Descriptor, data: Data) -> None:
        found = self._ask_once("HEAD", f"/blobs/{blob.digest}", missing=True)
        if found is not None and found.headers.get("Content-Length") == str(blob.size):
            return
        begun = self._ask_once("POST", "/blobs/uploads/", {"Content-Length": "0"})
        place = begun.headers.get("Location")
        if not place:
            raise self._fault("the registry accepts an upload but returns no URL for it")
        url = urljoin(begun.url, place)
        url += f"{'&' if urlsplit(url).query else '?'}{urlencode({'digest': blob.digest})}"
        self._ask_once("PUT", url, {"Content-Type": "application/octet-stream"}, _RequestBody(data))

    def tags(self) -> list[str]:
        """Return the sorted tags."""
        found: set[str] = set()
        for page, _ in self._pages("/tags/list"):
            names = page.get("tags") or []
            if not isinstance(names, list) or not all(isinstance(name, str) and is_tag(name) for name in names):
                raise self._fault("the response is not a list of tags")
            if len(found) + len(names) > _MAX_TAGS:
                raise self._fault(f"there are more than {_MAX_TAGS:,} tags")
            found.update(names)
        return sorted(found)

    def attach(self, document: Document) -> None:
        """Store a manifest that has a subject; if the registry has no list of referrers, in the fallback tag."""
        answer = self.put_document(document.digest, document)
        assert document.subject is not None  # callers attach manifests with a subject
        if answer.headers.get("OCI-Subject") == document.subject.digest:
            return
        # without a compare-and-swap a concurrent push may win: check, and repeat
        for _ in range(_ATTEMPTS):
            others = self._listed_in_tag(document.subject)
            if any(item.digest == document.digest for item in others):
                return
            self.put_document(_tag_of(document.subject), index([*others, document.described(document.annotations)]))

    def attached(self, subject: Descriptor) -> list[Descriptor]:
        """Return the manifests that are attached to another one."""
        found: list[Descriptor] = []
        for _, data in self._pages(f"/referrers/{subject.digest}", missing=True):
            found += parse_document(data, str(self.reference), INDEX).manifests
        return found or self._listed_in_tag(subject)

    def _listed_in_tag(self, subject: Descriptor) -> list[Descriptor]:
        found = self.document(_tag_of(subject))
        return list(found.manifests) if found else []

    def _pages(self, path: str, *, missing: bool = False) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield the objects of a paginated list, and their bytes."""
        place = str(self.reference)
        seen: set[str] = set()
        url = path
        while url not in seen and len(seen) < _MAX_PAGES:
            seen.add(url)
            answer = self._ask("GET", url, missing=missing)
            if answer is None:
                return
            try:
                value = parse_json(answer.content, place)
            except ArchiveError as error:
                raise self._fault(f"the response is not a list: {error.cause}") from None
            if not isinstance(value, dict):
                raise self._fault("the response is not a list")
            yield value, answer.content
            following = answer.links.get("next", {}).get("url")
            if not following:
                return
            url = urljoin(answer.url, following)

    def _ask(self, *request: Any, missing: bool = False) -> Any:
        """Send a request as `_ask_once`, and again after transient failures: requests must be idempotent."""
        return self._tried(lambda: self._ask_once(*request, missing=missing))

    def _ask_once(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        data: bytes | _RequestBody | None = None,
        *,
        stream: bool = False,
        missing: bool = False,
    ) -> Any:
        """Send a request, with a token if the registry requires one, and return the response.

        A `path` may be a complete URL from the registry; credentials are sent only to the registry. None is returned
        if the resource does not exist and may be `missing`; other failures raise RegistryError.
        """
        from mlfc.publish.http import explained

        url = path if "://" in path else f"{self._root}{path}"
        is_ours = urlsplit(url)[:2] == urlsplit(self._root)[:2]
        sent = dict(headers or {})
        with explained(str(self.reference), self._timeout):
            known = self._accepted if is_ours else {}
            answer = self._session.request(method, url, headers={**sent, **known}, data=data, stream=stream)
            if is_ours and answer.status_code in (401, 403):
                self._accepted = self._credentials(answer)
                if self._accepted:
                    sent.update(self._accepted)
                    answer = self._session.request(method, url, headers=sent, data=data, stream=stream)
        if missing and answer.status_code == 404:
            return None
        if not 200 <= answer.status_code < 300:
            raise self._refusal(answer)
        return answer

    def _credentials(self, answer: Any) -> dict[str, str]:
        """Return the header that the response requires; empty without credentials for the host."""
        challenge = answer.headers.get("Www-Authenticate", "")
        backend = self._backends["basic" if challenge.lower().startswith("basic") else "token"]
        try:
            found, changed = backend.authenticate_request(answer, {}, refresh=True)
        except (AttributeError, KeyError, TypeError, ValueError):
            # the package's errors for missing credentials, and for a response of the token server without a token
            return {}
        return {str(key): str(value) for key, value in found.items()} if changed else {}

    def _refusal(self, answer: Any) -> RegistryError:
        """Return the error for an unsuccessful response."""
        status = answer.status_code
        try:
            first = parse_json(answer.content[:MAX_DOCUMENT], "")["errors"][0]
            said = shortened(" ".join(str(first.get("message") or first.get("code")).split()), _SHOWN_TEXT)
            code = first.get("code")
        except (ArchiveError, KeyError, IndexError, TypeError, AttributeError):
            said, code = "", None
        text = f": {said}" if said else ""
        host = self.reference.host
        if status == 401:
            return self._fault(f"access is denied (401){text}", f"Log in: docker login {host}")
        if status == 403:
            return self._fault(f"access is forbidden (403){text}", f"Request access, or log in: docker login {host}")
        if status == 404:
            return self._fault(f"the repository does not exist (404){text}", "Check the name")
        cause = f"the registry answers {status} to {answer.request.method}{text}"
        if status == 429:
            cause = f"the registry limits the rate of requests (429){text}"
        # a registry may read a link that a concurrent push is writing, and then reject a right digest
        if status not in TRANSIENT and code != "DIGEST_INVALID":
            return self._fault(cause, "Try again later")
        error = TransientError(cause, place=str(self.reference), next_step="Try again later")
        error.pause = retry_after(answer.headers.get("Retry-After"))
        return error

    def _fault(self, cause: str, next_step: str | None = None) -> RegistryError:
        return RegistryError(
            cause, place=str(self.reference), next_step=next_step or "The registry cannot be trusted with this artifact"
        )


def _tag_of(subject: Descriptor) -> str:
    """Return the fallback tag for manifests that are attached to a manifest, if a registry does not list them."""
    return subject.digest.replace(":", "-")


def open_store(
    reference: ArtifactReference,
    *,
    plain_http: bool = False,
    timeout: float = TIMEOUT,
    wait: Callable[[float], object] = time.sleep,
) -> ArtifactStore:
    """Return the store of a reference; raise RegistryError if a package for it is missing.

    Parameters
    ----------
    reference : Reference
    plain_http : bool
        Allow requests without TLS to other machines.
    timeout : float
    wait : callable
        Function that waits for some seconds before a retry.
    """
    if not reference.host:
        from mlfc.publish.layout import LayoutStore

        return LayoutStore(reference)
    return RemoteStore(reference, plain_http=plain_http, timeout=timeout, wait=wait)

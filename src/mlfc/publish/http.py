"""Requests to registries with limits: seconds without data, bytes of a response, redirections, and their targets.

The client library's `requests` sessions have no limits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter

from mlfc.errors import RegistryError
from mlfc.publish.documents import MAX_DOCUMENT
from mlfc.publish.retries import TransientError
from mlfc.support.text import shortened
from mlfc.support.version import __version__

_PIECE = 1 << 20
_MAX_REDIRECTS = 5
# a body may be slow, but a megabyte may not take more than a quarter of an hour
_SLOWEST = 1024


class _Adapter(HTTPAdapter):  # type: ignore[misc]  # the package has no types
    """Adapter that adds a timeout to requests, and limits responses that are not streamed to the size of a document."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout

    def send(self, request: Any, stream: bool = False, **settings: Any) -> Any:
        settings["timeout"] = (self._timeout, self._timeout)
        answer = super().send(request, stream=True, **settings)
        if not stream or answer.status_code not in (200, 206):
            raw = answer.raw
            answer.raw = BytesIO(b"".join(read_answer(raw, MAX_DOCUMENT, self._timeout, request.url)))
            raw.release_conn()
        return answer


class _NoPlainHttp(HTTPAdapter):  # type: ignore[misc]  # as above
    """Adapter that rejects requests without TLS: a redirection, an upload URL, a token server."""

    def send(self, request: Any, *_args: Any, **_settings: Any) -> Any:
        raise RegistryError(
            "the registry redirects from https to plain http, which is not encrypted",
            place=shortened(request.url, 100),
            next_step="Ask its administrator",
        )


def bounded_session(timeout: float, *, plain_http: bool, is_local: bool) -> Any:
    """Return a `requests` session for the client library."""
    session = requests.Session()
    session.mount("https://", _Adapter(timeout))
    session.mount("http://", _Adapter(timeout) if plain_http else _NoPlainHttp())
    session.max_redirects = _MAX_REDIRECTS
    # sizes and digests are of stored bytes, without a server's compression
    session.headers.update({"Accept-Encoding": "identity", "User-Agent": f"mlfc/{__version__}"})
    # headers of requests must not be replaced by a line of .netrc
    session.auth = lambda request: request
    # proxies are for other machines
    session.trust_env = not is_local
    return session


def read_answer(raw: Any, limit: int, timeout: float, place: str) -> Iterator[bytes]:
    """Yield the bytes of a response as they arrive; raise RegistryError if they are too many or too slow."""
    found, begin = 0, time.monotonic()
    while piece := raw.read1(min(_PIECE, limit - found + 1), decode_content=False):
        found += len(piece)
        if found > limit:
            raw.close()
            raise RegistryError(
                f"expected at most {limit:,} bytes, got more",
                place=shortened(place, 100),
                next_step="Nothing was written. Ask the registry's administrator",
            )
        yield piece
        if time.monotonic() - begin > timeout + found / _SLOWEST:
            raw.close()
            raise RegistryError(
                f"the response is too slow: {found:,} bytes in {time.monotonic() - begin:.0f} s",
                place=shortened(place, 100),
                next_step="Try again later, or raise --timeout",
            )


@contextmanager
def explained(place: str, timeout: float) -> Iterator[None]:
    """Convert exceptions of the packages to one RegistryError."""
    try:
        yield
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        kind: type[RegistryError] = RegistryError
        if isinstance(error, (requests.Timeout, urllib3.exceptions.TimeoutError)):
            cause = f"no data from or to the registry for {timeout:g} s"
            step = "Check the network and the host's name, or raise --timeout"
        elif isinstance(error, requests.exceptions.SSLError):
            cause = f"the TLS connection fails: {_reason(error)}"
            step = (
                "Check the host's certificate; REQUESTS_CA_BUNDLE=FILE adds authorities; --plain-http is for "
                "registries without TLS"
            )
        elif isinstance(error, requests.TooManyRedirects):
            cause = f"the registry redirects more than {_MAX_REDIRECTS} times"
            step = "Ask its administrator"
        else:
            cause = f"the connection fails: {_reason(error)}"
            step = "Check the network and the host's name, and try again"
            # refused, cut or reset, unlike a connection to an unknown host
            passing = (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)
            if isinstance(error, (*passing, urllib3.exceptions.ProtocolError)):
                kind = RegistryError if "NameResolutionError" in repr(error) else TransientError
        raise kind(cause, place=place, next_step=step) from error


def _reason(error: BaseException) -> str:
    """Return the innermost reason as text."""
    inner: Any = error
    while True:
        reason = getattr(inner, "reason", None)
        further = next((item for item in (reason, *inner.args) if isinstance(item, BaseException)), None)
        if further is None:
            break
        inner = further
    text = getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
    return shortened(text.rpartition(">: ")[2] or text, 200)

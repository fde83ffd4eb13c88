"""Wire format of the Project API: one JSON-RPC request or reply per line, bytes as base85 text."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, BinaryIO

PROTOCOL_VERSION = 1
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
SERVER_ERROR = -32000
MAX_LINE = 64 << 20
"""Maximum bytes of a line, enough for a model's tensors in base85."""

_METHOD = re.compile(r"[a-zA-Z0-9_]+")
_DISCARDED = 1 << 16
_NUMBER_OR_NONE = (int, float, type(None))
METHODS: Mapping[str, Mapping[str, Any]] = {
    "server_info_query": {"tvm_version": str},
    "generate_project": {
        "model_library_format_path": str,
        "standalone_crt_dir": str,
        "project_dir": str,
        "options": dict,
    },
    "build": {"options": dict},
    "flash": {"options": dict},
    "open_transport": {"options": dict},
    "close_transport": {},
    "read_transport": {"n": int, "timeout_sec": _NUMBER_OR_NONE},
    "write_transport": {"data": str, "timeout_sec": _NUMBER_OR_NONE},
    # extension of mlfc: at least one and at most n bytes, so that clients need not read byte by byte
    "read_available": {"n": int, "timeout_sec": _NUMBER_OR_NONE},
}
"""Every method with its parameters and their types."""


class RpcError(Exception):
    """A fault of a request, with its JSON-RPC error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class StepError(Exception):
    """Failure of a step that is reported to the user: its text is the error's message on the wire."""


class IoTimeoutError(Exception):
    """The device did not send or accept data within the timeout."""


class TransportClosedError(Exception):
    """The transport is not open, or its peer is gone."""


class UnsupportedTVMVersionError(Exception):
    """The client has a version that the server does not support."""


def encode_bytes(data: bytes) -> str:
    """Encode bytes for the wire."""
    return base64.b85encode(data).decode("ascii")


def decode_bytes(text: str) -> bytes:
    """Decode bytes from the wire; raise ValueError if the text is invalid."""
    return base64.b85decode(text.encode("ascii"))


def encode_line(message: Mapping[str, Any]) -> bytes:
    """Encode a request or reply for the wire."""
    return json.dumps(message).encode("utf-8") + b"\n"


def read_line(file: BinaryIO) -> bytes | None:
    """Return the next line; empty if it is longer than `MAX_LINE` (the rest is skipped), None at the end."""
    line = file.readline(MAX_LINE)
    if not line:
        return None
    if line.endswith(b"\n") or len(line) < MAX_LINE:
        return line
    while line and not line.endswith(b"\n"):
        line = file.readline(_DISCARDED)
    return b""


def parse_request(line: bytes) -> dict[str, Any]:
    """Parse a request; raise RpcError with the fault of a malformed line."""
    if not line:
        raise RpcError(INVALID_REQUEST, f"the line has more than {MAX_LINE} bytes")
    try:
        request = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RpcError(PARSE_ERROR, f"the line is not JSON: {error}") from None
    if not isinstance(request, dict) or request.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'a request must be an object with "jsonrpc": "2.0"')
    if not _is(request.get("id"), int):
        raise RpcError(INVALID_REQUEST, "a request must have an integer id")
    if not isinstance(request.get("method"), str) or not _METHOD.fullmatch(request["method"]):
        raise RpcError(INVALID_REQUEST, "a method's name has letters, digits and underscores")
    if not isinstance(request.get("params"), dict):
        raise RpcError(INVALID_REQUEST, "params must be an object")
    return request


def check_params(method: str, params: Mapping[str, Any]) -> None:
    """Raise RpcError unless the method exists and these are exactly its parameters."""
    if method not in METHODS:
        raise RpcError(METHOD_NOT_FOUND, f"unknown method {method}")
    expected = METHODS[method]
    faults: list[str] = []
    for name in sorted(set(expected) | set(params)):
        if name not in params:
            faults.append(f"{name} is missing")
        elif name not in expected:
            faults.append(f"unknown parameter {name}")
        elif not _is(params[name], expected[name]):
            faults.append(f"{name} has the wrong type")
    if faults:
        raise RpcError(INVALID_PARAMS, f"method {method}: {'; '.join(faults)}")


def _is(value: Any, kinds: Any) -> bool:
    # in Python, bool is a subclass of int
    return isinstance(value, kinds) and not isinstance(value, bool)

"""The Project API on the wire: one JSON-RPC request or reply a line, bytes as base85 text."""

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
"""Bytes of a line that are read; a model's tensors in base85 fit."""

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
    # ours: at least one and at most n bytes, so that a client need not ask for each byte of a stream
    "read_available": {"n": int, "timeout_sec": _NUMBER_OR_NONE},
}
"""Every method with its parameters and their types."""


class RpcError(Exception):
    """A fault of a request, with JSON-RPC's code for it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class StepError(Exception):
    """A step that failed for a reason that the user is told: its text is the error's message on the wire."""


class IoTimeoutError(Exception):
    """The device sent or took nothing in time."""


class TransportClosedError(Exception):
    """The transport is not open, or its other side is gone."""


class UnsupportedTVMVersionError(Exception):
    """The client is of a version that the server does not serve."""


def encode_bytes(data: bytes) -> str:
    """Return bytes as they travel."""
    return base64.b85encode(data).decode("ascii")


def decode_bytes(text: str) -> bytes:
    """Return the bytes of their text; ValueError where it is none."""
    return base64.b85decode(text.encode("ascii"))


def encode_line(message: Mapping[str, Any]) -> bytes:
    """Return a request or reply as it travels."""
    return json.dumps(message).encode("utf-8") + b"\n"


def read_line(file: BinaryIO) -> bytes | None:
    """Return the next line; empty where it is longer than `MAX_LINE` (the rest is skipped), None at the end."""
    line = file.readline(MAX_LINE)
    if not line:
        return None
    if line.endswith(b"\n") or len(line) < MAX_LINE:
        return line
    while line and not line.endswith(b"\n"):
        line = file.readline(_DISCARDED)
    return b""


def parse_request(line: bytes) -> dict[str, Any]:
    """Return a request whose form is right; RpcError says what is wrong with any other line."""
    if not line:
        raise RpcError(INVALID_REQUEST, f"the line has more than {MAX_LINE} bytes")
    try:
        request = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RpcError(PARSE_ERROR, f"the line is not JSON: {error}") from None
    if not isinstance(request, dict) or request.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'a request is an object with "jsonrpc": "2.0"')
    if not _is(request.get("id"), int):
        raise RpcError(INVALID_REQUEST, "a request has an id, which is an integer")
    if not isinstance(request.get("method"), str) or not _METHOD.fullmatch(request["method"]):
        raise RpcError(INVALID_REQUEST, "a method's name has letters, digits and underscores")
    if not isinstance(request.get("params"), dict):
        raise RpcError(INVALID_REQUEST, "params is an object")
    return request


def check_params(method: str, params: Mapping[str, Any]) -> None:
    """Raise RpcError unless there is such a method and these are exactly its parameters."""
    if method not in METHODS:
        raise RpcError(METHOD_NOT_FOUND, f"there is no method {method}")
    expected = METHODS[method]
    faults: list[str] = []
    for name in sorted(set(expected) | set(params)):
        if name not in params:
            faults.append(f"{name} is missing")
        elif name not in expected:
            faults.append(f"there is no parameter {name}")
        elif not _is(params[name], expected[name]):
            faults.append(f"{name} has the wrong type")
    if faults:
        raise RpcError(INVALID_PARAMS, f"method {method}: {'; '.join(faults)}")


def _is(value: Any, kinds: Any) -> bool:
    # to Python, truth is a number
    return isinstance(value, kinds) and not isinstance(value, bool)

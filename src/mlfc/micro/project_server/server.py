"""The loop of an API server: a request in, a reply out."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Protocol

from .protocol import (
    INTERNAL_ERROR,
    SERVER_ERROR,
    IoTimeoutError,
    RpcError,
    StepError,
    TransportClosedError,
    UnsupportedTVMVersionError,
    check_params,
    decode_bytes,
    encode_bytes,
    encode_line,
    parse_request,
    read_line,
)

# clients raise these again by their names
_NAMED = (IoTimeoutError, TransportClosedError, UnsupportedTVMVersionError)


class Handler(Protocol):
    """What a server does; every method takes its parameters by name."""

    def server_info_query(self, tvm_version: str) -> dict[str, Any]:
        """Return what the server is and which options it has."""

    def generate_project(
        self, model_library_format_path: str, standalone_crt_dir: str, project_dir: str, options: dict[str, Any]
    ) -> None:
        """Make a project."""

    def build(self, options: dict[str, Any]) -> None:
        """Build the firmware."""

    def flash(self, options: dict[str, Any]) -> None:
        """Write it to the device."""

    def open_transport(self, options: dict[str, Any]) -> dict[str, float]:
        """Connect; return the timeouts."""

    def close_transport(self) -> None:
        """Disconnect; does nothing where it is closed."""

    def read_transport(self, n: int, timeout_sec: float | None) -> bytes:
        """Return exactly n bytes."""

    def read_available(self, n: int, timeout_sec: float | None) -> bytes:
        """Return at least one and at most n bytes."""

    def write_transport(self, data: bytes, timeout_sec: float | None) -> None:
        """Write all bytes."""


def serve(handler: Handler, reader: BinaryIO, writer: BinaryIO, *, debug: bool = False) -> None:
    """Answer requests until the reader ends; print the tracebacks of errors where `debug` is set."""
    while True:
        line = read_line(reader)
        if line is None:
            return
        identity: int | None = None
        try:
            request = parse_request(line)
            identity = request["id"]
            check_params(request["method"], request["params"])
            reply = {"jsonrpc": "2.0", "id": identity, "result": _called(handler, request["method"], request["params"])}
        except Exception as error:  # whatever a step does wrong is the client's to know; the server goes on
            reply = {"jsonrpc": "2.0", "id": identity, "error": _described(error)}
            if debug:
                traceback.print_exc()
        writer.write(encode_line(reply))
        writer.flush()


def _called(handler: Handler, method: str, params: dict[str, Any]) -> Any:
    if method in ("read_transport", "read_available"):
        return {"data": encode_bytes(getattr(handler, method)(**params))}
    if method == "open_transport":
        return {"timeouts": handler.open_transport(**params)}
    if method == "write_transport":
        try:
            data = decode_bytes(params["data"])
        except ValueError:
            raise StepError("the data are not base85 text") from None
        return handler.write_transport(data, params["timeout_sec"])
    return getattr(handler, method)(**params)


def _described(error: Exception) -> dict[str, Any]:
    """Return an error as JSON-RPC has it, with the server's traceback."""
    data = {"traceback": traceback.format_exc(), "text": str(error)}
    if isinstance(error, RpcError):
        return {"code": error.code, "message": str(error), "data": data}
    if isinstance(error, StepError):
        return {"code": SERVER_ERROR, "message": str(error), "data": data}
    if isinstance(error, (*_NAMED, ValueError)):
        return {"code": SERVER_ERROR, "message": type(error).__name__, "data": data}
    return {"code": INTERNAL_ERROR, "message": f"{type(error).__name__}: {error}", "data": data}


def main(make: Callable[[], Handler], arguments: Sequence[str] | None = None) -> None:
    """Serve on the file descriptors that the command line names."""
    parser = argparse.ArgumentParser(description="API server of a firmware project; microTVM's clients start it")
    parser.add_argument("--read-fd", type=int, required=True, help="where requests come from")
    parser.add_argument("--write-fd", type=int, required=True, help="where replies go to")
    parser.add_argument("--debug", action="store_true", help="print the tracebacks of errors")
    given = parser.parse_args(arguments)
    reader, writer = _descriptor(given.read_fd, os.O_RDONLY), _descriptor(given.write_fd, os.O_WRONLY)
    # what the server starts must not keep the client's pipes open
    for descriptor in (reader, writer):
        os.set_inheritable(descriptor, False)
    handler = make()
    # leaves through the finally blocks, which end what was started
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with os.fdopen(reader, "rb") as requests, os.fdopen(writer, "wb") as replies:
        try:
            serve(handler, requests, replies, debug=given.debug)
        except (BrokenPipeError, KeyboardInterrupt):
            pass  # the client went away without its answer, or its user stops both
        finally:
            handler.close_transport()


def _descriptor(number: int, flags: int) -> int:
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.open_osfhandle(number, flags)
    return number

"""Request loop of an API server."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

from . import protocol

# clients raise these again by their names
_NAMED = (protocol.IoTimeoutError, protocol.TransportClosedError, protocol.UnsupportedTVMVersionError)


def serve(handler: Any, reader: BinaryIO, writer: BinaryIO, *, debug: bool = False) -> None:
    """Answer requests until the reader ends; print the tracebacks of errors if `debug` is set.

    `handler` implements the methods of `protocol.METHODS`, with their parameters by name.
    """
    while True:
        line = protocol.read_line(reader)
        if line is None:
            return
        identity: int | None = None
        try:
            request = protocol.parse_request(line)
            identity = request["id"]
            protocol.check_params(request["method"], request["params"])
            reply = {"jsonrpc": "2.0", "id": identity, "result": _called(handler, request["method"], request["params"])}
        except Exception as error:  # any failure of a step is reported to the client; the server continues
            reply = {"jsonrpc": "2.0", "id": identity, "error": _described(error)}
            if debug:
                traceback.print_exc()
        writer.write(protocol.encode_line(reply))
        writer.flush()


def _called(handler: Any, method: str, params: dict[str, Any]) -> Any:
    if method in ("read_transport", "read_available"):
        return {"data": protocol.encode_bytes(getattr(handler, method)(**params))}
    if method == "open_transport":
        return {"timeouts": handler.open_transport(**params)}
    if method == "write_transport":
        try:
            data = protocol.decode_bytes(params["data"])
        except ValueError:
            raise protocol.StepError("the data are not base85 text") from None
        return handler.write_transport(data, params["timeout_sec"])
    return getattr(handler, method)(**params)


def _described(error: Exception) -> dict[str, Any]:
    """Return an error in JSON-RPC form, with the server's traceback."""
    data = {"traceback": traceback.format_exc(), "text": str(error)}
    if isinstance(error, protocol.RpcError):
        return {"code": error.code, "message": str(error), "data": data}
    if isinstance(error, protocol.StepError):
        return {"code": protocol.SERVER_ERROR, "message": str(error), "data": data}
    if isinstance(error, (*_NAMED, ValueError)):
        return {"code": protocol.SERVER_ERROR, "message": type(error).__name__, "data": data}
    return {"code": protocol.INTERNAL_ERROR, "message": f"{type(error).__name__}: {error}", "data": data}


def main(make: Callable[[], Any], arguments: Sequence[str] | None = None) -> None:
    """Serve on the file descriptors given on the command line."""
    parser = argparse.ArgumentParser(description="API server of a firmware project; microTVM's clients start it")
    parser.add_argument("--read-fd", type=int, required=True, help="file descriptor of requests")
    parser.add_argument("--write-fd", type=int, required=True, help="file descriptor of replies")
    parser.add_argument("--debug", action="store_true", help="print the tracebacks of errors")
    given = parser.parse_args(arguments)
    reader, writer = _descriptor(given.read_fd, os.O_RDONLY), _descriptor(given.write_fd, os.O_WRONLY)
    # processes that the server starts must not keep the client's pipes open
    for descriptor in (reader, writer):
        os.set_inheritable(descriptor, False)
    handler = make()
    # exit through the finally blocks, which terminate started processes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with os.fdopen(reader, "rb") as requests, os.fdopen(writer, "wb") as replies:
        try:
            serve(handler, requests, replies, debug=given.debug)
        except (BrokenPipeError, KeyboardInterrupt):
            pass  # the client exited without its reply, or the user interrupts both
        finally:
            handler.close_transport()


def _descriptor(number: int, flags: int) -> int:
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.open_osfhandle(number, flags)
    return number

"""A project's API server as a child process: requests to it, replies from it, and what may go wrong between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from mlfc.errors import (
    ConnectionShutdownError,
    IoTimeoutError,
    MalformedReplyError,
    MismatchedIdError,
    MlfcError,
    OptionError,
    ProjectAPIServerNotFoundError,
    ProjectError,
    TransportClosedError,
)
from mlfc.micro.project_server.protocol import SERVER_ERROR, encode_line, read_line
from mlfc.micro.project_server.steps import end_process
from mlfc.support.text import shortened

SERVER = "microtvm_api_server.py"
_LAUNCHER = "launch_microtvm_api_server.bat" if sys.platform == "win32" else "launch_microtvm_api_server.sh"
_GRACE_SECONDS = 5.0
# what servers raise by name, and what it is here
_NAMED: Mapping[str, type[MlfcError]] = {
    "IoTimeoutError": IoTimeoutError,
    "TransportClosedError": TransportClosedError,
    "ValueError": OptionError,
}
_TRACEBACK = "MLFC_TRACEBACK"
# the last lines of a tool fit
_SAID_CHARACTERS = 65536


class ServerConnection:
    """A running API server.

    `folder`: the project's; the server runs in it, and it is code: start only servers of projects that you trust.

    Raises ProjectAPIServerNotFoundError if there is no server; ProjectError if it does not start.
    """

    def __init__(self, folder: Path) -> None:
        self._place = str(folder)
        server = folder.resolve() / SERVER
        if not server.is_file():
            raise ProjectAPIServerNotFoundError(f"there is no {SERVER}", place=self._place, next_step="Name a project")
        launcher = server.with_name(_LAUNCHER)
        command = [str(launcher)] if launcher.exists() else [sys.executable]
        self._process, self._reader, self._writer = _started([*command, str(server)], server.parent)
        self._id = 0
        self._is_held = False

    def call(self, method: str, params: Mapping[str, Any], timeout: float | None) -> Any:
        """Return what a method gives.

        `timeout`: seconds after which a server that does not answer is ended; None waits forever.

        Raises IoTimeoutError or TransportClosedError as the server says; OptionError if it does not know an option, or
        its value; ProjectError if a step fails; its subclasses say what is wrong with a server that dies, answers
        something else, or nothing.
        """
        self._id += 1
        request = encode_line({"jsonrpc": "2.0", "method": method, "params": params, "id": self._id})
        line = self._exchanged(request, method, timeout)
        try:
            reply = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            raise self._malformed(f"this is not JSON: {shortened(repr(line[:100]))}") from None
        if not isinstance(reply, dict) or ("result" in reply) == ("error" in reply):
            raise self._malformed("a reply has either a result or an error")
        if "error" in reply:
            raise self._told(reply["error"])
        if reply.get("id") != self._id:
            self.close(grace=0)
            raise MismatchedIdError(f"request {self._id} was answered as {reply.get('id')!r:.50}", place=self._place)
        return reply["result"]

    def close(self, grace: float = _GRACE_SECONDS) -> None:
        """Close the pipes, at which a server ends; one that does not is ended after some seconds."""
        if self._is_held:  # a thread still has the pipes, and closing them would wait for it
            return
        with suppress(OSError):
            self._writer.close()
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            end_process(self._process, _GRACE_SECONDS)
        with suppress(OSError):
            self._reader.close()

    def _exchanged(self, request: bytes, method: str, timeout: float | None) -> bytes:
        if self._is_held or self._writer.closed:
            raise ConnectionShutdownError("the connection to the API server is closed", place=self._place)
        found: list[bytes | None] = []

        def exchange() -> None:
            with suppress(OSError, ValueError):  # a server that is gone, or ended by us: there is no answer
                self._writer.write(request)
                self._writer.flush()
                found.append(read_line(self._reader))

        # a thread, so that neither a full pipe nor a silent server keeps the caller
        worker = threading.Thread(target=exchange, daemon=True)
        worker.start()
        worker.join(timeout)
        if worker.is_alive():
            end_process(self._process, _GRACE_SECONDS)
            # what the server started may keep the pipe open for longer than anybody waits
            worker.join(_GRACE_SECONDS)
            self._is_held = worker.is_alive()
            self.close()
            raise ProjectError(
                f"the API server did not answer {method} within {timeout:g} seconds, and was ended", place=self._place
            )
        line = found[0] if found else None
        if line is None:
            self.close()
            raise ConnectionShutdownError(
                f"the API server ended with status {self._process.returncode} instead of answering {method}",
                place=self._place,
                next_step=f"Set {_TRACEBACK}=1 to see what it says",
            )
        if not line:
            raise self._malformed("the line is too long")
        return line

    def _malformed(self, what: str) -> MalformedReplyError:
        self.close(grace=0)
        return MalformedReplyError(f"the API server's answer cannot be read: {what}", place=self._place)

    def _told(self, error: Any) -> MlfcError:
        """Return the error that a server's reply describes."""
        message = error.get("message") if isinstance(error, dict) else None
        if not isinstance(message, str):
            return self._malformed("an error has a message")
        data = error.get("data")
        text = data.get("text") if isinstance(data, dict) else None
        said = shortened(text if isinstance(text, str) and text else message, _SAID_CHARACTERS)
        if error.get("code") == SERVER_ERROR and message in _NAMED:
            return _NAMED[message](said, place=self._place)
        return ProjectError(said, place=self._place)


def _started(command: list[str], folder: Path) -> tuple[subprocess.Popen[bytes], BinaryIO, BinaryIO]:
    """Start a server; return it, where its replies come from, and where requests go to."""
    their_reader, our_writer = os.pipe()
    our_reader, their_writer = os.pipe()
    numbers, options = _inherited(their_reader, their_writer)
    flags = ["--read-fd", str(numbers[0]), "--write-fd", str(numbers[1])]
    if os.environ.get(_TRACEBACK):
        flags.append("--debug")
    try:
        # what tools print is no result of ours, so it goes where messages go
        process = subprocess.Popen([*command, *flags], cwd=folder, stdin=subprocess.DEVNULL, stdout=2, **options)
    except OSError as error:
        for descriptor in (our_reader, our_writer):
            os.close(descriptor)
        raise ProjectError(f"the API server does not start: {error}", place=str(folder)) from error
    finally:
        os.close(their_reader)
        os.close(their_writer)
    return process, os.fdopen(our_reader, "rb"), os.fdopen(our_writer, "wb")


def _inherited(*descriptors: int) -> tuple[list[int], dict[str, Any]]:
    """Return the numbers under which a child finds pipes, and what starting it takes for that."""
    if sys.platform != "win32":
        return list(descriptors), {"pass_fds": descriptors}
    import msvcrt

    handles = [msvcrt.get_osfhandle(descriptor) for descriptor in descriptors]
    for handle in handles:
        os.set_handle_inheritable(handle, True)
    return handles, {"close_fds": False}

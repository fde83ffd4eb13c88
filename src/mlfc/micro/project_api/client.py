"""Template projects and generated projects, driven by their API servers. The names are those of TVM's Python API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import mlfc.crt
from mlfc import errors
from mlfc.micro.project.generate import templates
from mlfc.micro.project_server import protocol
from mlfc.micro.project_server.option_values import check_names
from mlfc.micro.project_server.steps import end_process
from mlfc.micro.rpc.transport import Timeouts
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.text import shortened

if TYPE_CHECKING:
    from typing_extensions import Self

    from mlfc.factory import Factory

SERVER = "microtvm_api_server.py"
_LAUNCHER = "launch_microtvm_api_server.bat" if sys.platform == "win32" else "launch_microtvm_api_server.sh"
_GRACE_SECONDS = 5.0
# exceptions by their names in servers' replies
_NAMED: Mapping[str, type[errors.MlfcError]] = {
    "IoTimeoutError": errors.IoTimeoutError,
    "TransportClosedError": errors.TransportClosedError,
    "ValueError": errors.OptionError,
}
_TRACEBACK = "MLFC_TRACEBACK"
# enough for the last lines of a tool
_SAID_CHARACTERS = 65536
CLIENT_VERSION = "0.14.0"
"""Version of TVM whose protocol is implemented; servers require it."""
_INFO_SECONDS, _OPEN_SECONDS, _STEP_SECONDS = 60.0, 60.0, 3600.0
# time that a server may take in addition to the timeout of a read or write
_MARGIN_SECONDS = 30.0


class ServerConnection:
    """A running API server.

    `folder`: the project's folder, in which the server runs. Servers are code: start only those of projects that you
    trust.

    Raises ProjectAPIServerNotFoundError if the server does not exist; ProjectError if it does not start.
    """

    def __init__(self, folder: Path) -> None:
        self._place = str(folder)
        server = folder.resolve() / SERVER
        if not server.is_file():
            raise errors.ProjectAPIServerNotFoundError(
                f"{SERVER} does not exist", place=self._place, next_step="Name the folder of a project"
            )
        launcher = server.with_name(_LAUNCHER)
        command = [str(launcher)] if launcher.exists() else [sys.executable]
        self._process, self._reader, self._writer = _started([*command, str(server)], server.parent)
        self._id = 0
        self._is_held = False

    def call(self, method: str, params: Mapping[str, Any], timeout: float | None) -> Any:
        """Call a method of the server and return its result.

        `timeout`: seconds after which a server that does not reply is terminated; None waits forever.

        Raises IoTimeoutError or TransportClosedError if the server reports them; OptionError if it rejects an option or
        its value; ProjectError if a step fails, with subclasses for a server that dies, sends a malformed reply, or
        none.
        """
        self._id += 1
        request = protocol.encode_line({"jsonrpc": "2.0", "method": method, "params": params, "id": self._id})
        line = self._exchanged(request, method, timeout)
        try:
            reply = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            raise self._malformed(f"this is not JSON: {shortened(repr(line[:100]))}") from None
        if not isinstance(reply, dict) or ("result" in reply) == ("error" in reply):
            raise self._malformed("a reply must have either a result or an error")
        if "error" in reply:
            error = reply["error"] if isinstance(reply["error"], dict) else {}
            message, data = error.get("message"), error.get("data")
            if not isinstance(message, str):
                raise self._malformed("an error must have a message")
            text = data.get("text") if isinstance(data, dict) else None
            said = shortened(text if isinstance(text, str) and text else message, _SAID_CHARACTERS)
            is_named = error.get("code") == protocol.SERVER_ERROR and message in _NAMED
            raise (_NAMED[message] if is_named else errors.ProjectError)(said, place=self._place)
        if reply.get("id") != self._id:
            self.close(grace=0)
            raise errors.MismatchedIdError(
                f"request {self._id} was answered as {reply.get('id')!r:.50}", place=self._place
            )
        return reply["result"]

    def close(self, grace: float = _GRACE_SECONDS) -> None:
        """Close the pipes, which ends the server; terminate it if it does not end within some seconds."""
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
            raise errors.ConnectionShutdownError("the connection to the API server is closed", place=self._place)
        found: list[bytes | None] = []

        def exchange() -> None:
            with suppress(OSError, ValueError):  # the server has exited, or was terminated here: no reply will arrive
                self._writer.write(request)
                self._writer.flush()
                found.append(protocol.read_line(self._reader))

        # a thread, so that neither a full pipe nor a silent server blocks the caller
        worker = threading.Thread(target=exchange, daemon=True)
        worker.start()
        worker.join(timeout)
        if worker.is_alive():
            end_process(self._process, _GRACE_SECONDS)
            # processes that the server started may keep the pipe open indefinitely
            worker.join(_GRACE_SECONDS)
            self._is_held = worker.is_alive()
            self.close()
            raise errors.ProjectError(
                f"the API server did not answer {method} within {timeout:g} seconds, and was ended", place=self._place
            )
        line = found[0] if found else None
        if line is None:
            self.close()
            raise errors.ConnectionShutdownError(
                f"the API server ended with status {self._process.returncode} instead of answering {method}",
                place=self._place,
                next_step=f"Set {_TRACEBACK}=1 to see what it says",
            )
        if not line:
            raise self._malformed("the line is too long")
        return line

    def _malformed(self, what: str) -> errors.MalformedReplyError:
        self.close(grace=0)
        return errors.MalformedReplyError(f"the API server's answer cannot be read: {what}", place=self._place)


def _started(command: list[str], folder: Path) -> tuple[subprocess.Popen[bytes], BinaryIO, BinaryIO]:
    """Start a server; return the process, the pipe of its replies, and the pipe of requests."""
    their_reader, our_writer = os.pipe()
    our_reader, their_writer = os.pipe()
    numbers, options = [their_reader, their_writer], dict[str, Any](pass_fds=(their_reader, their_writer))
    if sys.platform == "win32":
        import msvcrt

        numbers, options = [msvcrt.get_osfhandle(descriptor) for descriptor in numbers], {"close_fds": False}
        for handle in numbers:
            os.set_handle_inheritable(handle, True)
    flags = ["--read-fd", str(numbers[0]), "--write-fd", str(numbers[1])]
    if os.environ.get(_TRACEBACK):
        flags.append("--debug")
    try:
        # output of tools is not a result, so it goes to the message stream
        process = subprocess.Popen([*command, *flags], cwd=folder, stdin=subprocess.DEVNULL, stdout=2, **options)
    except OSError as error:
        for descriptor in (our_reader, our_writer):
            os.close(descriptor)
        raise errors.ProjectError(f"the API server does not start: {error}", place=str(folder)) from error
    finally:
        os.close(their_reader)
        os.close(their_writer)
    return process, os.fdopen(our_reader, "rb"), os.fdopen(our_writer, "wb")


class _ServedProject:
    """A folder with a running API server, and the server's description."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._connection = ServerConnection(self.folder)
        try:
            info = self.call("server_info_query", {"tvm_version": CLIENT_VERSION}, _INFO_SECONDS)
            if not isinstance(info, dict) or not isinstance(info.get("project_options"), list):
                raise errors.MalformedReplyError("the API server's description is incomplete", place=str(folder))
            if not all(
                isinstance(item, dict) and isinstance(item.get("name"), str) for item in info["project_options"]
            ):
                raise errors.MalformedReplyError("the API server lists options without names", place=str(folder))
            if info.get("protocol_version") != protocol.PROTOCOL_VERSION:
                raise errors.ProjectError(
                    f"the API server speaks version {info.get('protocol_version')!r:.20} of the protocol, "
                    f"and mlfc {protocol.PROTOCOL_VERSION}",
                    place=str(folder),
                )
            self._info: dict[str, Any] = info
        except BaseException:
            self.close()
            raise

    def info(self) -> dict[str, Any]:
        """Return the server's description: ``platform_name``, ``is_template``, ``project_options``, ..."""
        return dict(self._info)

    def call(self, method: str, params: Mapping[str, Any], timeout: float | None) -> Any:
        """Call a method of the server; see `ServerConnection.call`."""
        return self._connection.call(method, params, timeout)

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options of the project: given, or their defaults; raise OptionError for an unknown one."""
        defaults = {option["name"]: option.get("default") for option in self._info["project_options"]}
        try:
            check_names(given, defaults)
        except ValueError as error:
            raise errors.OptionError(str(error), place=str(self.folder)) from None
        return {**defaults, **given}

    def close(self) -> None:
        """Stop the server."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class GeneratedProject(_ServedProject):
    """A generated project, which can be built, flashed and connected to.

    Parameters
    ----------
    folder : path
    options : mapping, optional
        Options of the project, for all steps.

    Raises
    ------
    TemplateProjectError
        If the folder has a template.
    ProjectError
        The errors of `ServerConnection` and its calls.
    """

    def __init__(self, folder: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> None:
        super().__init__(folder)
        try:
            if self._info.get("is_template"):
                raise errors.TemplateProjectError(
                    "this is a template, not a project", place=str(folder), next_step="Generate a project from it"
                )
            self._options = self.values(options or {})
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_directory(
        cls, project_dir: str | os.PathLike[str], options: Mapping[str, Any] | None = None
    ) -> GeneratedProject:
        """Return the project in a folder."""
        return cls(project_dir, options)

    def build(self) -> None:
        """Build the firmware; raise ProjectError with the tool's last lines if that fails."""
        self.call("build", {"options": self._options}, _STEP_SECONDS)

    def flash(self) -> None:
        """Flash the firmware to the device, if one exists."""
        self.call("flash", {"options": self._options}, _STEP_SECONDS)

    def transport(self) -> ProjectTransport:
        """Return the transport to the firmware, not yet open."""
        return ProjectTransport(self, self._options)


class TemplateProject(_ServedProject):
    """A template that generates projects.

    Parameters
    ----------
    folder : path

    Raises
    ------
    NotATemplateProjectError
        If the folder has a generated project.
    ProjectError
        The errors of `ServerConnection` and its calls.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(folder)
        if not self._info.get("is_template"):
            self.close()
            raise errors.NotATemplateProjectError("this is a generated project, not a template", place=str(folder))

    @classmethod
    def from_directory(cls, template_project_dir: str | os.PathLike[str]) -> TemplateProject:
        """Return the template in a folder."""
        return cls(template_project_dir)

    def generate_project_from_mlf(
        self,
        model_library_format_path: str | os.PathLike[str],
        project_dir: str | os.PathLike[str],
        options: Mapping[str, Any],
    ) -> GeneratedProject:
        """Generate a project from an archive.

        Parameters
        ----------
        model_library_format_path, project_dir : path
            The archive, and a folder that does not exist yet.
        options : mapping
            ``project_type``, ``board`` and others of `info`.
        """
        params = {
            "model_library_format_path": str(Path(model_library_format_path).resolve()),
            "standalone_crt_dir": str(get_standalone_crt_dir()),
            "project_dir": str(Path(project_dir).resolve()),
            "options": self.values(options),
        }
        self.call("generate_project", params, _STEP_SECONDS)
        return GeneratedProject(project_dir)

    def generate_project(
        self, factory: Factory, project_dir: str | os.PathLike[str], options: Mapping[str, Any]
    ) -> GeneratedProject:
        """Generate a project from the result of `mlfc.build`."""
        from mlfc.archive.write.export import export_model_library_format

        with TemporaryFolder() as folder:
            path = export_model_library_format(factory, Path(folder) / "model.tar")
            return self.generate_project_from_mlf(path, project_dir, options)


def generate_project(
    template_project_dir: str | os.PathLike[str],
    module: Factory,
    generated_project_dir: str | os.PathLike[str],
    options: Mapping[str, Any] | None = None,
) -> GeneratedProject:
    """Generate a project from the template in a folder, by its API server."""
    with TemplateProject(template_project_dir) as template:
        return template.generate_project(module, generated_project_dir, options or {})


class ProjectTransport:
    """Transport to a project's firmware through its API server; see `rpc.transport.Transport`.

    Parameters
    ----------
    project : GeneratedProject
    options : mapping
        Options of the project, for opening.
    """

    def __init__(self, project: _ServedProject, options: Mapping[str, Any]) -> None:
        self._project = project
        self._options = options
        self._reads_what_is_there = bool(project.info().get("has_read_available"))

    def open(self) -> Timeouts:
        """Start the firmware, or open the port."""
        result = self._project.call("open_transport", {"options": dict(self._options)}, _OPEN_SECONDS)
        try:
            timeouts = {name: float(value) for name, value in result["timeouts"].items()}
            # NaN compares as false
            if all(0 <= seconds <= _STEP_SECONDS for seconds in timeouts.values()):
                return Timeouts(**timeouts)
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
            pass
        raise errors.MalformedReplyError("the API server returned no timeouts", place=str(self._project.folder))

    def close(self) -> None:
        """Close the transport; do nothing if it is closed."""
        self._project.call("close_transport", {}, _OPEN_SECONDS)

    def read(self, nbytes: int, timeout_sec: float | None) -> bytes:
        """Return at least one and at most `nbytes` bytes.

        Servers return exactly the requested number of bytes, or none, so servers without another method are read byte
        by byte.
        """
        method, count = ("read_available", nbytes) if self._reads_what_is_there else ("read_transport", 1)
        result = self._call(method, timeout_sec, n=count)
        try:
            data = protocol.decode_bytes(result["data"])
        except (TypeError, KeyError, ValueError, AttributeError):
            raise errors.MalformedReplyError(
                "the API server returned no data", place=str(self._project.folder)
            ) from None
        if not 0 < len(data) <= count:
            raise errors.TransportClosedError(f"{len(data)} bytes arrived where {count} were asked for")
        return data

    def write(self, data: bytes, timeout_sec: float | None) -> None:
        """Write all of it."""
        self._call("write_transport", timeout_sec, data=protocol.encode_bytes(data))

    def _call(self, method: str, timeout: float | None, **params: Any) -> Any:
        limit = None if timeout is None else timeout + _MARGIN_SECONDS
        return self._project.call(method, {**params, "timeout_sec": timeout}, limit)


def get_microtvm_template_projects(platform: str) -> Path:
    """Return the folder of a template project; raise OptionError, with similar names, if it does not exist."""
    return Path(__file__).parents[1] / "templates" / templates().get(platform).name


def get_standalone_crt_dir() -> Path:
    """Return the folder of the C runtime."""
    return Path(mlfc.crt.__file__).parent

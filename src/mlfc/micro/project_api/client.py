"""Template projects and generated projects, driven by their API servers. The names are those of TVM's Python API."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import mlfc.crt
from mlfc.errors import (
    MalformedReplyError,
    NotATemplateProjectError,
    OptionError,
    ProjectError,
    TemplateProjectError,
    TransportClosedError,
)
from mlfc.micro.project.generate import templates
from mlfc.micro.project_api.connection import ServerConnection
from mlfc.micro.project_server.option_values import check_names
from mlfc.micro.project_server.protocol import PROTOCOL_VERSION, decode_bytes, encode_bytes
from mlfc.micro.rpc.transport import Timeouts
from mlfc.support.temporary import TemporaryFolder

if TYPE_CHECKING:
    from typing_extensions import Self

    from mlfc.factory import Factory

CLIENT_VERSION = "0.14.0"
"""Of TVM, whose protocol this speaks; servers ask for it."""

_INFO_SECONDS, _OPEN_SECONDS, _STEP_SECONDS = 60.0, 60.0, 3600.0
# what a server may take beyond the time that a read or write is given
_MARGIN_SECONDS = 30.0


class _ServedProject:
    """A folder with an API server that runs, and what that says of itself."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._connection = ServerConnection(self.folder)
        try:
            self._info = self._asked()
        except BaseException:
            self.close()
            raise

    def _asked(self) -> dict[str, Any]:
        info = self.call("server_info_query", {"tvm_version": CLIENT_VERSION}, _INFO_SECONDS)
        if not isinstance(info, dict) or not isinstance(info.get("project_options"), list):
            raise MalformedReplyError("the API server's description is incomplete", place=str(self.folder))
        if not all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in info["project_options"]):
            raise MalformedReplyError("the API server lists options without names", place=str(self.folder))
        if info.get("protocol_version") != PROTOCOL_VERSION:
            raise ProjectError(
                f"the API server speaks version {info.get('protocol_version')!r:.20} of the protocol, "
                f"and mlfc {PROTOCOL_VERSION}",
                place=str(self.folder),
            )
        return info

    def info(self) -> dict[str, Any]:
        """Return what the server says: ``platform_name``, ``is_template``, ``project_options``, ..."""
        return dict(self._info)

    def call(self, method: str, params: Mapping[str, Any], timeout: float | None) -> Any:
        """Return what a method of the server gives; see `ServerConnection.call`."""
        return self._connection.call(method, params, timeout)

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options of the project: given, or their defaults; OptionError for one that it does not have."""
        defaults = {option["name"]: option.get("default") for option in self._info["project_options"]}
        try:
            check_names(given, defaults)
        except ValueError as error:
            raise OptionError(str(error), place=str(self.folder)) from None
        return {**defaults, **given}

    def close(self) -> None:
        """End the server."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class GeneratedProject(_ServedProject):
    """A project that was generated: it is built, flashed and talked to.

    Parameters
    ----------
    folder : path
    options : mapping, optional
        Of the project, for all steps.

    Raises
    ------
    TemplateProjectError
        If the folder has a template.
    ProjectError
        As `ServerConnection` and its calls do.
    """

    def __init__(self, folder: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> None:
        super().__init__(folder)
        try:
            if self._info.get("is_template"):
                raise TemplateProjectError(
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
        """Build the firmware; raise ProjectError with the tool's last lines where that fails."""
        self.call("build", {"options": self._options}, _STEP_SECONDS)

    def flash(self) -> None:
        """Write it to the device, if there is one."""
        self.call("flash", {"options": self._options}, _STEP_SECONDS)

    def transport(self) -> ProjectTransport:
        """Return the line to the firmware, not yet open."""
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
        As `ServerConnection` and its calls do.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(folder)
        if not self._info.get("is_template"):
            self.close()
            raise NotATemplateProjectError("this is a generated project, not a template", place=str(folder))

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
        """Make a project from an archive.

        Parameters
        ----------
        model_library_format_path, project_dir : path
            The archive, and a folder that is not there yet.
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
        """Make a project from what `mlfc.build` returned."""
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
    """Make a project from the template in a folder, by its API server."""
    with TemplateProject(template_project_dir) as template:
        return template.generate_project(module, generated_project_dir, options or {})


class ProjectTransport:
    """The line to a project's firmware, by its API server; see `rpc.transport.Transport`.

    Parameters
    ----------
    project : GeneratedProject
    options : mapping
        Of the project, for opening.
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
            # what is no number compares as false
            if all(0 <= seconds <= _STEP_SECONDS for seconds in timeouts.values()):
                return Timeouts(**timeouts)
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
            pass
        raise MalformedReplyError("the API server gives no timeouts", place=str(self._project.folder))

    def close(self) -> None:
        """Close the line; does nothing where it is closed."""
        self._project.call("close_transport", {}, _OPEN_SECONDS)

    def read(self, nbytes: int, timeout_sec: float | None) -> bytes:
        """Return at least one and at most `nbytes` bytes.

        Servers give exactly as many as are asked for, or none: those that have no other way are asked byte by byte.
        """
        method, count = ("read_available", nbytes) if self._reads_what_is_there else ("read_transport", 1)
        params = {"n": count, "timeout_sec": timeout_sec}
        result = self._project.call(method, params, _limit(timeout_sec))
        try:
            data = decode_bytes(result["data"])
        except (TypeError, KeyError, ValueError, AttributeError):
            raise MalformedReplyError("the API server gives no data", place=str(self._project.folder)) from None
        if not 0 < len(data) <= count:
            raise TransportClosedError(f"{len(data)} bytes came where {count} were asked for")
        return data

    def write(self, data: bytes, timeout_sec: float | None) -> None:
        """Write all of it."""
        params = {"data": encode_bytes(data), "timeout_sec": timeout_sec}
        self._project.call("write_transport", params, _limit(timeout_sec))


def _limit(timeout: float | None) -> float | None:
    return None if timeout is None else timeout + _MARGIN_SECONDS


def get_microtvm_template_projects(platform: str) -> Path:
    """Return the folder of a template project; OptionError, with the near names, where there is none."""
    return Path(__file__).parents[1] / "templates" / templates().get(platform).name


def get_standalone_crt_dir() -> Path:
    """Return the folder of the C runtime."""
    return Path(mlfc.crt.__file__).parent

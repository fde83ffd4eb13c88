"""Contents of an archive of any version, built by `archive.read.opening`, the only reader of raw metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mlfc.support.module_info import ArchiveInfo, FileInfo, ModuleInfo
from mlfc.support.records import Record

TVM, RFC = "tvm", "rfc"
FULL_MODEL, OPERATOR = "full-model", "operator"


class TensorRecord(NamedTuple):
    """An input or output of a module. A named tuple, as there may be tens of thousands."""

    name: str
    dtype: str
    nbytes: int
    # None if not recorded: TVM's metadata contain sizes only; dynamic dimensions are text
    shape: tuple[int | str, ...] | None = None
    scale: float | None = None
    zero_point: int | None = None


@dataclass(frozen=True)
class MainMemory:
    """Memory of a module's main function on one device, in bytes."""

    device: int  # DLDeviceType; 1 is the CPU
    workspace_bytes: int
    constants_bytes: int
    io_bytes: int  # from the metadata; TVM counts intermediates of AOT modules here
    inputs: tuple[TensorRecord, ...] = ()  # empty if the version does not list them
    outputs: tuple[TensorRecord, ...] = ()


@dataclass(frozen=True)
class OperatorFunction:
    """A generated function and its workspace in bytes by device."""

    name: str
    workspace: Mapping[int, int]


@dataclass(frozen=True)
class GraphStorage(Record):
    """A block of the graph executor's memory; `input_binding` names the input or parameter in it."""

    storage_id: int
    nbytes: int
    input_binding: str | None = None


@dataclass(frozen=True)
class OperatorBuffer(Record):
    """A parameter of a function in an archive of operator style."""

    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    input_binding: str | None = None


@dataclass(frozen=True)
class ModuleFiles:
    """Paths of one module's files; None or empty if the archive has none.

    `sources`, `objects` and `headers`: under ``codegen/host``, sorted. Code shared by several modules is listed for
    each of them.
    """

    sources: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()  # under other folders of ``codegen``: listed by `module_tree` of the details
    graph: str | None = None
    vm: str | None = None
    params: str | None = None  # of the forms ``.params``, ``.json`` and ``.bson`` the first that exists
    relay: str | None = None
    source_params: str | None = None
    tir: tuple[str, ...] = ()  # loop-level code as text, one file per device; operator style only


@dataclass(frozen=True)
class ModuleRecord:
    """One module of an archive."""

    name: str
    executors: tuple[str, ...]  # ``aot``, ``graph`` or ``vm``; empty for operator style
    targets: tuple[str, ...]  # one target string each, surrounding white space removed
    export_datetime: str
    main: tuple[MainMemory, ...] = ()  # one per device; empty for operator style and for version 1, which lacks it
    operator_functions: tuple[OperatorFunction, ...] = ()
    storages: tuple[GraphStorage, ...] | None = None  # of the graph executor; None for others
    operators: Mapping[str, tuple[OperatorBuffer, ...]] = field(default_factory=dict)  # operator style only
    external_dependencies: tuple[Mapping[str, Any], ...] = ()
    details: ModuleInfo | None = None  # the object ``mlfc``, if mlfc wrote the archive
    files: ModuleFiles = ModuleFiles()

    @property
    def executor(self) -> str | None:
        """The executor that runs the module, if exactly one."""
        return self.executors[0] if self.executors else None

    @property
    def inputs(self) -> tuple[TensorRecord, ...]:
        """Inputs of `main`, of any device."""
        return self._in_order("inputs", [tensor for entry in self.main for tensor in entry.inputs])

    @property
    def outputs(self) -> tuple[TensorRecord, ...]:
        """Outputs of `main`, of any device."""
        return self._in_order("outputs", [tensor for entry in self.main for tensor in entry.outputs])

    def _in_order(self, kind: str, tensors: list[TensorRecord]) -> tuple[TensorRecord, ...]:
        """Return tensors in calling order if the archive records it."""
        if self.details is not None:
            infos = self.details.inputs if kind == "inputs" else self.details.outputs
            places = {info.name: place for place, info in enumerate(infos)}
            tensors = sorted(tensors, key=lambda tensor: places[tensor.name])
        return tuple(tensors)


@dataclass(frozen=True)
class ArchiveRecord:
    """A whole archive."""

    version: int  # 1 to 7
    form: str  # `TVM`, or `RFC` for the layout that the proposal of 2021 describes
    style: str  # `FULL_MODEL` or `OPERATOR`
    modules: Mapping[str, ModuleRecord]  # in the order of their names
    # the archive's object ``mlfc``, if mlfc wrote it: version, files, shared code
    details: ArchiveInfo | None = None

    @property
    def manifest(self) -> Mapping[str, FileInfo] | None:
        """Every other member by path, if the archive lists them."""
        return self.details.files if self.details else None

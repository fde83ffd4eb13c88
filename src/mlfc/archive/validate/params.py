"""Whether parameter files are sound and hold what graph and metadata say."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy.typing as npt

from mlfc.archive.read.model import ModuleRecord
from mlfc.archive.read.opening import Archive
from mlfc.archive.read.params_forms import WRITERS, read_params
from mlfc.archive.validate.fault import Fault, fault_of_error
from mlfc.archive.validate.parsed_files import ParsedFiles
from mlfc.codegen.host.graph_json import input_names
from mlfc.errors import ArchiveError
from mlfc.runtime.executors.graph_json import Graph
from mlfc.support import dtypes
from mlfc.support.content import ArrayContent, sha256_of
from mlfc.support.params import params_content

_COUNT_AT = 16

Params = Mapping[str, npt.NDArray[Any]]


def params_faults(parsed: ParsedFiles) -> Iterator[Fault]:
    """Yield what is wrong with the parameters of each module, in each form that is there."""
    archive = parsed.archive
    for module in archive.record.modules.values():
        graph = parsed.graphs.get(module.files.graph or "")
        for path in _files(archive, module):
            try:
                params = read_params(archive.tar, path)
            except ArchiveError as error:
                yield fault_of_error("parameters", path, error)
                continue
            causes = [*_file_faults(archive, path, params)]
            if path != module.files.source_params:
                causes += _graph_faults(params, graph, module)
            for cause in causes:
                yield Fault("parameters", path, cause)


def _files(archive: Archive, module: ModuleRecord) -> Iterator[str]:
    if module.files.params is not None:
        stem = str(PurePosixPath(module.files.params).with_suffix(""))
        yield from (path for form in WRITERS if (path := f"{stem}.{form}") in archive.tar.sizes)
    if module.files.source_params is not None:
        yield module.files.source_params


def _file_faults(archive: Archive, path: str, params: Params) -> Iterator[str]:
    """Yield what TVM's readers pass over in silence: names given twice, bytes behind the last tensor."""
    if not path.endswith(".params"):
        return
    (count,) = struct.unpack_from("<Q", archive.tar.view(path), _COUNT_AT)
    if count != len(params):
        yield f"names are there twice: {count} tensors have {len(params)} names"
        return
    behind = archive.tar.sizes[path] - params_content(params).nbytes
    if behind:
        yield f"{behind} bytes behind the last tensor"


def _graph_faults(params: Params, graph: Graph | None, module: ModuleRecord) -> Iterator[str]:
    """Yield tensors that are not those of the graph and of the metadata."""
    constants = {item.name: item for item in (module.details and module.details.constants) or ()}
    for name, array in params.items():
        dtype = dtypes.from_numpy(array.dtype)
        if graph is not None:
            if name not in graph.arguments:
                yield f"tensor '{name[:80]}' is no input of the graph"
                continue
            entry = graph.entries[graph.arguments[name]]
            if entry.dtype != dtype:
                yield f"tensor '{name[:80]}' is of {dtype}, the graph says {entry.dtype}"
            if entry.shape != array.shape:
                yield f"tensor '{name[:80]}' is of shape {array.shape}, the graph says {entry.shape}"
        if name in constants and sha256_of(ArrayContent(array)) != constants[name].sha256:
            yield f"tensor '{name[:80]}' is not the one of the metadata (SHA-256 differs)"
    if graph is not None and module.main:
        listed = [[tensor.name for tensor in main.inputs] for main in module.main]
        inputs = {name for names in listed for name in (*names, *input_names(names))}
        # archives of before 0.11 do not list their inputs
        if inputs:
            for name in graph.arguments.keys() - params.keys() - inputs:
                yield f"no tensor for '{name[:80]}', which the graph takes and the metadata do not list as an input"

"""Models for the graph executor, from archives or just compiled, as input for firmware."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from mlfc.archive.details import module_info
from mlfc.archive.read.load import load_graph
from mlfc.archive.read.module_parts import ModuleParts, read_parts
from mlfc.errors import OptionError
from mlfc.factory import Factory
from mlfc.runtime.devices.device import Device
from mlfc.runtime.executors.graph_json import Graph, parse_graph
from mlfc.runtime.executors.graph_module import GraphModule
from mlfc.runtime.modules.module import Module
from mlfc.support.content import Data
from mlfc.support.tensor_info import Array


@dataclass(frozen=True, eq=False)
class GraphSource:
    """A model for the graph executor, from an archive or just compiled.

    Raises OptionError if not all of it is code for a CPU.
    """

    name: str
    graph_json: str
    graph: Graph  # the parsed and checked text
    code: Mapping[str, Data]  # its operators
    params: Mapping[str, Array]
    scratch_bytes: int  # maximum bytes that one operator allocates while it runs
    load: Callable[[Module, Device], GraphModule]  # (lib, device): creates an executor with remote functions
    imports: tuple[Module, ...] = ()  # modules that its code imports

    def __post_init__(self) -> None:
        require_code_alone(self.name, self.imports)


def require_code_alone(name: str, imports: Iterable[Module]) -> None:
    """Raise OptionError if code imports modules that are not code and so cannot be part of firmware."""
    kinds = sorted({module.type_key for module in imports if not module.is_dso_exportable})
    if kinds:
        raise OptionError(
            f"parts of module '{name}' require {', '.join(kinds)}, which firmware does not have",
            next_step="Compile it only for the board: mlfc compile MODEL --board BOARD",
        )


def graph_of_archive(path: str | os.PathLike[str], module: str | None = None) -> GraphSource:
    """Return a module of an archive by mlfc or TVM.

    Raises ArchiveError if the archive is damaged; OptionError if the module does not exist, or is for another executor.
    """
    return graph_of_parts(read_parts(path, module))


def graph_of_parts(parts: ModuleParts) -> GraphSource:
    """Return a module that was read from an archive; raise OptionError unless it is for the graph executor."""
    _require_graph(parts.executor, parts.record.name, parts.place)
    graph = parse_graph(parts.graph_json, f"{parts.place}: {parts.record.files.graph}")
    scratch = max((sum(function.workspace.values()) for function in parts.record.operator_functions), default=0)
    return GraphSource(
        parts.record.name.lower(), parts.graph_json, graph, parts.code, parts.params, scratch,
        lambda lib, device: load_graph(parts, lib, device), parts.imports,
    )  # fmt: skip


def graph_of_factory(factory: Factory) -> GraphSource:
    """Return the module of a result of `build`; raise OptionError unless it is for the graph executor."""
    _require_graph(factory.executor, factory.module_name, None)
    details = module_info(factory)
    return GraphSource(
        factory.module_name, factory.graph_json, parse_graph(factory.graph_json), factory.code.built_files,
        factory.params,
        max((entry.workspace_bytes or 0 for entry in details.operators), default=0),
        lambda lib, device: GraphModule.described(factory.graph_json, lib, details, devices=device),
        factory.lib.imported_modules,
    )  # fmt: skip


def _require_graph(executor: str | None, name: str, place: str | None) -> None:
    if executor != "graph":
        kind = f"for the executor {executor}" if executor else "a collection of functions"
        raise OptionError(
            f"module '{name}' is {kind}; running operator by operator requires the graph executor",
            place=place,
            next_step="Compile the model with: mlfc compile MODEL --executor graph",
        )

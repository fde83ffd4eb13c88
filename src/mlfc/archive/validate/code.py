"""Checks of code, graphs, parameters, Relay texts and the module tree against the metadata."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy.typing as npt

from mlfc.archive.read.c_header import MAX_HEADER_BYTES, Header, parse_header
from mlfc.archive.read.layout import CODE, CODEGEN, header_path
from mlfc.archive.read.model import ModuleRecord, TensorRecord
from mlfc.archive.read.module_parts import executable_faults as faults_of
from mlfc.archive.read.module_parts import executable_of
from mlfc.archive.read.opening import Archive
from mlfc.archive.read.params_forms import WRITERS, read_params
from mlfc.archive.read.source import read_source
from mlfc.archive.validate.parsed_files import C_ENDINGS, OBJECT_ENDING, Faults, ParsedFiles, loaded_module, told_by
from mlfc.codegen.host.graph_json import input_names
from mlfc.errors import ArchiveError, MlfcError
from mlfc.memory.plan import DEFAULT_POOL, pool_array
from mlfc.relay.text import from_text
from mlfc.relay.text_parser import CUSTOM_OPERATOR
from mlfc.relay.text_source import MAX_TEXT
from mlfc.runtime.executors.graph_json import COPY, NOP, Graph
from mlfc.support import dtypes
from mlfc.support.content import ArrayContent, sha256_of
from mlfc.support.former_name import former
from mlfc.support.module_info import ImportedModule
from mlfc.support.params import params_content

_SHARED_WORKSPACE = "tvmgen_mlfc_shared_workspace"
_COUNT_AT = 16
Params = Mapping[str, npt.NDArray[Any]]
_VERSION_LINE = "#[version"


def code_faults(parsed: ParsedFiles) -> Faults:
    """Yield missing and duplicate functions, and sizes in C that differ from the metadata."""
    archive = parsed.archive
    defined = set[str]().union(*parsed.objects.values(), *(symbols.functions for symbols in parsed.c_code.values()))
    for path, error in parsed.errors.items():
        if path.endswith((OBJECT_ENDING, *C_ENDINGS)):
            yield told_by(error, path)
    owners: dict[str, str] = {}
    for path, found in parsed.c_code.items():
        for function, is_public in found.functions.items():
            if is_public and owners.setdefault(function, path) != path:
                yield path, f"the function {function} is defined in {owners[function]} too"
    places: dict[str, str] = {}
    for place, function in _called(parsed):
        places.setdefault(function, place)
    for function, place in places.items():
        if function not in defined and not any(module.implements_function(function) for module in parsed.imports):
            yield place, f"the function {function} is not defined in the code"
    for name, module in archive.record.modules.items():
        yield from _header_faults(archive, name, module)
        yield from _workspace_faults(parsed, name, module)


def _called(parsed: ParsedFiles) -> Iterator[tuple[str, str]]:
    """Yield the place that requires a function, and the function."""
    archive = parsed.archive
    for name, module in archive.record.modules.items():
        place = f"{archive.metadata_path}: {name}"
        if module.executor == "vm" and module.files.objects:
            continue  # its functions are found through a table and are otherwise hidden
        functions = [function.name for function in module.operator_functions] + list(module.operators)
        if module.details is not None:
            functions += [operator.function for operator in module.details.operators]
            functions += [module.details.entry] if module.details.entry else []
        yield from ((place, function) for function in functions if function != COPY)
    for path, graph in parsed.graphs.items():
        functions = [node.function for node in graph.nodes if node.function is not None]
        yield from ((path, function) for function in functions if function not in (NOP, COPY))
    shared = archive.record.details.shared if archive.record.details else None
    yield from ((f"{archive.metadata_path}: shared", function) for function in (shared.functions if shared else ()))


def _header_faults(archive: Archive, name: str, module: ModuleRecord) -> Faults:
    path = header_path(name)
    if path not in module.files.headers or not module.main:
        return
    if archive.tar.sizes[path] > MAX_HEADER_BYTES:
        yield path, f"a header of more than {MAX_HEADER_BYTES:,} bytes"
        return
    header = parse_header(bytes(archive.tar.view(path)).decode("utf-8", "replace"))
    prefix = PurePosixPath(path).stem
    main = module.main[0]
    said = {"WORKSPACE": main.workspace_bytes}
    if module.details is not None and module.details.states:
        said["STATE"] = module.details.memory.state_bytes
    for what, nbytes in said.items():
        macro = f"{prefix.upper()}_{what}_SIZE"
        if (found := header.macros.get(macro)) is not None and found != str(nbytes):
            yield path, f"{macro} is {found[:40]}, the metadata declare {nbytes}"
    for kind, tensors in (("inputs", main.inputs), ("outputs", main.outputs)):
        for cause in _tensor_faults(header, prefix, kind, tensors, in_order=module.details is not None):
            yield path, cause


def _tensor_faults(
    header: Header, prefix: str, kind: str, tensors: tuple[TensorRecord, ...], *, in_order: bool
) -> Iterator[str]:
    """Yield differences of a struct of pointers and its size macros from the tensors of the metadata."""
    fields = header.structs.get(f"{prefix}_{kind}")
    if fields is None or not tensors:
        return
    if len(fields) != len(tensors):
        yield f"struct {prefix}_{kind} has {len(fields)} fields, the metadata {len(tensors)} {kind}"
        return
    macros = [f"{prefix}_{field.name}_SIZE".upper() for field in fields]
    sizes = [header.macros.get(macro) for macro in macros]
    expected = [str(tensor.nbytes) for tensor in tensors]
    if in_order:
        for macro, size, wanted in zip(macros, sizes, expected, strict=True):
            if size is not None and size != wanted:
                yield f"{macro} is {size[:40]}, the metadata declare {wanted}"
    elif None not in sizes and sorted(map(str, sizes)) != sorted(expected):
        yield f"the sizes of {kind} are not those of the metadata: {', '.join(macros)[:200]}"


def _workspace_faults(parsed: ParsedFiles, name: str, module: ModuleRecord) -> Faults:
    """Yield static workspaces whose size differs from the metadata; TVM's archives have none that could differ."""
    details = module.details
    if details is None or module.executor != "aot" or details.external_workspace or module.files.objects:
        return
    archive = parsed.archive.record.details
    shared = archive.shared if archive else None
    expected = {DEFAULT_POOL: details.memory.workspace_bytes}
    if shared and name in shared.workspace_modules:
        expected = {_SHARED_WORKSPACE: shared.workspace_bytes}
    elif details.pools:
        expected = {pool_array(pool.name): pool.nbytes for pool in details.pools}
    for array, nbytes in expected.items():
        sizes = {
            path: parsed.c_code[path].arrays[known]
            for path in module.files.sources
            for known in dict.fromkeys((array, former(array)))
            if path in parsed.c_code and known in parsed.c_code[path].arrays
        }
        if not sizes and nbytes:
            yield f"codegen/host/src: {name}", f"no array {array} of {nbytes} bytes is defined"
        for path, size in sizes.items():
            if size != nbytes:
                yield path, f"the array {array} has {size} bytes, the metadata declare {nbytes}"


def module_tree_faults(parsed: ParsedFiles) -> Faults:
    """Yield wrong entries of import trees, and device files that are in no tree."""
    archive = parsed.archive
    claimed: set[str] = set()
    for name, module in archive.record.modules.items():
        tree = module.details.module_tree if module.details else ()
        place = f"{archive.metadata_path}: {name}: module_tree"
        for index, entry in enumerate(tree):
            yield from ((f"{place}[{index}]", cause) for cause in _tree_faults(index, entry, archive.tar.sizes))
        for kind, path in ((entry.type_key, path) for entry in tree[1:] for path in entry.files):
            if path in archive.tar.sizes:
                try:
                    loaded_module(archive, kind, path)
                except MlfcError as error:
                    yield told_by(error, path)
        claimed.update(path for entry in tree for path in entry.files)
    for path in archive.tar.sizes:
        if path.startswith(f"{CODEGEN}/") and not path.startswith(f"{CODE}/") and path not in claimed:
            yield path, "no module_tree of the metadata has this file"


def _tree_faults(index: int, entry: ImportedModule, present: Mapping[str, int]) -> Iterator[str]:
    parent = entry.parent
    if index == 0 and parent is not None:
        yield f"the first entry is the root; its parent must be null, not {parent}"
    # parents precede their children, so cycles are impossible
    if index > 0 and not (parent is not None and 0 <= parent < index):
        yield f"its parent must be an entry before it, not {parent}"
    for path in entry.files:
        if path not in present:
            yield f"the archive has no file {path[:200]!r}"
        elif index > 0 and not path.startswith(f"{CODEGEN}/{entry.type_key}/"):
            yield f"a file of '{entry.type_key}' cannot be {path[:200]!r}"


def graph_faults(parsed: ParsedFiles) -> Faults:
    """Yield faults of each module's graph, and contradictions with other files."""
    for module in parsed.archive.record.modules.values():
        path = module.files.graph
        if path is None:
            continue
        graph = parsed.graphs.get(path)
        if graph is not None:
            yield from ((path, cause) for cause in (*_storage_faults(graph, module), *_interface_faults(graph, module)))
        elif path in parsed.errors:
            yield told_by(parsed.errors[path], path)


def _storage_faults(graph: Graph, module: ModuleRecord) -> Iterator[str]:
    if module.storages is None:
        return
    listed = {storage.storage_id: storage for storage in module.storages}
    needed = graph.storage_bytes
    for storage in sorted(needed.keys() - listed.keys()):
        yield f"storage id {storage} is not in the metadata"
    for storage in sorted(listed.keys() - needed.keys()):
        yield f"storage id {storage} of the metadata is in no tensor of the graph"
    if module.details is None:
        # TVM takes sizes and inputs from other tensors if ids are not in the order of the entries
        return
    for storage in sorted(needed.keys() & listed.keys()):
        if needed[storage] != listed[storage].nbytes:
            yield f"storage id {storage} needs {needed[storage]} bytes, the metadata declare {listed[storage].nbytes}"
    bound = {graph.entries[entry].storage_id: name for name, entry in graph.arguments.items()}
    for storage, item in listed.items():
        if item.input_binding != bound.get(storage):
            yield f"storage id {storage} holds '{bound.get(storage)}', the metadata declare '{item.input_binding}'"


def _interface_faults(graph: Graph, module: ModuleRecord) -> Iterator[str]:
    """Yield inputs and outputs that differ from the metadata."""
    names = input_names([tensor.name for tensor in module.inputs])
    for tensor, name in zip(module.inputs, names, strict=True):
        entry = graph.arguments.get(tensor.name, graph.arguments.get(name))
        if entry is None:
            yield f"the graph has no input {tensor.name}, which the metadata list"
        else:
            yield from _entry_faults(graph, entry, tensor, f"input {tensor.name}")
    if module.outputs and len(module.outputs) != len(graph.heads):
        yield f"the graph has {len(graph.heads)} outputs, the metadata {len(module.outputs)}"
    elif module.details is not None:
        for entry, tensor in zip(graph.heads, module.outputs, strict=False):
            yield from _entry_faults(graph, entry, tensor, f"output {tensor.name}")


def _entry_faults(graph: Graph, entry: int, tensor: TensorRecord, shown: str) -> Iterator[str]:
    found = graph.entries[entry]
    if found.dtype != tensor.dtype:
        yield f"{shown}: of {found.dtype}, the metadata declare {tensor.dtype}"
    if found.nbytes != tensor.nbytes:
        yield f"{shown}: {found.nbytes} bytes, the metadata declare {tensor.nbytes}"
    if tensor.shape is not None and found.shape != tensor.shape:
        yield f"{shown}: of shape {found.shape}, the metadata declare {tensor.shape}"


def executable_faults(parsed: ParsedFiles) -> Faults:
    """Yield the faults in the description of each dynamic model, and contradictions with the metadata."""
    archive = parsed.archive
    for module in archive.record.modules.values():
        path = module.files.vm
        if path is None or module.executor != "vm":
            continue
        try:
            _, executable = executable_of(archive, path)
        except ArchiveError as error:
            yield told_by(error, path)
            continue
        yield from ((path, cause) for cause in faults_of(executable, module))


def params_faults(parsed: ParsedFiles) -> Faults:
    """Yield faults in the parameters of each module, in each form in the archive."""
    archive = parsed.archive
    for module in archive.record.modules.values():
        graph = parsed.graphs.get(module.files.graph or "")
        paths = []
        if module.files.params is not None:
            stem = str(PurePosixPath(module.files.params).with_suffix(""))
            paths = [path for form in WRITERS if (path := f"{stem}.{form}") in archive.tar.sizes]
        for path in (*paths, *filter(None, [module.files.source_params])):
            try:
                params = read_params(archive.tar, path)
            except ArchiveError as error:
                yield told_by(error, path)
                continue
            if path.endswith(".params"):  # faults that TVM's readers ignore silently
                (count,) = struct.unpack_from("<Q", archive.tar.view(path), _COUNT_AT)
                if count != len(params):
                    yield path, f"duplicate names: {count} tensors have {len(params)} names"
                elif behind := archive.tar.sizes[path] - params_content(params).nbytes:
                    yield path, f"{behind} bytes after the last tensor"
            if path != module.files.source_params:
                yield from ((path, cause) for cause in _graph_faults(params, graph, module))


def _graph_faults(params: Params, graph: Graph | None, module: ModuleRecord) -> Iterator[str]:
    """Yield tensors that differ from those of the graph or of the metadata."""
    constants = {item.name: item for item in (module.details and module.details.constants) or ()}
    for name, array in params.items():
        dtype = dtypes.from_numpy(array.dtype)
        if graph is not None:
            if name not in graph.arguments:
                yield f"tensor '{name[:80]}' is not an input of the graph"
                continue
            entry = graph.entries[graph.arguments[name]]
            if entry.dtype != dtype:
                yield f"tensor '{name[:80]}' is of {dtype}, the graph declares {entry.dtype}"
            if entry.shape != array.shape:
                yield f"tensor '{name[:80]}' is of shape {array.shape}, the graph declares {entry.shape}"
        if name in constants and sha256_of(ArrayContent(array)) != constants[name].sha256:
            yield f"tensor '{name[:80]}' is not the one of the metadata (SHA-256 differs)"
    if graph is not None and module.main:
        listed = [[tensor.name for tensor in main.inputs] for main in module.main]
        inputs = {name for names in listed for name in (*names, *input_names(names))}
        # archives written before 0.11 do not list their inputs
        if inputs:
            for name in graph.arguments.keys() - params.keys() - inputs:
                yield f"no tensor for '{name[:80]}', which is an input of the graph but not of the metadata"


def relay_faults(parsed: ParsedFiles) -> Faults:
    """Yield texts that do not parse.

    TVM's archives contain ``str(module)``, which TVM's own parser rejects: it lacks the version line and the values of
    constants. Such a text is only checked to be UTF-8.
    """
    archive = parsed.archive
    for name, module in archive.record.modules.items():
        path = module.files.relay
        if path is None:
            continue
        try:
            text = archive.tar.read(path, MAX_TEXT).decode("utf-8")
            if not text.startswith(_VERSION_LINE):
                continue
            if module.details is not None and module.files.source_params is not None:
                read_source(archive, name)
            else:
                from_text(text, path)
        except UnicodeDecodeError as error:
            yield path, f"it is not UTF-8 at byte {error.start}"
        except MlfcError as error:
            if CUSTOM_OPERATOR not in error.cause:  # its declaration is not needed to run the archive
                yield told_by(error, path)

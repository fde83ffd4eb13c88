"""Whether an archive has the files that its metadata ask for and no others, and whether metadata contradict themselves.

Of contradictions those are found where no schema and no reader looks: names twice, totals, what peaks.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import PurePosixPath
from typing import Any

from mlfc.archive.read.layout import SOURCES, header_path
from mlfc.archive.read.model import FULL_MODEL, RFC, ModuleRecord
from mlfc.archive.read.opening import Archive
from mlfc.archive.templates.demo import vector_paths
from mlfc.archive.validate.parsed_files import ArchiveFault, ParsedFiles
from mlfc.runtime.executors.graph_json import COPY
from mlfc.support import dtypes
from mlfc.support.module_info import ModuleInfo, SharedInfo

_PARAMETERS = "parameters"
_GRAPHS = ("executor-config", "runtime-config")
_RUNTIME_URL = "mlf_path"


def layout_faults(parsed: ParsedFiles) -> Iterator[ArchiveFault]:
    """Yield what is missing and what should not be there."""
    archive = parsed.archive
    if archive.record.style == FULL_MODEL:
        yield from _stray_files(archive)
        yield from _shared_headers(archive)
    else:
        yield from _operator_style_faults(archive)
    present = sorted(archive.tar.sizes)
    for name, module in archive.record.modules.items():
        for text in _missing(archive, name, module, present):
            yield ArchiveFault("layout", text, "the file is missing")


def _missing(archive: Archive, name: str, module: ModuleRecord, present: Sequence[str]) -> Iterator[str]:
    layout, files = archive.layout, module.files
    stem = f"{SOURCES}/{layout.code.format(module=name)}"
    if not files.sources and not files.objects:
        yield f"{stem}0.c"
    elif module.executor == "aot" and module.details is not None and not files.objects:
        # what compiling it through its C interface takes
        if header_path(name) not in archive.tar.sizes:
            yield header_path(name)
        if not any(re.match(rf"{re.escape(stem)}[0-9]+\.", path) for path in files.sources):
            yield f"{stem}0.c"
    expected = [(layout.relay, files.relay), (layout.params, files.params)]
    if module.executor == "graph":
        expected.append((layout.graph, files.graph))
    if module.executor == "vm":
        expected.append((layout.vm, files.vm))
    for place, found in expected:
        if place is not None and found is None:
            yield place.format(module=name)
    if module.details is not None:
        yield from _missing_extras(archive, name, module, present)


def _missing_extras(archive: Archive, name: str, module: ModuleRecord, present: Sequence[str]) -> Iterator[str]:
    """Yield what metadata of ours promise beyond the format: the C runtime, test vectors."""
    for dependency in module.external_dependencies:
        url = dependency.get("url")
        if dependency.get("url_type") == _RUNTIME_URL and isinstance(url, str):
            folder = f"{PurePosixPath(url)}/"
            # of sorted paths, those that begin with the folder stand together
            at = bisect_left(present, folder)
            if not any(path.startswith(folder) for path in present[at : at + 1]):
                yield folder
    build = module.details and module.details.build
    if build and build.test_vectors:
        yield from (path for path in vector_paths(name) if path not in archive.tar.sizes)


def _stray_files(archive: Archive) -> Iterator[ArchiveFault]:
    """Yield files in the modules' folders that no module claims: a reader of another version would take them."""
    records = archive.record.modules.values()
    known = {path for module in records for path in (module.files.graph, module.files.vm, module.files.params) if path}
    stems = {path.removesuffix(PurePosixPath(path).suffix) for path in known}
    folders = (_PARAMETERS, *_GRAPHS)
    for path in archive.tar.sizes:
        if path.partition("/")[0] not in folders or path in known:
            continue
        # parameters may be there in several forms
        if not (path.startswith(f"{_PARAMETERS}/") and path.removesuffix(PurePosixPath(path).suffix) in stems):
            yield ArchiveFault("layout", path, "no module of the metadata has this file")
    for name, module in archive.record.modules.items():
        if module.executor == "aot" and module.files.graph:
            yield ArchiveFault(
                "layout", module.files.graph, f"module '{name}' is of the AOT executor, which has no graph"
            )
        if module.executor == "vm" and module.files.graph:
            yield ArchiveFault(
                "layout", module.files.graph, f"module '{name}' is of the virtual machine, which has no graph"
            )
        if module.executor != "vm" and module.files.vm:
            yield ArchiveFault(
                "layout", module.files.vm, f"module '{name}' is of the {module.executor} executor, not of vm"
            )


def _shared_headers(archive: Archive) -> Iterator[ArchiveFault]:
    """Yield modules that one header would have to serve, for headers have names in lower case."""
    owners: dict[str, str] = {}
    for name in archive.record.modules:
        owner = owners.setdefault(header_path(name), name)
        if owner != name:
            yield ArchiveFault("layout", header_path(name), f"the modules '{owner}' and '{name}' have one header")


def _operator_style_faults(archive: Archive) -> Iterator[ArchiveFault]:
    if archive.record.form != RFC and not any(re.fullmatch(r"src/tir-[0-9]+\.txt", path) for path in archive.tar.sizes):
        yield ArchiveFault("layout", "src/tir-1.txt", "the file is missing")
    for path in archive.tar.sizes:
        if path.partition("/")[0] in (_PARAMETERS, *_GRAPHS):
            yield ArchiveFault("layout", path, "archives of operator style have no such file")


def consistency_faults(parsed: ParsedFiles) -> Iterator[ArchiveFault]:
    """Yield contradictions within each module and between modules."""
    archive = parsed.archive
    for name, module in archive.record.modules.items():
        place = f"{archive.metadata_path}: {name}"
        for cause in _module_faults(module):
            yield ArchiveFault("metadata", place, cause)
    shared = archive.record.details and archive.record.details.shared
    if shared:
        for cause in _shared_faults(shared, archive.record.modules):
            yield ArchiveFault("metadata", f"{archive.metadata_path}: shared", cause)


def _module_faults(module: ModuleRecord) -> Iterator[str]:
    for device in _twice(main.device for main in module.main):
        yield f"main has device {device} twice"
    for function in _twice(function.name for function in module.operator_functions):
        yield f"the function {function} is listed twice"
    for storage in _twice(storage.storage_id for storage in module.storages or ()):
        yield f"storage id {storage} is listed twice"
    for binding in _twice(storage.input_binding for storage in module.storages or () if storage.input_binding):
        yield f"two storages hold the input '{binding}'"
    if module.details is not None:
        yield from _details_faults(module.details, module)


def _details_faults(details: ModuleInfo, module: ModuleRecord) -> Iterator[str]:
    if details.executor != module.executor:
        yield f"mlfc.executor is {details.executor}, executors says {module.executor}"
    if (details.entry is None) != (module.executor != "aot"):
        yield "mlfc.entry must name a function for the AOT executor and be null for other executors"
    if (details.vm is None) != (module.executor != "vm"):
        yield "mlfc.vm must describe modules of the virtual machine, and no others"
    if details.build is not None and details.build.executor != module.executor:
        yield f"mlfc.build.executor is {details.build.executor}, executors says {module.executor}"
    known = {function.name for function in module.operator_functions}
    for index, operator in enumerate(details.operators):
        if operator.function not in (*known, COPY):
            yield f"mlfc.operators[{index}].function: {operator.function} is not among operator_functions"
    yield from _flow_faults(details)
    yield from _memory_faults(details)
    yield from _state_faults(details)
    for index, constant in enumerate(details.constants or ()):
        size = prod(constant.shape) * dtypes.nbytes(constant.dtype)
        if size != constant.nbytes:
            yield f"mlfc.constants[{index}].bytes: {constant.nbytes}, but shape and dtype give {size}"
    for constant in _twice(constant.name for constant in details.constants or ()):
        yield f"mlfc.constants: the name '{constant}' is there twice"


def _flow_faults(details: ModuleInfo) -> Iterator[str]:
    """Yield operators that read or compute what is not there."""
    calls, states = len(details.operators), len(details.states)
    given, results = len(details.inputs) + states, len(details.outputs) + states
    for index, operator in enumerate(details.operators):
        for source in operator.reads:
            if not -given <= source < calls:
                yield f"mlfc.operators[{index}].reads: {source} is neither a call nor an input"
        for place in operator.outputs:
            if place >= results:
                yield f"mlfc.operators[{index}].outputs: there are {results} outputs, not {place + 1}"


def _memory_faults(details: ModuleInfo) -> Iterator[str]:
    memory, peak = details.memory, details.peak
    if memory.workspace_lower_bound_bytes > memory.workspace_bytes:
        yield "mlfc.memory: the workspace is smaller than its lower bound"
    live = [operator.live_bytes for operator in details.operators if operator.live_bytes is not None]
    if live and max(live) != memory.workspace_lower_bound_bytes:
        yield f"mlfc.memory: the lower bound is not the most live bytes of any operator, {max(live)}"
    if peak is None:
        return
    if peak.function not in {operator.function for operator in details.operators}:
        yield f"mlfc.peak.function: no operator has the function {peak.function}"
    if peak.live_bytes != memory.workspace_lower_bound_bytes:
        yield f"mlfc.peak.live_bytes: {peak.live_bytes} is not the workspace's lower bound"


def _state_faults(details: ModuleInfo) -> Iterator[str]:
    """Yield states that are not where the metadata say they are."""
    names = [info.name for info in (*details.inputs, *details.states)]
    for name in _twice(names):
        yield f"mlfc.states: '{name}' is there twice, or an input, too"
    placed = [(info.offset, info) for info in details.states if info.offset is not None]
    if details.executor == "graph":
        placed = []
    elif len(placed) != len(details.states):
        yield "mlfc.states: a state has no offset"
    end = 0
    for offset, info in sorted(placed, key=lambda item: item[0]):
        if offset < end:
            yield f"mlfc.states: '{info.name}' at byte {offset} overlaps what ends at byte {end}"
        end = offset + info.nbytes
    total = sum(info.nbytes for info in details.states) if details.executor == "graph" else end
    if details.memory.state_bytes != total:
        yield f"mlfc.memory.state_bytes: {details.memory.state_bytes}, but the states take {total}"


def _shared_faults(shared: SharedInfo, modules: Mapping[str, ModuleRecord]) -> Iterator[str]:
    for name in shared.workspace_modules:
        module = modules.get(name)
        if module is None:
            yield f"workspace_modules: unknown module '{name}'"
        elif any(main.workspace_bytes > shared.workspace_bytes for main in module.main):
            yield f"workspace_bytes: {shared.workspace_bytes} is less than module '{name}' needs"
    for name in _twice(shared.workspace_modules):
        yield f"workspace_modules: '{name}' is there twice"


def _twice(names: Iterable[Any]) -> Iterator[Any]:
    return (name for name, count in Counter(names).items() if count > 1)

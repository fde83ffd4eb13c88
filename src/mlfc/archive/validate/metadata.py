"""Whether metadata contradict themselves where no schema and no reader looks: names twice, totals, what peaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from mlfc.archive.read.model import ModuleRecord
from mlfc.archive.validate.parsed_files import Fault, ParsedFiles
from mlfc.runtime.executors.graph_json import COPY
from mlfc.support import dtypes
from mlfc.support.module_info import ModuleInfo, SharedInfo


def consistency_faults(parsed: ParsedFiles) -> Iterator[Fault]:
    """Yield contradictions within each module and between modules."""
    archive = parsed.archive
    for name, module in archive.record.modules.items():
        place = f"{archive.metadata_path}: {name}"
        for cause in _module_faults(module):
            yield Fault("metadata", place, cause)
    shared = archive.record.details and archive.record.details.shared
    if shared:
        for cause in _shared_faults(shared, archive.record.modules):
            yield Fault("metadata", f"{archive.metadata_path}: shared", cause)


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
    if (details.entry is None) != (module.executor == "graph"):
        yield "mlfc.entry must name a function for the AOT executor and be null for the graph executor"
    if details.build is not None and details.build.executor != module.executor:
        yield f"mlfc.build.executor is {details.build.executor}, executors says {module.executor}"
    known = {function.name for function in module.operator_functions}
    for index, operator in enumerate(details.operators):
        if operator.function not in (*known, COPY):
            yield f"mlfc.operators[{index}].function: {operator.function} is not among operator_functions"
    yield from _memory_faults(details)
    for index, constant in enumerate(details.constants or ()):
        size = prod(constant.shape) * dtypes.nbytes(constant.dtype)
        if size != constant.nbytes:
            yield f"mlfc.constants[{index}].bytes: {constant.nbytes}, but shape and dtype give {size}"
    for constant in _twice(constant.name for constant in details.constants or ()):
        yield f"mlfc.constants: the name '{constant}' is there twice"


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

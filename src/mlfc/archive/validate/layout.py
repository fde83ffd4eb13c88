"""Checks that an archive has exactly the files that its metadata require, and that the metadata are consistent."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from math import prod
from pathlib import PurePosixPath
from typing import Any

from mlfc.archive.read.layout import SOURCES, header_path
from mlfc.archive.read.model import FULL_MODEL, RFC, ModuleRecord
from mlfc.archive.read.opening import Archive
from mlfc.archive.templates.documents import vector_paths
from mlfc.archive.validate.parsed_files import Faults, ParsedFiles
from mlfc.runtime.executors.graph_json import COPY
from mlfc.support import dtypes
from mlfc.support.module_info import BlockInfo, ModuleInfo, PoolInfo, ReachInfo

_PARAMETERS = "parameters"
_GRAPHS = ("executor-config", "runtime-config")
_RUNTIME_URL = "mlf_path"


def layout_faults(parsed: ParsedFiles) -> Faults:
    """Yield missing files and files that must not exist."""
    archive = parsed.archive
    present, owners = sorted(archive.tar.sizes), dict[str, str]()
    if archive.record.style == FULL_MODEL:
        yield from _stray_files(archive)
        for name in archive.record.modules:  # header names are in lower case
            owner = owners.setdefault(header_path(name), name)
            if owner != name:
                yield header_path(name), f"modules '{owner}' and '{name}' have the same header"
    else:
        if archive.record.form != RFC and not any(re.fullmatch(r"src/tir-[0-9]+\.txt", path) for path in present):
            yield "src/tir-1.txt", "the file is missing"
        strays = (path for path in archive.tar.sizes if path.partition("/")[0] in (_PARAMETERS, *_GRAPHS))
        yield from ((path, "archives of operator style must not contain this file") for path in strays)
    for name, module in archive.record.modules.items():
        yield from ((path, "the file is missing") for path in _missing(archive, name, module, present))


def _missing(archive: Archive, name: str, module: ModuleRecord, present: Sequence[str]) -> Iterator[str]:
    layout, files = archive.layout, module.files
    stem = f"{SOURCES}/{layout.code.format(module=name)}"
    if not files.sources and not files.objects:
        yield f"{stem}0.c"
    elif module.executor == "aot" and module.details is not None and not files.objects:
        # required to compile it through its C interface
        if header_path(name) not in archive.tar.sizes:
            yield header_path(name)
        if not any(re.match(rf"{re.escape(stem)}[0-9]+\.", path) for path in files.sources):
            yield f"{stem}0.c"
    expected = [(layout.relay, files.relay), (layout.params, files.params)]
    expected += {"graph": [(layout.graph, files.graph)], "vm": [(layout.vm, files.vm)]}.get(module.executor or "", [])
    for place, found in expected:
        if place is not None and found is None:
            yield place.format(module=name)
    if module.details is None:
        return
    # files that our metadata imply beyond the format: the C runtime, test vectors
    for dependency in module.external_dependencies:
        url = dependency.get("url")
        if dependency.get("url_type") == _RUNTIME_URL and isinstance(url, str):
            folder = f"{PurePosixPath(url)}/"
            # in sorted paths, those that start with the folder are contiguous
            at = bisect_left(present, folder)
            if not any(path.startswith(folder) for path in present[at : at + 1]):
                yield folder
    if module.details.build and module.details.build.test_vectors:
        yield from (path for path in vector_paths(name) if path not in archive.tar.sizes)


def _stray_files(archive: Archive) -> Faults:
    """Yield files in the modules' folders that no module lists: readers of another version would use them."""
    records = archive.record.modules.values()
    known = {path for module in records for path in (module.files.graph, module.files.vm, module.files.params) if path}
    stems = {path.removesuffix(PurePosixPath(path).suffix) for path in known}
    folders = (_PARAMETERS, *_GRAPHS)
    for path in archive.tar.sizes:
        if path.partition("/")[0] not in folders or path in known:
            continue
        # parameters may be in several forms
        if not (path.startswith(f"{_PARAMETERS}/") and path.removesuffix(PurePosixPath(path).suffix) in stems):
            yield path, "no module of the metadata has this file"
    kinds = {"aot": "of the AOT executor", "vm": "of the virtual machine"}
    for name, module in archive.record.modules.items():
        if module.executor in kinds and module.files.graph:
            yield module.files.graph, f"module '{name}' is {kinds[module.executor]}, which has no graph"
        if module.executor != "vm" and module.files.vm:
            yield module.files.vm, f"module '{name}' is of the {module.executor} executor, not of vm"


def consistency_faults(parsed: ParsedFiles) -> Faults:
    """Yield contradictions within each module and between modules."""
    archive = parsed.archive
    for name, module in archive.record.modules.items():
        storages, place = module.storages or (), f"{archive.metadata_path}: {name}"
        for text, values in (
            ("main has device {} twice", (main.device for main in module.main)),
            ("the function {} is listed twice", (function.name for function in module.operator_functions)),
            ("storage id {} is listed twice", (storage.storage_id for storage in storages)),
            ("two storages hold the input '{}'", (item.input_binding for item in storages if item.input_binding)),
        ):
            yield from ((place, text.format(value)) for value in _twice(values))
        if module.details is not None:
            yield from ((place, cause) for cause in _details_faults(module.details, module))
    shared, place = archive.record.details and archive.record.details.shared, f"{archive.metadata_path}: shared"
    for name in shared.workspace_modules if shared else ():
        known = archive.record.modules.get(name)
        if known is None:
            yield place, f"workspace_modules: unknown module '{name}'"
        elif shared and any(main.workspace_bytes > shared.workspace_bytes for main in known.main):
            yield place, f"workspace_bytes: {shared.workspace_bytes} is less than module '{name}' needs"
    for name in _twice(shared.workspace_modules if shared else ()):
        yield place, f"workspace_modules: '{name}' is listed twice"


def _details_faults(details: ModuleInfo, module: ModuleRecord) -> Iterator[str]:
    if details.executor != module.executor:
        yield f"mlfc.executor is {details.executor}, executors declares {module.executor}"
    if (details.entry is None) != (module.executor != "aot"):
        yield "mlfc.entry must name a function for the AOT executor and be null for other executors"
    if (details.vm is None) != (module.executor != "vm"):
        yield "mlfc.vm must describe modules of the virtual machine, and no others"
    if details.build is not None and details.build.executor != module.executor:
        yield f"mlfc.build.executor is {details.build.executor}, executors declares {module.executor}"
    known = {function.name for function in module.operator_functions}
    for index, operator in enumerate(details.operators):
        if operator.function not in (*known, COPY):
            yield f"mlfc.operators[{index}].function: {operator.function} is not among operator_functions"
    calls, states = len(details.operators), len(details.states)
    given, results = len(details.inputs) + states, len(details.outputs) + states
    for index, operator in enumerate(details.operators):
        for source in operator.reads:
            if not -given <= source < calls:
                yield f"mlfc.operators[{index}].reads: {source} is neither a call nor an input"
        for place in operator.outputs:
            if place >= results:
                yield f"mlfc.operators[{index}].outputs: there are {results} outputs, not {place + 1}"
    yield from _memory_faults(details)
    for name in _twice(info.name for info in (*details.inputs, *details.states)):
        yield f"mlfc.states: '{name}' is listed twice, or is also an input"
    total = 0
    if details.executor == "graph":  # its states are arguments and have no offset in the state memory
        total = sum(info.nbytes for info in details.states)
    else:
        placed = [(info.offset, info) for info in details.states if info.offset is not None]
        if len(placed) != len(details.states):
            yield "mlfc.states: a state has no offset"
        for offset, info in sorted(placed, key=lambda item: item[0]):
            if offset < total:
                yield f"mlfc.states: '{info.name}' at byte {offset} overlaps the state that ends at byte {total}"
            total = offset + info.nbytes
    if details.memory.state_bytes != total:
        yield f"mlfc.memory.state_bytes: {details.memory.state_bytes}, but the states have {total} bytes"
    for index, constant in enumerate(details.constants or ()):
        size = prod(constant.shape) * dtypes.nbytes(constant.dtype)
        if size != constant.nbytes:
            yield f"mlfc.constants[{index}].bytes: {constant.nbytes}, but shape and dtype give {size}"
    for constant in _twice(constant.name for constant in details.constants or ()):
        yield f"mlfc.constants: the name '{constant}' is listed twice"


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


def _twice(names: Iterable[Any]) -> Iterator[Any]:
    return (name for name, count in Counter(names).items() if count > 1)


def plan_faults(parsed: ParsedFiles) -> Faults:
    """Yield blocks that contradict each other or the memory at their planned offsets."""
    archive = parsed.archive
    for name, module in archive.record.modules.items():
        details = module.details
        if details is None or details.plan is None:
            continue
        blocks, pools, workspace = details.plan, details.pools, details.memory.workspace_bytes
        size = max(pool.base + pool.nbytes for pool in pools) if pools else workspace
        wrong = dict(_single_faults(blocks, len(details.operators), size))
        for cause in (*pool_faults(pools, blocks, workspace), *wrong.values(), *overlaps(blocks, wrong)):
            yield f"{archive.metadata_path}: {name}: plan", cause


def _single_faults(blocks: Sequence[BlockInfo], calls: int, size: int) -> Iterator[tuple[int, str]]:
    """Yield the index of each block that is wrong by itself, and the fault."""
    for index, block in enumerate(blocks):
        shown, reused = _shown(block, index), block.reuses
        if not 0 <= block.first <= block.last < calls:
            yield index, f"{shown} lives from call {block.first} to call {block.last} of {calls}"
        elif block.offset + block.nbytes > size:
            yield index, f"{shown} ends at byte {block.offset + block.nbytes} of a workspace of {size}"
        elif reused is not None and not (0 <= reused < len(blocks) and reused != index):
            yield index, f"{shown} reuses block {reused}, which does not exist"
        else:
            for entry in block.reaches:
                cause = reach_fault(blocks, index, entry)
                if cause:
                    yield index, f"{shown} {cause}"


def reach_fault(blocks: Sequence[BlockInfo], index: int, entry: ReachInfo) -> str | None:
    """Return the fault in a block's claim to overlap an input; None if it is correct."""
    number, distance = entry.block, entry.distance
    if number >= len(blocks) or number == index:
        return f"reaches into block {number}, which does not exist"
    block, other = blocks[index], blocks[number]
    if other.last != block.first:
        return f"reaches into block {number}, whose last read is not in the call that writes it"
    if block.offset + distance > other.offset:
        return f"starts less than {distance} bytes before block {number}, into which it reaches"
    return None


def pool_faults(pools: Sequence[PoolInfo], blocks: Sequence[BlockInfo], workspace: int) -> Iterator[str]:
    """Yield pools that overlap or do not add up to the workspace, and blocks outside any single pool."""
    if not pools:
        return
    ordered = sorted(pools, key=lambda pool: pool.base)
    for pool, following in pairwise(ordered):
        if pool.base + pool.nbytes > following.base:
            yield f"the pools '{pool.name[:80]}' and '{following.name[:80]}' overlap"
    total = sum(pool.nbytes for pool in pools)
    if total != workspace:
        yield f"the pools have {total} bytes together, the workspace {workspace}"
    bases = [pool.base for pool in ordered]
    for index, block in enumerate(blocks):
        at = bisect_right(bases, block.offset) - 1
        end = ordered[at].base + ordered[at].nbytes if at >= 0 else 0
        if block.nbytes and block.offset + block.nbytes > end:
            yield f"{_shown(block, index)} is not within one pool"


def overlaps(blocks: Sequence[BlockInfo], skipped: Mapping[int, str]) -> Iterator[str]:
    """Yield blocks that overlap another one while both are live, except the blocks in `skipped`.

    Each call has two moments: it reads in the first and writes in the second. A block that reuses another block, or
    bytes of it, starts with the second moment of the call, the other one ends with the first, so in-place computation
    needs no special case.
    """
    given_up = {index: _given_up(blocks, block) for index, block in enumerate(blocks) if index not in skipped}
    handed_over = {number for numbers in given_up.values() for number in numbers}
    lives = []
    for index, block in enumerate(blocks):
        if index in skipped or not block.nbytes:
            continue
        takes = bool(given_up[index])
        start, end = 2 * block.first + takes, 2 * block.last + (index not in handed_over)
        lives.append((start, end, index))
    alive: list[tuple[int, int, int]] = []
    deaths: list[tuple[int, tuple[int, int, int]]] = []
    for start, end, index in sorted(lives):
        while deaths and deaths[0][0] < start:
            dead = heappop(deaths)[1]
            del alive[bisect_left(alive, dead)]
        block = blocks[index]
        item = (block.offset, block.offset + block.nbytes, index)
        at = bisect_left(alive, item)
        # live blocks never overlap, so a conflict is always with a neighbour
        for other in alive[max(0, at - 1) : at + 1]:
            if other[0] < item[1] and item[0] < other[1]:
                yield f"{_shown(block, index)} overlaps {_shown(blocks[other[2]], other[2])} while both are live"
                break
        else:
            insort(alive, item)
            heappush(deaths, (end, item))


def _given_up(blocks: Sequence[BlockInfo], block: BlockInfo) -> list[int]:
    """Return the blocks that end where this one starts, because it reuses them or bytes of them."""
    named = [block.reuses, *(entry.block for entry in block.reaches)]
    return [number for number in named if number is not None and blocks[number].last == block.first]


def _shown(block: BlockInfo, index: int) -> str:
    return f"block {index}, '{block.name[:80]}',"

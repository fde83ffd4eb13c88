"""Parts of an archive's module that are needed to run it, read and checked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from mlfc.archive.read.layout import CODE, REGISTRIES, header_path, vm_path
from mlfc.archive.read.model import ModuleRecord
from mlfc.archive.read.opening import Archive, open_archive
from mlfc.errors import ArchiveError, OptionError
from mlfc.runtime.modules.module import ExternalCode, Module, load_part, pick_module
from mlfc.support.content import Data
from mlfc.support.executable import MAX_BYTES, Executable, VmValue, decode, state_offsets, vm_info
from mlfc.support.former_name import FORMER_TRACE, current_hooks
from mlfc.support.tensor_info import Array, TensorInfo

MAX_TEXT = 64 << 20
_AGAIN = "Export the archive again"


@dataclass(frozen=True, eq=False)
class ModuleParts:
    """One module of an archive."""

    place: str  # the archive, for messages
    record: ModuleRecord
    # sources, headers and objects of the module by path under ``codegen/host``; output of external generators under
    # ``external/``
    code: Mapping[str, Data]
    digests: Mapping[str, str]  # the checked SHA-256 of `code`, if the archive lists them
    graph_json: str  # empty for other executors
    executable: bytes | None  # the description of a dynamic model
    params: Mapping[str, Array]  # loaded by the executor; mapped from the archive's file if possible
    imports: tuple[Module, ...]  # modules of other kinds, with their imports
    header: str | None  # the text of the module's C interface
    relay: str | None  # the model's Relay text; None if mlfc's own details suffice

    @property
    def executor(self) -> str | None:
        """``aot``, ``graph``, ``vm``, or None for an archive of single functions."""
        return self.record.executor


def read_parts(path: str | os.PathLike[str], module: str | None = None) -> ModuleParts:
    """Read one module of an archive.

    `module` is required if the archive contains several.
    Raises ArchiveError if the archive is damaged, contradicts itself, or lacks a part needed to run the module.
    Raises OptionError if the module does not exist, or `module` is missing and there are several.
    """
    with open_archive(path) as archive:
        name = pick_module(archive.record.modules, module, archive.path)
        record = archive.record.modules[name]
        for fault in (*archive.file_faults(), *_lacking(record)):
            raise ArchiveError(fault, place=archive.path, next_step=_AGAIN)
        files = record.files
        code: dict[str, Data] = {}
        digests: dict[str, str] = {}
        for member in (*files.sources, *files.headers, *files.objects):
            if member in REGISTRIES:
                # on this machine a library finds functions by symbol; this file refers to modules that are not loaded
                continue
            short = member.removeprefix(f"{CODE}/")
            code[short] = archive.tar.view(member)
            if FORMER_TRACE in archive.tar.sizes and member in files.sources:
                code[short] = current_hooks(archive.tar.view(member))
            elif archive.record.manifest is not None:
                digests[short] = archive.record.manifest[member].sha256
        imports = _imports(archive, record)
        for part in imports:
            if isinstance(part, ExternalCode):
                code.update(part.files)
        executable = None
        if record.executor == "vm" and files.vm is not None:
            executable, description = executable_of(archive, files.vm)
            for fault in executable_faults(description, record):
                raise ArchiveError(fault, place=f"{archive.path}: {files.vm}", next_step=_AGAIN)
        is_graph, params = record.executor == "graph", dict[str, Array]()
        if is_graph and files.params is not None:
            from mlfc.archive.read.params_forms import read_params

            params = read_params(archive.tar, files.params)
        return ModuleParts(
            place=archive.path,
            record=record,
            code=code,
            digests=digests,
            graph_json=_text(archive, files.graph, MAX_TEXT) or "" if is_graph else "",
            executable=executable,
            params=params,
            imports=imports,
            header=_text(archive, _header(record), MAX_TEXT),
            relay=None if record.details is not None else _text(archive, files.relay, MAX_TEXT),
        )


def _lacking(record: ModuleRecord) -> Iterator[str]:
    """Yield the parts that a module needs to run and the archive lacks."""
    if not record.files.sources and not record.files.objects:
        yield f"{CODE}: module '{record.name}' has no code"
    if record.executor == "graph" and record.files.graph is None:
        yield f"module '{record.name}' has no graph"
    if record.executor == "vm" and record.files.vm is None:
        yield f"{vm_path(record.name)}: the file is missing"
    if record.details is not None and record.executor == "aot" and _header(record) is None:
        yield f"{header_path(record.name)}: the file is missing"


def _header(record: ModuleRecord) -> str | None:
    path = header_path(record.name)
    return path if path in record.files.headers else None


def _text(archive: Archive, path: str | None, limit: int) -> str | None:
    if path is None:
        return None
    try:
        return archive.tar.read(path, limit).decode()
    except UnicodeDecodeError as error:
        raise ArchiveError("the file is not UTF-8 text", place=f"{archive.path}: {path}", next_step=_AGAIN) from error


def _imports(archive: Archive, record: ModuleRecord) -> tuple[Module, ...]:
    """Return the modules that the code imports, from the import tree in the details."""
    tree = record.details.module_tree if record.details else ()
    if len(tree) < 2:
        return ()
    loaded: dict[int, Module] = {}
    by_file: dict[str, Module] = {}
    roots: list[Module] = []
    for index, entry in enumerate(tree[1:], 1):
        place = f"{archive.path}: modules.{record.name}.mlfc.module_tree[{index}]"
        parent, files = entry.parent, entry.files
        if not isinstance(parent, int) or not 0 <= parent < index:
            raise ArchiveError("a module's parent must precede it", place=place, next_step=_AGAIN)
        if len(files) != 1 or files[0] not in record.files.devices:
            raise ArchiveError("a module must have one file under codegen/<its kind>", place=place, next_step=_AGAIN)
        if files[0] not in by_file:
            by_file[files[0]] = _device_module(archive, entry.type_key, PurePosixPath(files[0]))
        loaded[index] = module = by_file[files[0]]
        try:
            if parent == 0:
                roots.append(module)
            else:
                loaded[parent].import_module(module)
        except OptionError as error:
            raise ArchiveError(error.cause, place=place, next_step=_AGAIN) from error
    return tuple(roots)


def _device_module(archive: Archive, type_key: str, path: PurePosixPath) -> Module:
    try:
        return load_part(type_key, bytes(archive.tar.view(str(path))), path.suffix.removeprefix("."), path.stem)
    except ArchiveError as error:
        # loaders receive bytes without their origin
        place = f"{archive.path}: {path}: {error.place}"
        raise ArchiveError(error.cause, place=place, next_step=error.next_step) from error


def executable_of(archive: Archive, path: str) -> tuple[bytes, Executable]:
    """Return a member's bytes and the description parsed from them; raise ArchiveError if they are not one."""
    data = archive.tar.read(path, MAX_BYTES)
    return data, decode(data, place=f"{archive.path}: {path}")


def executable_faults(executable: Executable, record: ModuleRecord) -> Iterator[str]:
    """Yield each contradiction between a module's metadata and its description."""
    if executable.name != record.name:
        yield f"this describes module '{executable.name[:80]}'; expected '{record.name}'"
    details = record.details
    if details is None:
        return
    own, told, workspace = vm_info(executable), details.vm, details.memory.workspace_bytes
    if told is None:
        yield "the metadata have no object vm for it"
    else:
        arenas, areas = (own.arena_bytes, told.arena_bytes), (own.work_bytes, told.work_bytes)
        for name, pair in (("arena", arenas), ("work area", areas)):
            ours, theirs = ("unbounded" if count is None else f"{count:,} bytes" for count in pair)
            if ours != theirs:
                yield f"the size of its {name} is {ours}, but {theirs} in the metadata"
        if (own.arena_bytes or 0) != workspace:
            yield f"it has {own.arena_bytes or 0:,} bytes of arena, mlfc.memory.workspace_bytes is {workspace:,}"
        if own.symbols != tuple(told.symbols):
            yield "its dynamic dimensions or their bounds differ from those in the metadata"
    for kind, values, infos in (
        ("input", executable.inputs, details.inputs),
        ("output", executable.outputs, details.outputs),
        ("state", executable.states, details.states),
    ):
        if len(values) != len(infos):
            yield f"it has {len(values)} {kind}s, the metadata {len(infos)}"
            continue
        for value, info in zip(values, infos, strict=True):
            yield from _value_faults(f"{kind} '{value.name[:80]}'", value, info)
    offsets = [state.offset for state in details.states]
    *placed, end = state_offsets(executable)
    if len(placed) == len(offsets) and offsets != placed:
        yield "the offsets of its states differ from those in the metadata"
    if details.memory.state_bytes != end:
        yield f"it has {end:,} bytes of state, mlfc.memory.state_bytes is {details.memory.state_bytes:,}"


def _value_faults(shown: str, value: VmValue, info: TensorInfo) -> Iterator[str]:
    if value.name != info.name:
        yield f"{shown} is '{info.name[:80]}' in the metadata"
    if value.dtype != info.dtype:
        yield f"{shown}: of {value.dtype}, the metadata declare {info.dtype}"
    pairs = zip(value.extents, info.shape, strict=False)
    # dimensions that the description leaves out are expressions in the metadata
    fits = all(isinstance(theirs, str) if ours is None else ours == theirs for ours, theirs in pairs)
    if not fits or len(value.extents) != len(info.shape):
        said = ", ".join("?" if extent is None else str(extent)[:80] for extent in value.extents)
        yield f"{shown}: of shape ({said}), the metadata declare ({', '.join(str(item)[:80] for item in info.shape)})"

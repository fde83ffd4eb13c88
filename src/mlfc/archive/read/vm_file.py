"""Descriptions of dynamic models in archives, compared with the metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlfc.archive.read.model import ModuleRecord
from mlfc.archive.read.opening import Archive
from mlfc.errors import ArchiveError
from mlfc.support.executable import MAX_BYTES, Dimension, Executable, VmValue, decode, state_offsets
from mlfc.support.module_info import ModuleInfo
from mlfc.support.tensor_info import TensorInfo
from mlfc.support.vm_info import vm_info


def executable_of(archive: Archive, path: str) -> tuple[bytes, Executable]:
    """Return a member as it is, and the description that it holds; raise ArchiveError unless it is one."""
    data = archive.tar.read(path, MAX_BYTES)
    return data, decode(data, place=f"{archive.path}: {path}")


def require_own_executable(archive: Archive, record: ModuleRecord, path: str) -> bytes:
    """Return the description of a module; raise ArchiveError if it contradicts the metadata."""
    data, executable = executable_of(archive, path)
    for fault in executable_faults(executable, record):
        raise ArchiveError(fault, place=f"{archive.path}: {path}", next_step="Export the archive again")
    return data


def executable_faults(executable: Executable, record: ModuleRecord) -> Iterator[str]:
    """Yield each place where the metadata of a module contradict its description."""
    if executable.name != record.name:
        yield f"this describes the module '{executable.name[:80]}', not of '{record.name}'"
    details = record.details
    if details is None:
        return
    yield from _vm_faults(executable, details)
    for kind, values, infos in (
        ("input", executable.inputs, details.inputs),
        ("output", executable.outputs, details.outputs),
        ("state", executable.states, details.states),
    ):
        if len(values) != len(infos):
            yield f"it has {len(values)} {kind}s, the metadata {len(infos)}"
            continue
        for value, info in zip(values, infos, strict=True):
            yield from _tensor_faults(f"{kind} '{value.name[:80]}'", value, info)
    offsets = [state.offset for state in details.states]
    *own, end = state_offsets(executable)
    if len(own) == len(offsets) and offsets != own:
        yield "its states are not at the bytes that the metadata say"
    if details.memory.state_bytes != end:
        yield f"it has {end:,} bytes of state, mlfc.memory.state_bytes is {details.memory.state_bytes:,}"


def _vm_faults(executable: Executable, details: ModuleInfo) -> Iterator[str]:
    told = details.vm
    if told is None:
        yield "the metadata have no object vm for it"
        return
    own = vm_info(executable)
    for name, ours, theirs in (
        ("bytes of arena", own.arena_bytes, told.arena_bytes),
        ("bytes of work area", own.work_bytes, told.work_bytes),
    ):
        if ours != theirs:
            yield f"it has {_shown(ours)} {name}, the metadata say {_shown(theirs)}"
    workspace = details.memory.workspace_bytes
    if (own.arena_bytes or 0) != workspace:
        yield f"it has {own.arena_bytes or 0:,} bytes of arena, mlfc.memory.workspace_bytes is {workspace:,}"
    if own.symbols != tuple(told.symbols):
        yield "its open extents and their bounds are not those of the metadata"


def _shown(count: int | None) -> str:
    return "no bound of" if count is None else f"{count:,}"


def _tensor_faults(shown: str, value: VmValue, info: TensorInfo) -> Iterator[str]:
    if value.name != info.name:
        yield f"{shown} is '{info.name[:80]}' in the metadata"
    if value.dtype != info.dtype:
        yield f"{shown}: of {value.dtype}, the metadata say {info.dtype}"
    shape = value.extents
    if not _fits(shape, info.shape):
        said = ", ".join("?" if extent is None else str(extent)[:80] for extent in shape)
        yield f"{shown}: of shape ({said}), the metadata say ({', '.join(str(item)[:80] for item in info.shape)})"


def _fits(shape: Sequence[Dimension], told: Sequence[int | str]) -> bool:
    """Tell whether extents are those of the metadata; where the description has none, those have an expression."""
    if len(shape) != len(told):
        return False
    return all(
        isinstance(theirs, str) if ours is None else ours == theirs for ours, theirs in zip(shape, told, strict=True)
    )

"""The facts of dynamic models that `inspect` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mlfc.runtime.executors.vm.containers import Signature
from mlfc.support.containers import Container, ContainerInfo
from mlfc.support.executable import Executable
from mlfc.support.module_info import VmInfo

_UNBOUNDED = ("workspace_bytes", "io_bytes", "workspace_lower_bound_bytes")


def unknown_memory(memory: Mapping[str, int | None], arena_bytes: int | None) -> dict[str, None]:
    """Return what has no size of a module's memory, which holds 0 there: its arena has none if an extent has no bound.

    Older versions computed no lower bound of what the virtual machine needs.
    """
    if arena_bytes is None:
        return dict.fromkeys(_UNBOUNDED)
    is_older = arena_bytes > 0 and not memory["workspace_lower_bound_bytes"]
    return {"workspace_lower_bound_bytes": None} if is_older else {}


def described_vm(executable: Executable, info: VmInfo) -> dict[str, Any]:
    """Return dynamic dimensions, memory, and which tensors are sequences and optionals."""
    return {**info.to_json(), "containers": list(_containers(executable)), "kernels": executable.kernels}


def _containers(executable: Executable) -> Iterator[dict[str, Any]]:
    """Yield the inputs and outputs that are sequences or optionals, with the names of the tensors in their place."""
    for binding, values in (("input", executable.inputs), ("output", executable.outputs)):
        for info in Signature(values).infos:
            if isinstance(info, ContainerInfo):
                yield {
                    "binding": binding,
                    "name": info.name,
                    "kind": info.kind,
                    "dtype": info.dtype,
                    "shape": list(info.shape),
                    "tensors": list(Container(info.name, info.kind, info.dtype).parts),
                }

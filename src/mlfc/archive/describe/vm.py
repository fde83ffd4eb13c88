"""What a module of the virtual machine says of itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mlfc.runtime.executors.vm.containers import Signature
from mlfc.support.bytecode import Executable
from mlfc.support.containers import Container, ContainerInfo
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
    """Return open extents, memory, which tensors are sequences and optionals, and how much bytecode there is."""
    return {
        **info.to_json(),
        "containers": list(_containers(executable)),
        "functions": [
            {"name": function.name, "instructions": sum(1 for _ in function.instructions())}
            for function in executable.functions
        ],
        "kernels": len(executable.kernels),
    }


def _containers(executable: Executable) -> Iterator[dict[str, Any]]:
    """Yield the inputs and outputs that are no tensors, with the names of the tensors in their place."""
    for binding, values in (("input", executable.given), ("output", executable.returned)):
        for info in Signature(executable, values).infos:
            if isinstance(info, ContainerInfo):
                yield {
                    "binding": binding,
                    "name": info.name,
                    "kind": info.kind,
                    "dtype": info.dtype,
                    "shape": list(info.shape),
                    "tensors": list(Container(info.name, info.kind, info.dtype).parts),
                }

"""What a module of the virtual machine says of itself."""

from __future__ import annotations

from typing import Any

from mlfc.support.bytecode import Executable
from mlfc.support.module_info import VmInfo

_UNBOUNDED = ("workspace_bytes", "io_bytes", "workspace_lower_bound_bytes")


def unknown_memory(arena_bytes: int | None) -> dict[str, None]:
    """Return what has no size of a module's memory, which holds 0 there: its arena has none if an extent has no bound.

    Nobody computes a lower bound of what the virtual machine needs.
    """
    return dict.fromkeys(_UNBOUNDED if arena_bytes is None else ("workspace_lower_bound_bytes",))


def described_vm(executable: Executable, info: VmInfo) -> dict[str, Any]:
    """Return open extents, memory, and how much bytecode there is."""
    return {
        **info.to_json(),
        "functions": [
            {"name": function.name, "instructions": sum(1 for _ in function.instructions())}
            for function in executable.functions
        ],
        "kernels": len(executable.kernels),
    }

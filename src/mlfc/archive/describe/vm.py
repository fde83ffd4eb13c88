"""What a module of the virtual machine says of itself."""

from __future__ import annotations

from typing import Any

from mlfc.support.bytecode import Executable
from mlfc.support.module_info import VmInfo

UNBOUNDED = ("workspace_bytes", "io_bytes", "workspace_lower_bound_bytes")
"""Of memory, what has no size where an open extent has no bound."""


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

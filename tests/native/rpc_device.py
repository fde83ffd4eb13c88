"""The C runtime's RPC server as a program of this machine, under sanitizers."""

from __future__ import annotations

from pathlib import Path

from mlfc.micro.rpc.transport import LineTransport, Timeouts, program_transport
from tests.conftest import WATCHDOG
from tests.native.crt_build import PROGRAMS, SANITIZED, STRICT, compile_c, sources, write_tree

PATIENT = Timeouts(5, WATCHDOG, WATCHDOG)


def build_device(folder: Path, *flags: str) -> Path:
    """Build the program with the limits of the template for boards."""
    tree = write_tree(folder)
    files = [PROGRAMS / "rpc_device.c", *sources(tree), tree / "runtime/host/platform.c"]
    return compile_c(tree, "rpc_device", files, [*STRICT, *SANITIZED, *flags], host=False)


def transport(program: Path, timeouts: Timeouts = PATIENT) -> LineTransport:
    """Return the line of a program that `build_device` made."""
    return program_transport([str(program)], program.parent, timeouts)

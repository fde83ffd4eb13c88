"""The C runtime's RPC server as a program for this machine, under sanitizers."""

from __future__ import annotations

from pathlib import Path

from mlfc.micro.rpc.transport import LineTransport, Timeouts, program_transport
from tests.conftest import WATCHDOG
from tests.native.crt_build import PROGRAMS, SANITIZED, STRICT, compile_c, sources, write_tree

PATIENT = Timeouts(5, WATCHDOG, WATCHDOG)


def build_device(folder: Path, *flags: str) -> Path:
    """Build the program with the limits of the board template."""
    tree = write_tree(folder)
    files = [PROGRAMS / "rpc_device.c", *sources(tree), tree / "runtime/host/platform.c"]
    return compile_c(tree, "rpc_device", files, [*STRICT, *SANITIZED, *flags], host=False)


def transport(program: Path, timeouts: Timeouts = PATIENT) -> LineTransport:
    """Return a line to a program built by `build_device`."""
    return program_transport([str(program)], program.parent, timeouts)

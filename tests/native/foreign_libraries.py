"""Libraries for other systems, linked without the C library that zig would compile first, for Windows for minutes.

Those for Windows import what they need of the system itself, by the names below, and nobody here runs them. Those for
RISC-V get the C library of their emulator. What zig makes is linked for AArch64, macOS and WebAssembly.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mlfc.library import toolchain
from tests.native.foreign_programs import c_library_of

_IMPORTED = {
    "ucrtbase": (
        "__acrt_iob_func abort clock fclose fopen fprintf fread free malloc memcmp memcpy memmove memset rand snprintf "
        "srand strcmp strlen vfprintf vsnprintf _time64"
    ),
    "kernel32": "GetModuleHandleA GetProcAddress SwitchToThread",
}
# what the C library adds to every library: its entry, and a place for the threads' own variables
_START = "unsigned int _tls_index;\nint DllMainCRTStartup(void *a, unsigned b, void *c) { return 1; }\n"
RISCV = "riscv64-linux-gnu"
_ZIG = (sys.executable, "-m", "ziglang")


@contextmanager
def without_c_library() -> Generator[None, None, None]:
    """Let the ziglang wheel link for Windows against the names of functions, for RISC-V with the emulator's library."""
    real = toolchain.run_tool

    def run_tool(command: Sequence[str], folder: Path) -> None:
        words = list(map(str, command))
        if "-shared" in words and not {"x86_64-windows-gnu", RISCV}.isdisjoint(words):
            assert words[-1] == "-lm"
            words[-1:] = ["-nostdlib", *(c_library_of(RISCV) if RISCV in words else _stand_ins(folder))]
        real(words, folder)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(toolchain, "run_tool", run_tool)
        yield


def _stand_ins(folder: Path) -> list[str]:
    """Return the start and the import libraries, made in a folder."""
    (folder / "start.c").write_text(_START)
    start = str(folder / "start.o")
    command = [*_ZIG, "cc", "-target", "x86_64-windows-gnu", "-O1", "-c", str(folder / "start.c"), "-o", start]
    toolchain.run_tool(command, folder)
    libraries = []
    for library, names in _IMPORTED.items():
        lines = [f"LIBRARY {library}.dll", "EXPORTS", *names.split(), ""]
        (folder / f"{library}.def").write_text("\n".join(lines))
        libraries.append(str(folder / f"{library}.a"))
        made = [*_ZIG, "dlltool", "-m", "i386:x86-64", "-d", str(folder / f"{library}.def"), "-l", libraries[-1]]
        toolchain.run_tool(made, folder)
    return [start, *libraries]

"""Libraries for other systems, linked without zig's C library, which takes zig up to minutes (Windows) to compile.

The libraries for Windows and macOS are linked but not run. Those for Windows import the system functions listed below;
those for macOS resolve them when they are loaded. Those for AArch64 and RISC-V use the C library of their emulator,
those for WebAssembly Debian's if it is installed. Where zig is the only compiler, its C library is linked.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mlfc.library import toolchain
from tests.native.foreign_programs import ZIG_WASI, c_library_of, wasi_library

_IMPORTED = {
    "ucrtbase": (
        "__acrt_iob_func abort clock fclose fopen fprintf fputc fread free getenv malloc memcmp memcpy memmove memset "
        "rand snprintf srand strcmp strlen strtol vfprintf vsnprintf _time64"
    ),
    "kernel32": (
        "AcquireSRWLockExclusive CloseHandle CreateThread GetCurrentProcess GetLogicalProcessorInformation"
        " GetModuleHandleA GetModuleHandleExA GetProcAddress GetProcessAffinityMask QueryPerformanceCounter"
        " QueryPerformanceFrequency ReleaseSRWLockExclusive SleepConditionVariableSRW SwitchToThread"
        " WakeAllConditionVariable"
    ),
}
# the C library's part of every library: its entry point and the index of thread-local storage
_START = "unsigned int _tls_index;\nint DllMainCRTStartup(void *a, unsigned b, void *c) { return 1; }\n"
_EMULATED = ("aarch64-linux-gnu", "riscv64-linux-gnu")
_WINDOWS = "x86_64-windows-gnu"
_ZIG = (sys.executable, "-m", "ziglang")


@contextmanager
def without_c_library() -> Generator[None, None, None]:
    """Replace the C library that the ziglang wheel would compile by an installed one, import libraries, or none."""
    real = toolchain.run_tool

    def run_tool(command: Sequence[str], folder: Path) -> None:
        words = list(map(str, command))
        triple = words[words.index("-target") + 1] if "-target" in words else None
        libraries = _libraries(triple, folder) if triple and words[-1] == "-lm" else None
        real(words if libraries is None else [*words[:-1], "-nostdlib", *libraries], folder)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(toolchain, "run_tool", run_tool)
        yield


def _libraries(triple: str, folder: Path) -> list[str] | None:
    """Return the linker arguments that replace a system's C library; None to keep zig's."""
    if triple == ZIG_WASI:
        return wasi_library("reactor")
    if triple == _WINDOWS:
        return _stand_ins(folder)
    if triple in _EMULATED:
        return c_library_of(triple)
    return [] if triple.endswith("-macos") else None


def _stand_ins(folder: Path) -> list[str]:
    """Create the start-up object and the import libraries in a folder, and return their paths."""
    (folder / "start.c").write_text(_START)
    start = str(folder / "start.o")
    command = [*_ZIG, "cc", "-target", _WINDOWS, "-O1", "-c", str(folder / "start.c"), "-o", start]
    toolchain.run_tool(command, folder)
    libraries = []
    for library, names in _IMPORTED.items():
        lines = [f"LIBRARY {library}.dll", "EXPORTS", *names.split(), ""]
        (folder / f"{library}.def").write_text("\n".join(lines))
        libraries.append(str(folder / f"{library}.a"))
        made = [*_ZIG, "dlltool", "-m", "i386:x86-64", "-d", str(folder / f"{library}.def"), "-l", libraries[-1]]
        toolchain.run_tool(made, folder)
    return [start, *libraries]

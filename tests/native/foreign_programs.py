"""Programs of kernels for other processors: LLVM or C objects, and a main function that reads the inputs from stdin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite.ir as ll
import numpy as np
import numpy.typing as npt
import pytest

from mlfc.codegen.c import print_function
from mlfc.codegen.llvm.code import emit_kernel
from mlfc.codegen.llvm.machine import machine_of
from mlfc.codegen.llvm.objects import compile_object
from mlfc.library import toolchain
from mlfc.support import dtypes
from mlfc.target.target import parse_target
from mlfc.tir.ir import PrimFunc
from tests.c_files import print_file
from tests.conftest import need

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class KernelRun:
    """A kernel and its arguments.

    Attributes
    ----------
    prim : PrimFunc
    arrays : sequence of array
        Its inputs and constants.
    """

    prim: PrimFunc
    arrays: Sequence[Array]


_EMULATORS = {
    "aarch64-linux-gnu": ("qemu-aarch64", "arm64"),
    "riscv64-linux-gnu": ("qemu-riscv64", "riscv64"),
    "arm-linux-gnueabihf": ("qemu-arm", "armhf"),
}
# for dynamic programs the loader does the rest of a C library's start-up
_START = "int main(void);\n_Noreturn void exit(int);\n_Noreturn void _start(void) { exit(main()); }\n"
ZIG = (sys.executable, "-m", "ziglang", "cc")
ZIG_WASI = "wasm32-wasi"


def emulator_of(zig_target: str) -> list[str]:
    """Return the command that runs programs of a system; skip the test with the name of the missing Debian package."""
    program, package = _EMULATORS[zig_target]
    libraries = Path("/usr", zig_target)
    if not libraries.is_dir():
        pytest.skip(f"there is no C library of {zig_target}; on Debian: apt-get install libc6-{package}-cross")
    return [need(program, "qemu-user"), "-L", str(libraries)]


def c_library_of(zig_target: str) -> list[str]:
    """Return the linker's arguments for the C library of the emulator."""
    emulator_of(zig_target)
    place = Path("/usr", zig_target, "lib")
    return [*map(str, (place / "libc.so.6", place / "libm.so.6", *sorted(place.glob("ld-linux-*"))))]


def wasi_library(kind: str) -> list[str] | None:
    """Return Debian's WebAssembly C library for a "command" or a "reactor"; None if it is not installed."""
    place = Path("/usr/lib/wasm32-wasi")
    runtime = sorted(Path("/usr/lib/clang").glob("*/lib/wasi/libclang_rt.builtins-wasm32.a"))
    clocks = place / "libwasi-emulated-process-clocks.a"
    files = [place / f"crt1-{kind}.o", place / "libc.a", clocks, *runtime[-1:]]
    return [*map(str, files)] if runtime and files[0].is_file() else None


def link_program(zig_target: str, main: str, objects: Sequence[str], path: Path, *flags: str) -> None:
    """Link a program of a C file `main` and objects, all in the folder of `path`.

    It is linked with the emulator's shared C library, or Debian's for WebAssembly, because zig would first compile its
    own for each system. Programs except those for WebAssembly keep their symbols, so emulators can name the running
    function.
    """
    pytest.importorskip("ziglang", reason="pip install ziglang")
    compiler, folder = (*ZIG, "-target", zig_target), path.parent
    toolchain.run_tool([*compiler, "-O1", *flags, "-c", main, "-o", "main.o"], folder)
    if zig_target == ZIG_WASI:
        there = wasi_library("command")
        command, libraries = [*compiler, "-s", "-O2"], ["-lm"] if there is None else ["-nostdlib", *there]
    elif zig_target == "x86_64-linux-gnu":
        command, libraries = [need("gcc", "gcc"), "-no-pie"], ["-lm"]
    else:
        (folder / "start.c").write_text(_START)
        toolchain.run_tool([*compiler, "-O1", "-c", "start.c", "-o", "start.o"], folder)
        command, libraries = [*compiler, "-O2", "-nostdlib", "start.o"], c_library_of(zig_target)
    toolchain.run_tool([*command, "main.o", *objects, *libraries, "-o", path.name], folder)


def linked(runs: Sequence[KernelRun], target: str, zig_target: str, path: Path) -> None:
    """Write the program `path`; the zig target names the same kind of machine as `target`."""
    machine = machine_of(parse_target(target))
    module = ll.Module("kernels")
    for number, run in enumerate(runs):
        emit_kernel(module, run.prim, f"kernel{number}", machine=machine, contracts=False)
    (path.parent / "kernels.o").write_bytes(compile_object(module, machine))
    (path.parent / "main.c").write_text(main_text(runs))
    link_program(zig_target, "main.c", ["kernels.o"], path)


def linked_c(runs: Sequence[KernelRun], flags: Sequence[str], zig_target: str, path: Path) -> None:
    """Write the program `path` of C kernels, which zig must compile with these flags without warnings."""
    pytest.importorskip("ziglang", reason="pip install ziglang")
    functions = [print_function(run.prim, f"kernel{number}") for number, run in enumerate(runs)]
    (path.parent / "kernels.c").write_text(print_file(functions))
    warnings = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
    command = (*ZIG, "-target", zig_target, *warnings, *flags, "-c", "kernels.c", "-o", "kernels.o")
    toolchain.run_tool(command, path.parent)
    (path.parent / "main.c").write_text(main_text(runs))
    link_program(zig_target, "main.c", ["kernels.o"], path)


def results(runs: Sequence[KernelRun], program: Path, zig_target: str, cpu: str) -> list[Array]:
    """Return the kernels' outputs on an emulated processor."""
    command = [*emulator_of(zig_target), "-cpu", cpu, str(program)]
    return outputs(runs, subprocess.run(command, input=input_bytes(runs), capture_output=True, check=True).stdout)


def executed(run: KernelRun, program: Path, zig_target: str, cpu: str) -> tuple[Array, int]:
    """Return a kernel's output and the number of instructions that it executes."""
    trace = program.parent / "trace"
    tracing = ["-cpu", cpu, "-singlestep", "-d", "exec,nochain", "-D", str(trace)]
    command = [*emulator_of(zig_target), *tracing, str(program)]
    done = subprocess.run(command, input=input_bytes([run]), capture_output=True, check=True)
    with trace.open() as lines:
        return outputs([run], done.stdout)[0], sum("kernel0" in line for line in lines)


def input_bytes(runs: Sequence[KernelRun]) -> bytes:
    """Return the input of the program."""
    return b"".join(np.ascontiguousarray(array).tobytes() for run in runs for array in run.arrays)


def outputs(runs: Sequence[KernelRun], data: bytes) -> list[Array]:
    """Return the kernels' outputs, parsed from the program's output."""
    found, start = [], 0
    for run in runs:
        buffer = run.prim.output
        kind = dtypes.to_numpy(buffer.dtype)
        found.append(np.frombuffer(data, kind, buffer.size, start).reshape(buffer.shape))
        start += buffer.nbytes
    assert start == len(data)
    return found


def main_text(runs: Sequence[KernelRun]) -> str:
    """Return the C file that runs kernels called kernel0, kernel1, ... on its input and writes their outputs."""
    lines = ["#include <stdint.h>", "#include <stdio.h>"]
    body = []
    for number, run in enumerate(runs):
        sizes = [buffer.nbytes for buffer in run.prim.params]
        arguments = [f"memory[{position}]" for position in range(len(sizes))]
        reads = [f"fread(memory[{position}], 1, {size}, stdin);" for position, size in enumerate(sizes[:-1])]
        if run.prim.scratch:
            assert run.prim.scratch_bytes <= _LARGEST
            arguments.append(f"memory[{len(sizes)}]")
        params = ", ".join(["void *"] * len(arguments))
        lines.append(f"int32_t kernel{number}({params});")
        assert max(sizes) <= _LARGEST
        body += [*reads, f"if (kernel{number}({', '.join(arguments)}) != 0) return 1;"]
        body.append(f"fwrite({arguments[len(sizes) - 1]}, 1, {sizes[-1]}, stdout);")
    lines.append(f"static uint8_t memory[8][{_LARGEST}] __attribute__((aligned(64)));")
    return "\n".join([*lines, "int main(void) {", *(f"  {line}" for line in body), "  return 0;", "}", ""])


_LARGEST = 1 << 16

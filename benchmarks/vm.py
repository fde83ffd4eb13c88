"""The virtual machine's time for an instruction, in C and in Python, without what kernels compute."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.table import Table

from mlfc.crt import crt_files
from mlfc.runtime import LibraryModule, VmModel, VmModule
from mlfc.support.bytecode import Executable, ExecutableBuilder, FunctionBuilder, KernelIndex

TURNS = {"c": 1_000_000, "python": 30_000}
REPEATED = 8  # so that the loop itself is a small part
EMPTY = r"""
#include <mlfc_vm_code.h>
static int32_t empty(const mlfc_vm_buffer* buffers, const int64_t* numbers) {
  return buffers[0].bytes < numbers[0];
}
static const mlfc_vm_kernel_entry kernels[] = {{empty, 3, 2, 1}};
const mlfc_vm_code tvmgen_bench_vm_code = {1, kernels, 0, 0};
"""


def table(folder: Path) -> Table:
    """Return nanoseconds per instruction, for loops of several kinds of instructions.

    Parameters
    ----------
    folder : Path
        Build folder.
    """
    library = LibraryModule(build(folder))
    result = Table(title="Virtual machine: nanoseconds per instruction")
    for name in ("instructions", "C", "Python"):
        result.add_column(name, justify="left" if name == "instructions" else "right")
    for name, write in _LOOPS.items():
        cells = [_nanoseconds(program(write, turns), library, how, turns) for how, turns in TURNS.items()]
        result.add_row(name, *(f"{cell:,.1f}" for cell in cells))
    return result


def build(folder: Path) -> Path:
    """Compile the C interpreter and an empty kernel to a shared library."""
    parts = crt_files("include", "vm_host", "src/runtime/crt/vm")
    for name, content in {**parts, "kernels.c": EMPTY.encode()}.items():
        path = folder / "vm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    sources = [folder / "vm" / name for name in (*parts, "kernels.c") if name.endswith(".c")]
    library = folder / "vm.so"
    command = ["cc", "-std=c99", "-O2", "-shared", "-fPIC", "-I", str(folder / "vm/include"), "-o", str(library)]
    subprocess.run([*command, *map(str, sources)], check=True)
    return library


Write = Callable[[FunctionBuilder, KernelIndex], None]


def _integers(f: FunctionBuilder, _: KernelIndex) -> None:
    a = f.integer(7)
    b = f.compute("mul", a, 3)
    f.compute("floordiv", b, 4)
    f.require_range(b, 0, 100, "b")


def _tensors(f: FunctionBuilder, _: KernelIndex) -> None:
    (t,) = f.parameters
    n = f.extent(t, 0)
    view = f.view(t, 0, "int32", [n, 1])
    f.move(view)
    f.element(t, 3)


def _storages(f: FunctionBuilder, _: KernelIndex) -> None:
    storage = f.storage(256)
    tensor = f.tensor(storage, 0, "float32", [8, 8])
    f.release(storage)
    f.drop(tensor)


def _kernels(f: FunctionBuilder, empty: KernelIndex) -> None:
    (t,) = f.parameters
    place = f.storage(64, 0)
    for _ in range(3):
        f.invoke(empty, [t, t, place], [8])


_LOOPS: dict[str, Write] = {
    "integer, compute, require_range": _integers,
    "extent, view, move, element": _tensors,
    "storage, tensor, release, drop": _storages,
    "invoke of an empty kernel": _kernels,
}
_IN_BODY = 4


def program(write: Write, turns: int) -> Executable:
    """Return a loop whose body has the instructions that `write` writes, several times."""
    builder = ExecutableBuilder("bench")
    empty = builder.kernel("empty", 3, 2, 1)
    builder.input("x", "int32", (64,))
    main = builder.function("main", 1, 0)
    count = main.integer(0)
    loop, done = main.label(), main.label()
    main.place(loop)
    main.branch(main.compute("lt", count, turns), done)
    for _ in range(REPEATED):
        write(main, empty)
    main.compute("add", count, 1, count)
    main.jump(loop)
    main.place(done)
    main.return_([])
    return builder.build(64)


def _nanoseconds(executable: Executable, library: LibraryModule, interpreter: str, turns: int) -> float:
    """Return the best of several runs, per instruction, in time of the thread: other work on the machine has none."""
    model: VmModel = VmModule(executable).model_with(library, interpreter=interpreter, turn_limit=None)
    given = np.zeros(64, np.int32)
    best = float("inf")
    for _ in range(5):
        start = time.thread_time()
        model.call(0, [given])
        best = min(best, time.thread_time() - start)
    return best / turns / (REPEATED * _IN_BODY + 4) * 1e9

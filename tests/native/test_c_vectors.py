"""Printed vector code against the interpreter, with every installed compiler."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlfc.codegen.c import print_function
from mlfc.library import toolchain
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir import interpreter, ir
from mlfc.tir.ir import Buffer, PrimFunc
from tests.c_files import print_file
from tests.conftest import need
from tests.native.c_functions import Functions
from tests.native.llvm_functions import run_kernel
from tests.verify_tir import verify

FILES = ((16,), (8, 4))
"""Vector lanes per file: the widest vector determines the number of parts of all vectors in its file."""
WARNINGS = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror")

# name: (flags, required processor features); the number of parts of a vector and the forms of dot4 differ
MACHINES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "native": (("-march=native",), ()),
    "x86-64": (("-march=x86-64",), ("sse2",)),
    "no-instructions": (("-march=x86-64", "-U__SSE2__"), ("sse2",)),
    "avx": (("-mavx",), ("avx",)),
    "avx2": (("-mavx2", "-mfma"), ("avx2", "fma")),
    "avxvnni": (("-mavx2", "-mavxvnni"), ("avx_vnni",)),
    "avx512bw": (("-march=skylake-avx512",), ("avx512bw", "avx512vl", "avx512dq", "avx512cd")),
}


@cache
def abilities() -> frozenset[str]:
    """Return the features that Linux reports for an x86 processor; an empty set elsewhere."""
    info = Path("/proc/cpuinfo")
    if platform.machine() not in ("x86_64", "AMD64") or not info.is_file():
        return frozenset()
    lines = info.read_text(errors="replace").splitlines()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def runnable() -> list[str]:
    """Return the names of the MACHINES whose code this processor can run."""
    names = [name for name, (_, needed) in MACHINES.items() if abilities().issuperset(needed)]
    return [name for name in names if name != "default" or "x86-64" not in names]  # the two are the same


def tiled_product(rows: int, depth: int, lanes: int) -> PrimFunc:
    """Return a matrix product with a register tile of rows x two vectors, followed by a clamp."""
    b = tb.StmtBuilder()
    width = 2 * lanes
    data, output = Buffer("data", (rows, depth), "float32"), Buffer("output", (rows, width), "float32")
    weights = Buffer("weights", (depth, width), "float32")
    sums = b.local("sums", (rows, 2), f"float32x{lanes}")
    with b.loop(rows, "row", "unrolled") as row, b.loop(2, "half", "unrolled") as half:
        b.store(sums, [row, half], tb.const(0.0, f"float32x{lanes}"))
    with b.loop(depth, "k") as k, b.loop(2, "half", "unrolled") as half:
        w = b.let("w", tb.load(weights, [k, half * lanes], lanes))
        with b.loop(rows, "row", "unrolled") as row:
            b.store(sums, [row, half], tb.load(sums, [row, half]) + tb.broadcast(tb.load(data, [row, k]), lanes) * w)
    with b.loop(rows, "row", "unrolled") as row, b.loop(2, "half", "unrolled") as half:
        b.store(output, [row, half * lanes], tb.clamp(tb.load(sums, [row, half]), -1.0, 6.0))
    return PrimFunc(f"product_{lanes}", (data,), (weights,), output, (), b.finish(), macs=rows * depth * width)


def dot_product(lanes: int, *, broadcast: bool) -> PrimFunc:
    b = tb.StmtBuilder()
    kind = "broadcast" if broadcast else "full"
    a = Buffer("a", (3, 4 if broadcast else 4 * lanes), "uint8")
    w, output = Buffer("w", (3, 4 * lanes), "int8"), Buffer("output", (lanes,), "int32")
    total = b.local("total", (1,), f"int32x{lanes}")
    b.store(total, [0], tb.const(-5, f"int32x{lanes}"))
    with b.loop(3, "k") as k:
        left = tb.load(a, [k, 0], 4 if broadcast else 4 * lanes)
        value = tb.intrinsic("dot4_u8s8", tb.load(total, [0]), left, tb.load(w, [k, 0], 4 * lanes))
        b.store(total, [0], value)
    b.store(output, [0], tb.load(total, [0]))
    return PrimFunc(f"dot_{kind}_{lanes}", (a,), (w,), output, (), b.finish())


def vector_operations(dtype: str, lanes: int) -> PrimFunc:
    b = tb.StmtBuilder()
    inputs = tuple(Buffer(name, (lanes,), dtype) for name in ("x", "y"))
    output = Buffer("output", (6, lanes), dtype)
    x, y = (b.let(buffer.name, tb.load(buffer, [0], lanes)) for buffer in inputs)
    greater = tb.binary("gt", x, tb.const(0, x.dtype))
    results = [x + y, x - 1, tb.minimum(x, y), tb.maximum(x, 3), ir.Select(greater, x, y, x.dtype), x * y]
    for row, value in enumerate(results):
        b.store(output, [row, 0], value)
    return PrimFunc(f"operations_{dtype}_{lanes}", inputs, (), output, (), b.finish())


def widening(lanes: int) -> PrimFunc:
    b = tb.StmtBuilder()
    source, output = Buffer("source", (lanes,), "int8"), Buffer("output", (lanes,), "float32")
    wide = tb.cast(tb.load(source, [0], lanes), "int32")
    b.store(output, [0], tb.cast(wide, "float32") * 0.5)
    return PrimFunc(f"widening_{lanes}", (source,), (), output, (), b.finish())


def random_arrays(buffers: tuple[Buffer, ...], seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    arrays = []
    for buffer in buffers:
        if buffer.dtype.startswith("float"):
            arrays.append(rng.standard_normal(buffer.shape).astype(buffer.dtype))
        else:
            limits = np.iinfo(buffer.dtype)
            arrays.append(rng.integers(limits.min, limits.max + 1, buffer.shape).astype(buffer.dtype))
    return arrays


def moved_by_one(lanes: int) -> PrimFunc:
    """Return a function whose store overwrites what the next part of the same statement reads."""
    b = tb.StmtBuilder()
    data, output = Buffer("data", (lanes + 1,), "float32"), Buffer("output", (lanes + 1,), "float32")
    row = b.local("row", (lanes + 1,), "float32")
    with b.loop(lanes + 1, "i") as i:
        b.store(row, [i], tb.load(data, [i]))
    b.store(row, [1], tb.load(row, [0], lanes))
    with b.loop(lanes + 1, "i") as i:
        b.store(output, [i], tb.load(row, [i]))
    return PrimFunc(f"moved_{lanes}", (data,), (), output, (), b.finish())


@cache
def functions_of(widths: tuple[int, ...]) -> tuple[PrimFunc, ...]:
    makers: list[Callable[[int], PrimFunc]] = [lambda lanes: tiled_product(5, 7, lanes), widening, moved_by_one]
    prims: list[PrimFunc] = []
    for lanes in widths:
        prims += [make(lanes) for make in makers]
        prims += [dot_product(lanes, broadcast=flag) for flag in (False, True)]
        prims += [vector_operations(dtype, lanes) for dtype in ("float32", "int8", "int32", "uint8")]
    for prim in prims:
        verify(prim)
    return tuple(prims)


def extremes(prim: PrimFunc) -> list[Any]:
    """Return arrays of the largest and smallest numbers, whose pairwise sums of products exceed 16 bits."""
    arrays = []
    for buffer in prim.params[:-1]:
        low, high = (-3e38, 3e38) if buffer.dtype == "float32" else dtypes.limits(buffer.dtype)
        places = np.arange(buffer.size).reshape(buffer.shape)
        arrays.append(np.where(places // 8 % 2 == 1, low, high).astype(buffer.dtype))
    return arrays


@cache
def expected_of(widths: tuple[int, ...]) -> list[tuple[PrimFunc, list[Any], Any]]:
    """Return functions, arrays for their inputs and constants, and the interpreter's results."""
    found = []
    for seed, prim in enumerate(functions_of(widths)):
        for arrays in (random_arrays(prim.params[:-1], seed), extremes(prim)):
            with np.errstate(all="ignore"):
                expected = interpreter.run(prim, arrays[: len(prim.inputs)], arrays[len(prim.inputs) :])
            found.append((prim, arrays, expected))
    return found


def linked_by_gcc(real: Callable[[Sequence[str], Path], None]) -> Callable[[Sequence[str], Path], None]:
    """Return a `toolchain.run_tool` that links with gcc, because zig would first compile its own C library."""

    def run_tool(command: Sequence[str], folder: Path) -> None:
        is_link = "-shared" in command
        real([need("gcc", "gcc"), *command[command.index("cc") + 1 :]] if is_link else command, folder)

    return run_tool


@pytest.mark.parametrize(
    ("compiler", "machine"),
    [*((compiler, machine) for compiler in ("gcc", "clang") for machine in runnable()), ("zig", "native")],
)
def test_vector_functions(compiler: str, machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags, _ = MACHINES[machine]
    if compiler == "zig":
        pytest.importorskip("ziglang", reason="pip install ziglang")
        monkeypatch.setenv("CC", f"{sys.executable} -m ziglang cc")
        monkeypatch.setattr(toolchain, "run_tool", linked_by_gcc(toolchain.run_tool))
    else:
        monkeypatch.setenv("CC", need(compiler, compiler))
    for number, widths in enumerate(FILES):
        folder = tmp_path / str(number)
        folder.mkdir()
        functions = Functions(functions_of(widths), folder, (*flags, "-O1", "-ffp-contract=off"))
        for prim, arrays, expected in expected_of(widths):
            inputs, constants = arrays[: len(prim.inputs)], arrays[len(prim.inputs) :]
            np.testing.assert_array_equal(functions.call(prim, inputs, constants), expected, err_msg=prim.name)


# gcc and clang without GNU extensions beyond those in their headers
PLAIN = """#include <math.h>
#include <stdint.h>
#include <string.h>
#undef __GNUC__
#define __attribute__(x) a_gnu_extension
#define __extension__ a_gnu_extension
"""


@pytest.mark.parametrize("compiler", ["gcc", "clang", "tcc"])
def test_compilers_without_vectors(compiler: str, tmp_path: Path) -> None:
    """Compile vectors as scalars per lane; a file with vectors of different numbers of lanes does not compile."""
    (tmp_path / "plain.h").write_text(PLAIN)
    plain = ("-O1", "-std=c99", "-pedantic-errors", "-ffp-contract=off", "-include", str(tmp_path / "plain.h"))
    flags = () if compiler == "tcc" else plain
    done = []
    for number, widths in enumerate(FILES):
        source, library = tmp_path / f"f{number}.c", tmp_path / f"f{number}.so"
        source.write_text(print_file([print_function(prim) for prim in functions_of(widths)]))
        line = [need(compiler, compiler), *flags, "-shared", "-fPIC", str(source), "-o", str(library), "-lm"]
        done.append(subprocess.run(line, capture_output=True, text=True, check=False))
    assert done[0].returncode == 0, done[0].stderr[:2000]
    assert done[1].returncode != 0
    assert "expected a compiler with GNU C vectors" in done[1].stderr
    functions = ctypes.CDLL(str(tmp_path / "f0.so"))
    for prim, arrays, expected in expected_of(FILES[0]):
        np.testing.assert_array_equal(run_kernel(functions[prim.name], prim, arrays), expected, err_msg=prim.name)


@pytest.mark.parametrize("flags", [("-m32",), ("-m32", "-msse2"), ("-m32", "-march=haswell")], ids=" ".join)
def test_32_bit_processors(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Compile for processors that compute floats as long doubles, which cannot be mixed with float vectors."""
    gcc = need("gcc", "gcc")
    empty = tmp_path / "empty.c"
    empty.write_text("#include <stdint.h>\nint main(void) { return 0; }\n")
    if subprocess.run(
        [gcc, "-m32", str(empty), "-o", str(tmp_path / "empty")], capture_output=True, check=False
    ).returncode:
        pytest.skip("gcc builds no 32-bit programs; on Debian: apt-get install gcc-multilib")
    compile_alone((gcc, *flags), tmp_path)


@pytest.mark.parametrize(
    "flags", [("-mcpu=cortex-m4", "-mthumb"), ("-mcpu=cortex-a7", "-mfpu=neon", "-mfloat-abi=hard")], ids=" ".join
)
def test_32_bit_arm(flags: tuple[str, ...], tmp_path: Path) -> None:
    compile_alone((need("arm-none-eabi-gcc", "gcc-arm-none-eabi"), *flags), tmp_path)


@pytest.mark.parametrize("cpu", ["generic", "generic+dotprod", "generic+i8mm"])
def test_64_bit_arm(cpu: str, tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="pip install ziglang")
    compile_alone((sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu", f"-mcpu={cpu}"), tmp_path)


def compile_alone(command: Sequence[str], folder: Path) -> None:
    """Compile the functions without a warning."""
    for number, widths in enumerate(FILES):
        source = folder / f"vectors_{number}.c"
        source.write_text(print_file([print_function(prim) for prim in functions_of(widths)]))
        line = [*command, *WARNINGS, "-c", str(source), "-o", str(folder / "vectors.o")]
        result = subprocess.run(line, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr[:2000]

"""Kernels as LLVM objects: the instructions of each processor, and the same results with all of them."""

from __future__ import annotations

import re
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.ir as ll
import numpy as np
import numpy.typing as npt
import pytest

from mlfc.codegen.c import print_function
from mlfc.codegen.llvm.code import emit_kernel
from mlfc.codegen.llvm.machine import machine_of
from mlfc.codegen.llvm.objects import compile_object, optimize_module, parse
from mlfc.errors import OptionError
from mlfc.relay import ir
from mlfc.target.features import Features
from mlfc.target.target import parse_target
from mlfc.tir import builder as tb
from mlfc.tir import interpreter
from mlfc.tir.ir import Buffer, PrimFunc
from mlfc.transform.lower_group import lower_group
from tests.c_files import print_file
from tests.conftest import need
from tests.native.foreign_programs import KernelRun, emulator_of, input_bytes, linked, outputs
from tests.native.kernel_runner import group_of
from tests.native.llvm_functions import library_of
from tests.native.test_c_expressions import pointwise, requantize_inputs
from tests.native.test_c_vectors import (
    FILES,
    abilities,
    dot_product,
    extremes,
    functions_of,
    random_arrays,
    tiled_product,
)
from tests.native.test_dsp_kernels import ALL, DSP, requantized, weights_of
from tests.native.test_kernels import CASES, attributes, random_integers

# name: (target, required processor features)
X86 = {
    "v1": ("llvm -mcpu=x86-64", ("sse2",)),
    "v2": ("llvm -mcpu=x86-64-v2", ("sse4_2",)),
    "v3": ("llvm -mcpu=x86-64-v3", ("avx2", "fma")),
    "v3-vnni": ("llvm -mcpu=x86-64-v3 -mattr=+avxvnni", ("avx_vnni",)),
    "v4": ("llvm -mcpu=x86-64-v4", ("avx512bw", "avx512vl", "avx512dq", "avx512cd")),
    "v4-vnni": ("llvm -mcpu=x86-64-v4 -mattr=+avx512vnni", ("avx512bw", "avx512vl", "avx512_vnni")),
}


def assembly(prim: PrimFunc, target: str, *, contracts: bool = False) -> str:
    """Return the optimized assembly of a kernel."""
    machine = machine_of(parse_target(target))
    module = ll.Module("kernel")
    emit_kernel(module, prim, "kernel", machine=machine, contracts=contracts)
    parsed = parse(module, machine)
    optimize_module(parsed, machine)
    return str(machine.target_machine().emit_assembly(parsed))


@pytest.mark.parametrize("name", [name for name, (_, needed) in X86.items() if abilities().issuperset(needed)])
def test_every_level_of_x86_computes_the_same(name: str) -> None:
    machine = machine_of(parse_target(X86[name][0]))
    for number, prims in enumerate(map(functions_of, FILES)):
        library = library_of({prim.name: prim for prim in prims}, machine, contracts=False)
        for prim in prims:
            for arrays in (random_arrays(prim.params[:-1], number), extremes(prim)):
                with np.errstate(all="ignore"):
                    expected = interpreter.run(prim, arrays[: len(prim.inputs)], arrays[len(prim.inputs) :])
                assert library.call(prim, arrays).tobytes() == expected.tobytes(), prim.name


INSTRUCTIONS = [
    ("x86-64-v4", "+avx512vnni", r"vpdpbusd\s.*%zmm"),
    ("x86-64-v4", "", r"vpmaddwd\s.*%zmm"),
    ("x86-64-v3", "+avxvnni", r"vpdpbusd\s.*%ymm"),
    ("x86-64-v3", "", r"vpmaddwd\s.*%ymm"),
    ("x86-64", "", r"pmaddwd\s.*%xmm"),
    ("neoverse-n1", "", r"\bsdot\s+v\d+\.4s"),
    ("generic", "+i8mm,+dotprod", r"\busdot\s+v\d+\.4s"),
]


@pytest.mark.parametrize(("cpu", "attributes", "pattern"), INSTRUCTIONS)
def test_dot_products_are_the_processors_own(cpu: str, attributes: str, pattern: str) -> None:
    triple = "x86_64-linux-gnu" if cpu.startswith("x86") else "aarch64-linux-gnu"
    option = f" -mattr={attributes}" if attributes else ""
    text = assembly(dot_product(16, broadcast=True), f"llvm -mtriple={triple} -mcpu={cpu}{option}")
    assert re.search(pattern, text), text


def dsp_operations() -> PrimFunc:
    """Return a function with all operations on words."""
    size = 24
    data = Buffer("data", (size, 4), "int8")
    weights = Buffer("weights", (size, 2), "int16")
    output = Buffer("output", (size, 8), "int32")
    b = tb.StmtBuilder()
    with b.loop(size, "i") as i:
        word = b.let("word", tb.intrinsic("word", tb.load(data, [i, 0], 4), dtype="int32"))
        pair = b.let("pair", tb.intrinsic("word", tb.load(weights, [i, 0], 2), dtype="int32"))
        even, odd = (b.let(name, tb.intrinsic(f"{name}_bytes", word)) for name in ("even", "odd"))
        total = tb.const(1000)
        results = [even, odd, tb.intrinsic("dot2", total, even, odd)]
        results += [tb.intrinsic(f"mac_{letters}", total, odd, pair) for letters in ("bb", "bt", "tb", "tt")]
        results.append(tb.intrinsic("saturate_byte", pair))
        for column, value in enumerate(results):
            b.store(output, [i, column], value)
    return PrimFunc("words", (data, weights), (), output, (), b.finish())


def test_words_are_taken_by_instructions_for_pairs() -> None:
    text = assembly(dsp_operations(), "llvm -mcpu=cortex-m4")
    for instruction in ("sxtb16", "smlad", "smlabb", "smlabt", "smlatb", "smlatt", "ssat"):
        assert re.search(rf"\b{instruction}\b", text), instruction
    plain = assembly(dsp_operations(), "llvm -mcpu=cortex-m3")
    assert not re.search(r"\b(smla|sxtb16)", plain)


@pytest.mark.parametrize("lanes", [4, 16])
def test_products_and_sums_are_fused_only_where_they_may_be(lanes: int) -> None:
    product, target = tiled_product(5, 7, lanes), "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3"
    assert "vfmadd" in assembly(product, target, contracts=True)
    assert "vfmadd" not in assembly(product, target)
    assert "fma" not in assembly(product, "llvm -mtriple=x86_64-linux-gnu", contracts=True)


@pytest.mark.parametrize("use", ["added", "subtracted", "added twice", "stored too"])
def test_products_with_a_name_are_fused_as_by_gcc(use: str, tmp_path: Path) -> None:
    """Fuse through names: long expressions are split, and static and dynamic kernels may be split differently."""
    x, y = Buffer("x", (64,), "float32"), Buffer("y", (64,), "float32")
    output = Buffer("output", (64, 2), "float32")
    stmts = tb.StmtBuilder()
    with stmts.loop(64, "i") as i:
        product = stmts.let("product", tb.load(x, [i]) * tb.load(y, [i]))
        first = tb.load(x, [i]) - product if use == "subtracted" else product + tb.load(y, [i])
        stmts.store(output, [i, 0], first)
        if use in ("added twice", "stored too"):
            stmts.store(output, [i, 1], product + tb.load(x, [i]) if use == "added twice" else product)
    prim = PrimFunc("tested", (x, y), (), output, (), stmts.finish(), ())
    need("gcc", "gcc")
    (tmp_path / "kernel.c").write_text(print_file([print_function(prim, "kernel")]))
    flags = ("-std=c99", "-O3", "-march=x86-64-v3", "-ffp-contract=fast", "-S", "-o", "-")
    theirs = subprocess.run(
        ["gcc", *flags, str(tmp_path / "kernel.c")], capture_output=True, text=True, check=True
    ).stdout
    ours = assembly(prim, "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3", contracts=True)
    is_fused = use != "stored too"
    assert bool(re.search(r"vfn?m(add|sub)", theirs)) == bool(re.search(r"vfn?m(add|sub)", ours)) == is_fused
    assert bool(re.search(r"\bvmulps", theirs)) == bool(re.search(r"\bvmulps", ours)) == (not is_fused)


def test_registers_hold_the_tile() -> None:
    case = CASES["1x1"]
    x = ir.Var("x", ir.TensorType(case.data, "float32"))
    weights = np.ones((*case.kernel, case.data[3], case.filters), np.float32)
    call = ir.call("nn.conv2d", [x, ir.const(weights)], **attributes(case))
    prim = lower_group(group_of(call, [x]), Features(vector_registers=32)).prim
    text = assembly(prim, "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v4", contracts=True)
    loops = re.findall(r"^\.L\w+:\n((?:(?!\.L).*\n)*?\tj\w+\t\.L)", text, re.MULTILINE)
    busiest = max(loops, key=lambda loop: loop.count("vfmadd231ps"))
    assert busiest.count("vfmadd231ps") >= 8
    assert "%rsp" not in busiest, busiest


def test_only_sums_that_are_proven_to_fit_are_promised_not_to_wrap() -> None:
    data, output = Buffer("data", (8,), "int32"), Buffer("output", (8,), "int32")
    b = tb.StmtBuilder()
    with b.loop(8, "i") as i:
        value = tb.load(data, [i])
        b.store(output, [i], (value & 255) * 3 + value)
    module = ll.Module("kernels")
    machine = machine_of(parse_target("llvm -mtriple=x86_64-linux-gnu"))
    emit_kernel(module, PrimFunc("sums", (data,), (), output, (), b.finish()), "sums", machine=machine, contracts=False)
    assert re.search(r"mul nsw i32 .*3", str(module))
    assert re.search(r"add i32 ", str(module))  # it may overflow


def test_a_fence_is_no_instruction() -> None:
    def two(fenced: bool) -> PrimFunc:
        b = tb.StmtBuilder()
        data, output = Buffer("data", (1,), "int32"), Buffer("output", (2,), "int32")
        b.store(output, [0], tb.load(data, [0]))
        if fenced:
            b.fence("read again")
        b.store(output, [1], tb.load(data, [0]))
        return PrimFunc("two", (data,), (), output, (), b.finish())

    target = "llvm -mtriple=x86_64-linux-gnu"
    fenced, plain = (
        re.findall(r"^\t(?!\.|#)\S.*$", assembly(two(flag), target), re.MULTILINE) for flag in (True, False)
    )
    assert sum("(%rdi)" in line for line in fenced) == 2  # the fence forces a second load
    assert sum("(%rdi)" in line for line in plain) == 1
    assert not any(line.split()[0] in ("mfence", "lock") for line in fenced)


def test_numbers_that_begin_with_their_highest_byte_are_refused() -> None:
    with pytest.raises(OptionError, match="expected a little-endian machine"):
        machine_of(parse_target("llvm -mtriple=powerpc64-linux-gnu"))


def test_objects_are_the_same_every_time() -> None:
    machine = machine_of(parse_target("llvm -mtriple=aarch64-linux-gnu"))

    def once() -> bytes:
        module = ll.Module("kernels")
        emit_kernel(module, tiled_product(5, 7, 8), "kernel", machine=machine, contracts=True)
        return compile_object(module, machine)

    assert once() == once()


@cache
def foreign_runs() -> list[tuple[KernelRun, npt.NDArray[Any]]]:
    """Return kernels of all kinds with data and their expected results."""
    runs = [
        KernelRun(prim, arrays)
        for prim in (*functions_of((16,)), *functions_of((4,)), dsp_operations())
        for arrays in (random_arrays(prim.params[:-1], 3), extremes(prim))
    ]
    columns = [column[:1000] for column in requantize_inputs()]
    for name in ("requantize_double", "requantize_single", "requantize_away"):
        prim = pointwise(name, ["int32"] * 3, "int32", columns[0].size, lambda *args, n=name: tb.intrinsic(n, *args))
        runs.append(KernelRun(prim, columns))
    for name in ("1x1", "depthwise"):
        case = ALL[name]
        group = lower_group(requantized(case, weights_of(case), np.arange(case.filters, dtype=np.int32), 0.001), DSP)
        data = random_integers(np.random.default_rng(9), "int8", case.data)
        runs.append(KernelRun(group.prim, [data, *group.constants]))
    for name in ("exp_f32", "exp_below_f32", "tanh_f32", "erf_f32"):
        prim = pointwise(name, ["float32"], "float32", 64, lambda v, n=name: tb.intrinsic(n, v))
        runs.append(KernelRun(prim, [np.linspace(-9, 9, 64, dtype=np.float32)]))
    with np.errstate(all="ignore"):
        return [(run, _interpreted(run)) for run in runs]


def _interpreted(run: KernelRun) -> npt.NDArray[Any]:
    count = len(run.prim.inputs)
    return np.asarray(interpreter.run(run.prim, run.arrays[:count], run.arrays[count:]))


FOREIGN = {
    "aarch64": ("llvm -mtriple=aarch64-linux-gnu", "aarch64-linux-gnu"),
    "aarch64-dotprod": ("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1", "aarch64-linux-gnu"),
    "aarch64-i8mm": ("llvm -mtriple=aarch64-linux-gnu -mattr=+i8mm", "aarch64-linux-gnu"),
    "riscv64": ("llvm -mtriple=riscv64-linux-gnu", "riscv64-linux-gnu"),
    "thumb-dsp": ("llvm -mtriple=thumbv7em-none-eabihf -mcpu=cortex-m4", "arm-linux-gnueabihf"),
    "wasm": ("llvm -mtriple=wasm32-wasi", "wasm32-wasi"),
    "wasm-simd": ("llvm -mtriple=wasm32-wasi -mattr=+simd128", "wasm32-wasi"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_other_processors_compute_the_same(name: str, tmp_path: Path) -> None:
    target, zig_target = FOREIGN[name]
    runs = [run for run, _ in foreign_runs()]
    program = tmp_path / "program"
    linked(runs, target, zig_target, program)
    found = outputs(runs, _emulated(program, zig_target, input_bytes(runs)))
    for (run, expected), output in zip(foreign_runs(), found, strict=True):
        np.testing.assert_array_equal(output, expected, err_msg=run.prim.name)


def _emulated(program: Path, zig_target: str, data: bytes) -> bytes:
    if zig_target != "wasm32-wasi":
        command = [*emulator_of(zig_target), str(program)]
        return subprocess.run(command, input=data, capture_output=True, check=True).stdout
    wasmtime = pytest.importorskip("wasmtime")
    (program.parent / "in").write_bytes(data)
    engine = wasmtime.Engine()
    store, linker = wasmtime.Store(engine), wasmtime.Linker(engine)
    settings = wasmtime.WasiConfig()
    settings.stdin_file, settings.stdout_file = str(program.parent / "in"), str(program.parent / "out")
    store.set_wasi(settings)
    linker.define_wasi()
    instance = linker.instantiate(store, wasmtime.Module.from_file(engine, str(program)))
    with suppress(wasmtime.ExitTrap):  # every program exits this way; its output shows whether it was complete
        instance.exports(store)["_start"](store)
    return (program.parent / "out").read_bytes()

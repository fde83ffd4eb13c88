"""Small hand-written programs."""

from __future__ import annotations

import numpy as np

from mlfc import memory
from mlfc.codegen import GeneratedCode, Unit, generate
from mlfc.relay.ir import Quantization
from mlfc.support import c_names
from mlfc.target.features import Features
from mlfc.target.target import Target
from mlfc.tir import builder as tb
from mlfc.tir.ir import Buffer, PrimFunc
from mlfc.tir.program import KernelCall, Program, Value

NASTY_NODE = 'block/*1*/ "quoted" ??/ \\\n#define x'


def add_constant(size: int) -> PrimFunc:
    """Return ``output = data + bias``, which may run in place."""
    b = tb.StmtBuilder()
    data, bias, output = (Buffer(name, (size,), "float32") for name in ("data", "bias", "output"))
    with b.loop(size, "i", "vectorized") as i:
        b.store(output, [i], tb.load(data, [i]) + tb.load(bias, [i]))
    return PrimFunc("fused_add", (data,), (bias,), output, (), b.finish(), inplace=(0,))


def reverse_twice(size: int) -> PrimFunc:
    """Return a copy through scratch."""
    b = tb.StmtBuilder()
    data, output = (Buffer(name, (size,), "float32") for name in ("data", "output"))
    turned = Buffer("turned", (size,), "float32", "scratch")
    with b.loop(size, "i") as i:
        b.store(turned, [size - 1 - i], tb.load(data, [i]))
    with b.loop(size, "i") as i:
        b.comment(f"back again: {NASTY_NODE}")
        b.store(output, [i], tb.load(turned, [size - 1 - i]))
    return PrimFunc("fused_reverse", (data,), (), output, (turned,), b.finish(), macs=size)


def chain(size: int) -> tuple[Program, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """Return a program that adds two constants with a copy in between, and the sum of the constants."""
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, size)).astype(np.float32)
    add, turn = add_constant(size), reverse_twice(size)
    data, output = Value("in put:0", (size,), "float32", "input"), Value("Identity", (size,), "float32", "output")
    middle = [Value(name, (size,), "float32", "intermediate") for name in ("a", "b")]
    weights = [Value("w*/", (size,), "float32", "constant", first), Value("", (size,), "float32", "constant", second)]
    again = Value("copy of w", (1, size), "float32", "constant", first.reshape(1, size).copy())
    calls = (
        KernelCall(add, (data,), (weights[0],), middle[0], (NASTY_NODE, "second")),
        KernelCall(turn, (middle[0],), (), middle[1], ("reverse",)),
        KernelCall(add, (middle[1],), (weights[1],), output, ()),
    )
    program = Program("chain", (data,), (output,), (*weights, again), (add, turn), calls)
    return program, first + second


def generated(
    program: Program, *, external_workspace: bool = False, module_name: str = "Chain v1", executor: str = "aot"
) -> GeneratedCode:
    """Return the generated C of a program."""
    unit = Unit(
        program, memory.plan(program), c_names.module_name(module_name), executor, external_workspace,
        target=Target("c", "test */", Features()), quantization={"Identity": Quantization(0.1, -3)},
    )  # fmt: skip
    return generate(unit)


def product(rows: int, reduction: int, columns: int) -> PrimFunc:
    """Return the product of two int8 matrices; each row of the first is widened into scratch."""
    b = tb.StmtBuilder(single_trips=True)
    data, weights = Buffer("data", (rows, reduction), "int8"), Buffer("weights", (columns, reduction), "int8")
    output = Buffer("output", (rows, columns), "int32")
    wide = Buffer("wide", (reduction,), "int32", "scratch")
    with b.loop(rows, "row") as row:
        with b.loop(reduction, "k") as k:
            b.store(wide, [k], tb.cast(tb.load(data, [row, k]), "int32") - rows)
        with b.loop(columns, "column") as column:
            b.store(output, [row, column], 0)
            with b.loop(reduction, "k") as k:
                term = tb.load(wide, [k]) * tb.cast(tb.load(weights, [column, k]), "int32")
                b.store(output, [row, column], tb.load(output, [row, column]) + term)
    return PrimFunc("product", (data,), (weights,), output, (wide,), b.finish(), macs=rows * reduction * columns)

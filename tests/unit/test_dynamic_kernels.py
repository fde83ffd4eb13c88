"""Loops over dynamic extents: parameters, proven bounds, and substitution of numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mlfc.codegen.c import print_function
from mlfc.errors import InternalError
from mlfc.relay import ir
from mlfc.support.dims import Symbol
from mlfc.target.features import Features
from mlfc.tir import interpreter
from mlfc.tir.ir import PrimFunc
from mlfc.tir.merge_kernels import merge_kernels
from mlfc.tir.parameters import with_numbers
from mlfc.tir.visitor import signature
from mlfc.transform.lower_group import lower_group
from tests.verify_tir import verify

N, M = Symbol("n"), Symbol("int")


def kernel(build: Callable[..., ir.Expr], *kinds: tuple[ir.dims.Shape, str]) -> PrimFunc:
    params = tuple(ir.Var(f"x{index}", ir.TensorType(*kind)) for index, kind in enumerate(kinds))
    return lower_group(ir.Function(params, build(*params), {"Primitive": 1}), Features(vector_bytes=0)).prim


def summed(n: Symbol = N, m: Symbol = M) -> PrimFunc:
    shape = (n.dim, m.dim, 3)
    return kernel(lambda a, b: ir.call("add", [a, b]), (shape, "float32"), ((m.dim, 1), "float32"))


def test_symbols_are_parameters_whose_names_are_legal_and_clash_with_none() -> None:
    assert print_function(summed()).text.splitlines()[0].endswith("float *output, int32_t n, int32_t int_) {")
    text = print_function(summed(Symbol("output"), Symbol("i0"))).text
    assert "float *output, int32_t output_1, int32_t i0) {" in text
    assert "for (int32_t i0_1 = 0; i0_1 < output_1; ++i0_1) {" in text


def test_indices_are_printed_without_checks_of_overflow() -> None:
    text = print_function(summed()).text
    assert "output[i0 * int_ * 3 + i1 * 3 + i2] = x0[i0 * int_ * 3 + i1 * 3 + i2] + x1[i1];" in text
    flat = print_function(kernel(lambda a: ir.call("negative", [a]), ((N.dim, M.dim + N.dim), "float32"))).text
    assert "wrap" not in flat
    assert "(void)" not in flat


def test_a_symbol_that_the_code_has_no_use_for_is_still_a_parameter() -> None:
    prim = replace(summed(), symbols=(N, M, Symbol("k")))
    text = print_function(prim).text
    assert "int32_t k)" in text
    assert "(void)k;" in text


def test_accesses_are_proven_for_all_extents_and_for_chosen_ones() -> None:
    prim = summed()
    assert prim.symbols == (N, M)
    verify(prim)
    for numbers in ((1, 1), (3, 2)):
        verify(with_numbers(prim, numbers))
    with pytest.raises(InternalError, match=r"n = 0 is outside \[1, 2147483647\]"):
        with_numbers(prim, (0, 1))


def test_the_interpreter_takes_the_numbers() -> None:
    x, y = np.arange(24, dtype=np.float32).reshape(4, 2, 3), np.asarray([[10], [20]], np.float32)
    np.testing.assert_array_equal(interpreter.run(summed(), [x, y], numbers=(4, 2)), x + y)


def test_kernels_are_alike_if_their_symbols_are() -> None:
    assert signature(summed()) == signature(summed())
    assert signature(summed()) != signature(summed(M, N))
    assert signature(summed()) != signature(summed(Symbol("n", low=2)))
    assert merge_kernels([summed(), summed(M, N)]) is None


def test_nothing_is_picked_from_what_the_run_finds_empty() -> None:
    rows = Symbol("n", low=0).dim
    data, picks = ((rows, 2), "float32"), ((3, 2), "int64")
    kernels = [
        kernel(lambda a, i: ir.call("take", [a, i], axis=0), data, picks),
        kernel(lambda a, i: ir.call("gather", [a, i], axis=0), data, picks),
        kernel(lambda a, i: ir.call("gather_nd", [a, i]), data, ((1, 3), "int64")),
        kernel(lambda a, i, u: ir.call("scatter_elements", [a, i, u], axis=0), data, picks, ((3, 2), "float32")),
    ]
    for prim in kernels:
        for count in (0, 1, 5):
            verify(with_numbers(prim, (count,)))

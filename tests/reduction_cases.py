"""Reductions of every kind over leading, middle and last axes, with the result of NumPy or ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.operator_cases import Array, Case, integers, normal, ort

# Axes by position of the reduced ones, on shapes with remainders after tiles (64) and lanes (16).
AXES: list[tuple[tuple[int, ...], Any]] = [
    ((5, 37), -1), ((5, 37), 0), ((3, 7), (0, 1)), ((1, 7, 6, 70), (1, 2)), ((2, 70, 7, 6), (2, 3)),
    ((3, 4, 5, 6), (0, 2)), ((3, 4, 5, 6), (1, 3)), ((1, 1, 9), 0), ((4, 1, 3), 1), ((2, 3), ()), ((6, 130), 0),
    ((17,), 0), ((3, 2, 1, 64), (1,)),
    # few results of many elements, which GPU kernels compute in parts
    ((1, 60, 61, 5), (1, 2)), ((3, 20001), -1),
]  # fmt: skip


def _reference(function: Callable[..., Any], x: Array, axis: Any, **more: Any) -> Callable[[], Array]:
    given = axis if isinstance(axis, int) else tuple(axis)

    def run() -> Array:
        return np.asarray(function(x.astype(np.float64), axis=given, **more)).astype(x.dtype)

    return run


def reduce_cases() -> list[Case]:
    """Return every reduction over every arrangement of axes."""
    cases = []
    for shape, axis in AXES:
        x = normal(*shape)
        label = f"{'x'.join(map(str, shape))}-{axis}"
        for name, function in (("sum", np.sum), ("mean", np.mean), ("prod", np.prod)):
            cases.append(Case(name, [x], _reference(function, x, axis), {"axis": axis}, relative=1e-6, label=label))
        for name, function in (("max", np.max), ("min", np.min)):
            cases.append(Case(name, [x], _reference(function, x, axis), {"axis": axis}, label=label))
    return cases + _special_cases() + _arg_cases() + _scan_cases()


def _mean(x: Array) -> Array:
    """Return the mean of integers along the first axis, rounded towards zero."""
    return np.trunc(x.sum(0, dtype=np.int64) / len(x)).astype(x.dtype)


def _special_cases() -> list[Case]:
    x = normal(2, 6, 5, 4)
    i = integers(-100, 100, 4, 33)
    byte = integers(-128, 128, 9, 20, dtype="int8")
    flags = normal(6, 40, seed=3) > -1.5
    infinite = np.full((2, 20), -np.inf, np.float32)
    undefined = normal(6, 75)
    for row, column in enumerate((0, 15, 40, 63, 74)):
        undefined[row, column] = np.nan
    mean = x.mean((1, 2), keepdims=True)
    variance = np.var(x.astype(np.float64), axis=(1, 2)).astype(np.float32)
    return [
        Case("sum", [x], lambda: x.sum((0, 3), keepdims=True), {"axis": (1, 2), "exclude": True, "keepdims": True},
             relative=1e-6, label="exclude"),
        Case("mean", [x], lambda: x.astype(np.float64).mean(keepdims=True).astype(np.float32), {"keepdims": True},
             relative=1e-6, label="all-axes"),
        Case("sum", [i], lambda: i.sum(1, dtype=np.int32), {"axis": 1}, label="int32"),
        Case("sum", [byte], lambda: byte.sum(0, dtype=np.int8), {"axis": 0}, label="int8-wraps"),
        Case("mean", [i], lambda: np.trunc(i.sum(0) / 4).astype(np.int32), {"axis": 0}, label="int32"),
        *(Case("mean", [wide], partial(_mean, wide), {"axis": 0}, label=f"{wide.dtype}-large-sums") for wide in
          (byte, i * np.int32(2**24), (i + 300).astype(np.uint32) * np.uint32(2**23))),
        Case("max", [byte], lambda: byte.max(1), {"axis": 1}, label="int8"),
        Case("max", [undefined], lambda: undefined.max(1), {"axis": 1}, label="nan-in-any-lane"),
        Case("min", [undefined], lambda: undefined.min(1), {"axis": 1}, label="nan-in-any-lane"),
        Case("min", [byte], lambda: byte.min(0), {"axis": 0}, label="int8"),
        Case("max", [infinite], lambda: infinite[:, 0], {"axis": 1}, label="infinite"),
        Case("all", [flags], lambda: flags.all(1), {"axis": 1}),
        Case("any", [~flags], lambda: (~flags).any(0), {"axis": 0}),
        Case("variance", [x, mean], lambda: variance, {"axis": (1, 2)}, relative=1e-6),
        Case("variance", [x, mean], lambda: variance * np.float32(30 / 29), {"axis": (1, 2), "unbiased": True},
             relative=1e-6, label="unbiased"),
        Case("sum", [x[:, :0]], lambda: np.zeros((2, 5, 4), np.float32), {"axis": 1}, label="empty"),
    ]  # fmt: skip


def _arg_cases() -> list[Case]:
    x = integers(-3, 4, 3, 70, 9).astype(np.float32)  # with many ties
    byte = integers(-128, 128, 4, 20, dtype="int8")
    cases = []
    for name, operator in (("argmax", "ArgMax"), ("argmin", "ArgMin")):
        for axis in (0, 1, 2):
            for last in (0, 1):
                expected = ort(operator, x, axis=axis, keepdims=0, select_last_index=last)
                attrs = {"axis": axis, "select_last_index": bool(last)}
                label = f"{axis}-{'last' if last else 'first'}"
                cases.append(Case(name, [x], lambda run=expected: run().astype(np.int32), attrs, label=label))
    return [
        *cases,
        Case("argmax", [x], lambda: np.asarray([[[x.argmax()]]], np.int32), {"keepdims": True}, label="all-axes"),
        Case("argmin", [byte], lambda: byte.argmin(1).astype(np.int32), {"axis": 1}, label="int8"),
        Case("argmax", [np.full((1, 5), -np.inf, np.float32)], lambda: np.zeros(1, np.int32), {"axis": 1}, label="inf"),
    ]


def _scan_cases() -> list[Case]:
    x = normal(3, 5, 4)
    i = integers(-9, 9, 3, 4, dtype="int8")
    return [
        Case("cumsum", [x], ort("CumSum", x, np.asarray(1)), {"axis": 1}, relative=1e-6),
        Case("cumsum", [x], ort("CumSum", x, np.asarray(2), exclusive=1), {"axis": 2, "exclusive": True},
             relative=1e-6, label="exclusive"),
        Case("cumsum", [i], lambda: np.cumsum(i, dtype=np.int32), {"dtype": "int32"}, label="flat"),
        Case("cumprod", [x], lambda: np.cumprod(x, 0), {"axis": 0}, relative=1e-6),
    ]  # fmt: skip

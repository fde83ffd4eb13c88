"""Prefetches of weights: each cache line is prefetched before tiles read it, and results do not change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlfc.kernels import conv_tile, winograd
from mlfc.relay import ir as relay
from mlfc.support.dims import Symbol
from mlfc.target.features import Features
from mlfc.target.target import parse_target
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.interpreter import run
from mlfc.tir.parameters import with_numbers
from mlfc.tir.visitor import rebuilt_stmt, walk
from mlfc.transform.lower_group import LoweredGroup, lower_group
from tests.native.kernel_runner import Kernels, group_of
from tests.native.test_kernels import Case, attributes
from tests.verify_tir import verify

WIDE = Features(vector_registers=32, winograd=True, prefetches=True)
NARROW = Features(packing_registers=32, winograd=True, prefetches=True)
SAME = (1, 1, 1, 1)
FLOATS = 16
"""Number of elements of a cache line."""
CASES = {
    "1x1": (Case((1, 4, 7, 24), (1, 1), 192), WIDE),
    "1x1, weights of more registers": (Case((1, 4, 4, 24), (1, 1), 256), NARROW),
    "3x3": (Case((1, 8, 8, 5), (3, 3), 256, padding=SAME, strides=(2, 2)), WIDE),
    "pieces": (Case((1, 4, 4, 1100), (1, 1), 64), WIDE),
    "transforms": (Case((1, 9, 13, 16), (3, 3), 64, padding=SAME), WIDE),
}


@pytest.fixture(autouse=True)
def _small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefetch weights of a few kilobytes, as if they had megabytes."""
    monkeypatch.setattr(conv_tile, "LEAST_BYTES", 0)
    monkeypatch.setattr(conv_tile, "LARGE_WEIGHTS", 0)
    monkeypatch.setattr(winograd, "LARGE_WEIGHTS", 1 << 40)


def layer(case: Case, dtype: str = "float32") -> relay.Function:
    rng = np.random.default_rng(1)
    x = relay.Var("x", relay.TensorType(case.data, dtype))
    weights = rng.standard_normal((*case.kernel, case.data[3], case.filters)).astype(np.float32)
    return group_of(relay.call("nn.conv2d", [x, relay.const(weights)], **attributes(case)), [x])


def asked_before(group: LoweredGroup, weights: ir.Buffer) -> npt.NDArray[np.bool_]:
    """Return for each cache line of the weights whether it is prefetched before its first read; all lines are read."""
    asked, read = (times.reshape(-1, FLOATS).min(axis=1) for times in asked_and_read(group, weights))
    assert (read < 1 << 23).all()
    return np.asarray(asked < read)


def asked_and_read(group: LoweredGroup, weights: ir.Buffer) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the step of the first prefetch and of the first read of each weight element; 2**23 for never."""
    marks, clock = ir.Buffer("marks", (2, weights.size), "float32"), ir.Buffer("clock", (1,), "float32", "local")
    now = tb.load(clock, [0])

    def first(row: int, at: ir.Expr) -> ir.Stmt:
        known = tb.load(marks, [row, at])
        return ir.Store(marks, (tb.const(row), at), tb.select(tb.binary("lt", known, now), known, now))

    def marked(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.Prefetch):
            return first(0, stmt.offset)
        if isinstance(stmt, ir.Let) and isinstance(stmt.value, ir.Load) and stmt.value.buffer is weights:
            panel, step, lane = stmt.value.indices
            at = (panel * weights.shape[1] + step) * weights.shape[2] + lane
            tick = ir.Store(clock, (tb.const(0),), now + 1.0)
            return ir.Seq((tick, first(1, at), rebuilt_stmt(stmt, marked)))
        return rebuilt_stmt(stmt, marked)

    prim = group.prim
    stmts = tb.StmtBuilder()
    with stmts.loops((2, weights.size)) as (row, at):
        stmts.store(marks, [row, at], float(1 << 23))
    start = ir.Store(clock, (tb.const(0),), tb.const(0.0, "float32"))
    body = ir.Allocate(clock, ir.Seq((stmts.finish(), start, marked(prim.body))))
    counted = replace(prim, output=marks, scratch=(*prim.scratch, prim.output), body=body)
    data = np.zeros(prim.inputs[0].shape, np.float32)
    found = run(counted, [data], group.constants)
    return found[0], found[1]


@pytest.mark.parametrize("name", CASES)
def test_weights_are_asked_for_before_they_are_read(name: str) -> None:
    case, features = CASES[name]
    group = lower_group(layer(case), features)
    verify(group.prim)
    asks = [stmt for stmt in walk(group.prim.body) if isinstance(stmt, ir.Prefetch)]
    (weights,) = {stmt.buffer for stmt in asks}
    ahead = asked_before(group, weights)
    _, steps, elements = weights.shape
    first = ahead.argmax() * FLOATS  # at most one panel is read before
    assert first <= steps * elements
    assert ahead[ahead.argmax() :].mean() > 0.99


@pytest.mark.parametrize(("rows", "share"), [(20, 0.45), (40, 0.85)])
def test_so_are_those_of_open_rows(rows: int, share: float) -> None:
    """Prefetch every second line with two or three tiles; one tile prefetches its part of the last panel."""
    x = relay.Var("x", relay.TensorType((Symbol("rows").dim, 24), "float32"))
    weights = np.random.default_rng(1).standard_normal((448, 24)).astype(np.float32)
    group = lower_group(group_of(relay.call("nn.dense", [x, relay.const(weights)], units=448), [x]), WIDE)
    prim = with_numbers(group.prim, [rows])
    verify(prim)
    (buffer,) = {stmt.buffer for stmt in walk(prim.body) if isinstance(stmt, ir.Prefetch)}
    ahead = asked_before(replace(group, prim=prim), buffer)
    panels, steps, elements = buffer.shape
    assert ahead.reshape(panels, steps * elements // FLOATS)[1:-1].mean() > share


def test_results_are_the_same_without() -> None:
    groups = {}
    for name, (case, features) in CASES.items():
        groups[name, True] = (layer(case), features)
        groups[name, False] = (layer(case), replace(features, prefetches=False))
    kernels = Kernels(groups)
    rng = np.random.default_rng(2)
    for name, (case, _) in CASES.items():
        data = rng.standard_normal(case.data).astype(np.float32)
        with_them, without = kernels[name, True](data), kernels[name, False](data)
        assert with_them.tobytes() == without.tobytes(), name
        assert "MLF_PREFETCH(&" in kernels[name, True].source


def test_who_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def has(target: str, case: Case, optimize: str = "speed") -> bool:
        prim = lower_group(layer(case), parse_target(target, optimize).features).prim
        return any(isinstance(stmt, ir.Prefetch) for stmt in walk(prim.body))

    case = CASES["1x1"][0]
    assert has("c -mcpu=x86-64-v4", case)
    assert has("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3", case)
    assert not has("c", case)
    assert not has("c -mcpu=cortex-m4", case)
    assert not has("c -mcpu=x86-64-v4", case, "size")
    assert not has("c -mcpu=x86-64-v4", replace(case, data=(1, 56, 56, 24)))  # many tiles per part
    assert not has("c -mcpu=x86-64-v4", replace(case, data=(1, 1, 1, 24)))  # a single tile
    assert not has("c -mcpu=x86-64-v4", replace(case, filters=64))  # all weights are one part
    monkeypatch.setattr(conv_tile, "LEAST_BYTES", 1 << 20)
    assert not has("c -mcpu=x86-64-v4", case)

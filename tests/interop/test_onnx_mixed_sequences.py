"""Sequences of tensors with different ranks, compared with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnxruntime import InferenceSession

import mlfc
from mlfc.errors import InputError, MlfcError, UnsupportedError
from mlfc.relay.text import from_text, to_text
from tests.relay_dynamic import run_dynamic
from tests.verify_relay import verify

# a sequence of scalars, to which each iteration appends a vector and a matrix
GROWN = """
    nought = Constant <value = float {0.}> ()
    s = SequenceConstruct (nought)
    t = Loop (turns, , s) <
        body = grow (int64 i, bool c, seq(float) s0) => (bool d, seq(float) s2) {
            d = Identity (c)  zero = Constant <value = int64 {0}> ()  axis = Constant <value = int64[1] {0}> ()
            one = Constant <value = int64 {1}> ()  k = Add (i, one)  end = Unsqueeze (k, axis)
            row = Slice (x, axis, end)  s1 = SequenceInsert (s0, row, zero)  m = Unsqueeze (row, axis)
            s2 = SequenceInsert (s1, m) }>
"""


def parsed(inputs: str, outputs: str, body: str) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 18]> g ({inputs}) => ({outputs}) {{ {body} }}'
    return onnx.parser.parse_model(text)


def same(found: Any, wanted: Any) -> None:
    assert len(found) == len(wanted)
    for ours, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, other)
        assert ours.shape == np.asarray(other).shape


def machines(model: onnx.ModelProto, folder: Path) -> list[Any]:
    library = mlfc.compile(model, "c").export_library(folder / "model.so")
    modules = mlfc.load_module(library), mlfc.compile(model, "llvm").factory.runtime
    return [mlfc.runtime.VirtualMachine(lib, mlfc.cpu(0)) for lib in modules]


def test_tensors_of_several_ranks_are_kept_in_loops_and_taken_out(tmp_path: Path) -> None:
    body = f"{GROWN} u = SequenceErase (t, at)  n = SequenceLength (u)  y = SequenceAt (t, at)"
    model = parsed("float[5] x, int64 turns, int64 at", "seq(float) u, int64 n, float[k] y", body)
    x = np.arange(5, dtype=np.float32)
    reference = InferenceSession(model.SerializeToString())
    module, params = mlfc.import_model(model, dynamic=True)
    verify(module)
    text = to_text(module)
    assert to_text(from_text(text)) == text
    for machine in machines(model, tmp_path):
        for turns, at in ((3, 0), (1, 0), (4, 3)):
            given = {"x": x, "turns": np.asarray(turns), "at": np.asarray(at)}
            wanted = reference.run(None, given)
            items, n, y = machine.invoke("main", **given)
            same(items, wanted[0])
            assert n == wanted[1]
            np.testing.assert_array_equal(y, wanted[2])
        with pytest.raises(InputError, match="dimensions of 'y': expected 1, got 2"):
            machine.invoke("main", x, np.asarray(2), np.asarray(-1))
        with pytest.raises(InputError, match="dimensions of 'y': expected 1, got 0"):
            machine.invoke("main", x, np.asarray(0), np.asarray(0))
    found = run_dynamic(module, params, {"x": x, "turns": np.asarray(2), "at": np.asarray(0)})
    np.testing.assert_array_equal(found[0], [[1, -1], [-1, -1], [1, 1], [1, 2]])


def test_branches_and_optionals_give_one_rank_or_the_other(tmp_path: Path) -> None:
    body = """
        q = If (d) <
          then_branch = g1 () => (optional(float) p) { p = Optional (x) },
          else_branch = g2 () => (optional(float) p) { p = Optional <type = float[n]> () }
        >
        s, o = If (c) <
          then_branch = g1 () => (seq(float) t, optional(float) r) { t = SequenceConstruct (x)  r = Identity (q) },
          else_branch = g2 () => (seq(float) t, optional(float) r) {
            axis = Constant <value = int64[1] {0}> ()  m = Unsqueeze (x, axis)
            t = SequenceConstruct (m, x)  r = Optional (m) }
        >"""
    model = parsed("float[n] x, bool c, bool d", "seq(float) s, optional(float) o", body)
    x = np.arange(3, dtype=np.float32)
    yes, no = np.asarray(True), np.asarray(False)
    for machine in machines(model, tmp_path):
        items, value = machine.invoke("main", x, yes, yes)
        same([*items, value], [x, x])
        items, value = machine.invoke("main", x, yes, no)
        same(items, [x])
        assert value is None
        items, value = machine.invoke("main", x, no, no)
        same([*items, value], [x[None], x, x[None]])


def test_what_needs_one_rank_says_so() -> None:
    joined = parsed("float[5] x, int64 turns", "float[k] y", f"{GROWN} y = ConcatFromSequence <axis = 0> (t)")
    with pytest.raises(UnsupportedError, match="0 or 1 or 2 dimensions"):
        mlfc.import_model(joined, dynamic=True)
    halves = parsed(
        "float[5] x, int64 turns", "seq(float) u", f"{GROWN} h = Cast <to = 10> (x) u = SequenceInsert (t, h)"
    )
    with pytest.raises(MlfcError, match="float16"):
        mlfc.import_model(halves, dynamic=True)

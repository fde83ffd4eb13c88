"""A short seeded run of the random dynamic graphs that ``make fuzz`` compares, and models with former faults."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import mlfc
from fuzz import open_graphs

# tests/native compiles the same operators with the flags of libraries
pytestmark = pytest.mark.usefixtures("quick_builds")

# models and input shapes that were once computed wrongly or rejected
FOUND = {
    "a branch decides the shape of the only output": (
        """(float[n, 2] x, float[1] f) => (float[a, 2] y) <float[1] zero = {0.}> {
            c = Less (f, zero)
            y = If (c) <then_branch = some () => (float[b, 2] r) { r = Concat <axis = 0> (x, x) },
                        else_branch = none () => (float[d, 2] s) { s = Neg (x) }> }""",
        {"x": (5, 2), "f": (1,)},
    ),
    "the bounds of a product exceed 64 bits": (
        ("(float[n, m, k] x) => (float[a] y) { y = Compress (x, f)  f = Less (t, z)  z = Constant <value_float = 0.> ()"
        " t = Reshape (x, s)  s = Constant <value = int64[1] {-1}> () }"),
        {"x": (3, 4, 2)},
    ),
    "an end beyond all extents": (
        ("(float[4, 3, n, k] x) => (float[a] y) <int64[1] s = {-1}, int64[1] z = {0}, int64[1] e = {1099511627776}>"
        " { t = Reshape (x, s)  y = Slice (t, z, e) }"),
        {"x": (4, 3, 2, 5)},
    ),
    "nothing but its extents is read of a loop": (
        """(float[n, 3] x, int64 turns) => (float[a, 0] y) <int64[1] s = {3}, int64[1] e = {9}, int64[1] ax = {1}> {
            t = Loop (turns, , x) <body = grow (int64 i, bool c, float[k, 3] s0) => (bool d, float[l, 3] u) {
                d = Identity (c)  u = Concat <axis = 0> (s0, x) }>
            y = Slice (t, s, e, ax) }""",
        {"x": (2, 3), "turns": ()},
    ),
    "windows that the last pad alone fills": (
        ("(float[1, 2, n, 3] x, float[2, 2, 1, 1] w) => (float[1, 2, a, b] y) { y = Conv <auto_pad = \"SAME_UPPER\","
        " strides = [2, 1]> (p, w)  p = MaxPool <kernel_shape = [1, 2], strides = [2, 1], ceil_mode = 1> (x) }"),
        {"x": (1, 2, 5, 3), "w": (2, 2, 1, 1)},
    ),
    "a scan that is written out": (
        """(float[n, 3, m] x, float[n, m] s) => (float[n, m] y, float[3, n, m] z) {
            y, z = Scan <num_scan_inputs = 1, scan_input_axes = [1], body = step (float[a, b] t, float[a, b] e)
                => (float[a, b] u, float[a, b] v) { u = Add (t, e)  v = Neg (u) }> (s, x) }""",
        {"x": (2, 3, 4), "s": (2, 4)},
    ),
    "parts without elements": (
        "(float[n, 2] x) => (float[a, 2] y, float[b, 2] z) { y, z = Split <axis = 0, num_outputs = 2> (x) }",
        {"x": (1, 2)},
    ),
    "cubic sides": (
        ("(float[1, 2, n, m] x) => (float[1, 2, a, b] y) <float[4] s = {1., 1., 2., 3.}>"
        " { y = Resize <mode = \"cubic\"> (x, , s) }"),
        {"x": (1, 2, 5, 7)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("cause", FOUND)
def test_what_was_found_stays_mended(cause: str) -> None:
    text, shapes = FOUND[cause]
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> found {text}')
    rng = np.random.default_rng(0)
    given = {
        name: np.array(3) if name == "turns" else rng.standard_normal(shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    data = proto.SerializeToString()
    expected = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, given)
    found = mlfc.compile(data, "llvm").run(given)
    fixed = mlfc.compile(data, "llvm", shapes=shapes).run(given)
    for wanted, (name, array) in zip(expected, found.items(), strict=True):
        assert array.shape == wanted.shape
        assert array.tobytes() == fixed[name].tobytes()
        np.testing.assert_allclose(array, wanted, rtol=1e-4, atol=1e-5)


def test_random_graphs_agree_for_all_sizes() -> None:
    refusals: Counter[str] = Counter()
    assert not open_graphs.fuzz(1e9, 100, count=6, refusals=refusals)
    assert refusals.total() < 3


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_graphs, "_apart", lambda *_: "another number")
    assert len(open_graphs.fuzz(1e9, 101, count=1)) == 1

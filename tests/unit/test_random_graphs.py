"""Random channels-first networks compute the same as ONNX Runtime after all passes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfc.frontend.onnx import import_onnx
from mlfc.transform import pipeline
from tests.onnx_graphs import GraphMaker
from tests.relay_run import run_main
from tests.unit.test_passes import image, reference

# Every value is a batch of two images of 6 x 5 pixels with any number of channels.
STEPS = ("conv", "norm", "relu", "pool", "gate", "concat", "add", "slice", "softmax", "mean", "shuffle", "turn")


def step(draw: st.DrawFn, g: GraphMaker, values: list[tuple[str, int]]) -> tuple[str, int]:
    """Add one operator or a small block of operators on randomly drawn values."""
    kind = draw(st.sampled_from(STEPS))
    x, channels = draw(st.sampled_from(values))
    if kind == "conv":
        filters = draw(st.sampled_from((2, 4)))
        return g.conv(x, filters, channels, draw(st.sampled_from((1, 3)))), filters
    if kind == "norm":
        return g.norm(x, channels), channels
    if kind == "pool":
        return str(g.node("MaxPool", [x], kernel_shape=[3, 3], pads=[1, 1, 1, 1])), channels
    if kind == "gate":
        return str(g.node("Mul", [x, g.node("Sigmoid", [g.node("GlobalAveragePool", [x])])])), channels
    if kind == "concat":
        other, more = draw(st.sampled_from(values))
        return str(g.node("Concat", [x, other], axis=1)), channels + more
    if kind == "add":
        other = draw(st.sampled_from([name for name, count in values if count == channels]))
        return str(g.node("Add", [x, other])), channels
    if kind == "slice" and channels > 1:
        ends = [g.constant(np.array(item, np.int64)) for item in ([1], [channels], [1])]
        return str(g.node("Slice", [x, *ends])), channels - 1
    if kind == "softmax":
        return str(g.node("Softmax", [x], axis=draw(st.sampled_from((1, 2, 3))))), channels
    if kind == "mean":
        mean = g.node("ReduceMean", [x], axes=draw(st.sampled_from(([1], [2, 3]))), keepdims=1)
        return str(g.node("Sub", [x, mean])), channels
    if kind == "shuffle" and channels % 2 == 0:
        shape = g.constant(np.array([2, 2, channels // 2, 6, 5], np.int64))
        swapped = g.node("Transpose", [g.node("Reshape", [x, shape])], perm=[0, 2, 1, 3, 4])
        return str(g.node("Reshape", [swapped, g.constant(np.array([2, channels, 6, 5], np.int64))])), channels
    if kind == "turn":
        last = g.node("Transpose", [x], perm=[0, 2, 3, 1])
        scaled = g.node("Mul", [last, g.floats(channels)])
        return str(g.node("Transpose", [scaled], perm=[0, 3, 1, 2])), channels
    return str(g.node("Relu", [x])), channels


@st.composite
def networks(draw: st.DrawFn) -> bytes:
    """Draw a model of a few steps whose last value is the output."""
    g = GraphMaker(draw(st.integers(0, 1000)))
    values = [("x", 4)]
    for _ in range(draw(st.integers(2, 7))):
        name, channels = step(draw, g, values)
        if channels > 0:
            values.append((name, channels))
    return g.model(values[-1][0])


@given(networks())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_passes_keep_what_a_network_computes(data: bytes) -> None:
    module, params = import_onnx(data, "random")
    x = image()
    expected = reference(data, x)
    (found,) = run_main(pipeline.run(module, params), {"x": x})
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * max(np.abs(expected).max(), 1))

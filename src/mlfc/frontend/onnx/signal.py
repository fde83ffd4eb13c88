"""Fourier transforms as products with tables, and window functions and mel filters.

Tables are computed in float64 from angles reduced to one period, so that they are exact to the last bit of their dtype.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.frontend.onnx.run_tables import Numbers, allow, as_expr, counted, real
from mlfc.frontend.onnx.table import importer
from mlfc.frontend.onnx.tensors import dtype_name
from mlfc.relay.ir import Expr
from mlfc.support import cost
from mlfc.support.dims import Dim, Extent, bounds, maximum, minimum

_LONGEST = 1 << 24


def _one(node: Node, index: int, what: str, declared: int | None = None) -> Any:
    values = node.sizes(index, what, None if declared is None else [declared])
    if len(values) != 1:
        node.wrong(f"'{what}' must be one number, not {len(values)}")
    return values[0]


@importer("DFT", since=17)
@importer("DFT", since=20)
def _dft(node: Node) -> Expr:
    """Transform along an axis by a product with a table; real and imaginary parts are separate columns."""
    axis = node.integer("axis", 1) if node.opset < 20 else -2
    if node.opset >= 20 and node.has(2):
        (axis,) = node.value(2, "axis").reshape(-1).tolist()
    x, rank, shape = node.input(0), node.rank(0), node.shape(0)
    inverse, onesided = bool(node.integer("inverse", 0)), bool(node.integer("onesided", 0))
    if rank < 2 or shape[-1] not in (1, 2):
        node.wrong(f"the last dimension of a tensor of shape {shape} is not one number or two, real and imaginary")
    axis = node.axis(axis, rank)
    if axis == rank - 1:
        node.wrong("the last axis holds the parts of a number")
    length = 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    if node.has(1):
        length = _one(node, 1, "dft_length")
    low, high = bounds(length)
    if high < 1 or low >= _LONGEST:
        node.wrong(f"a transform of {length} elements is not possible")
    if shape[axis] == 0:
        node.unsupported("of no elements is not supported")
    table = _table(node, length, shape[axis], inverse=inverse, onesided=onesided)
    given, parts, taken, _ = table.shape
    # move the axis to the end, just before the real and imaginary parts
    order = (*(other for other in range(rank - 1) if other != axis), axis, rank - 1)
    rows = node.transpose(node.cut(x, axis, 0, taken), order)
    leading = shape_of(rows)[:-2]
    dtype = dtype_of(x)
    wide = dtype if dtype == "float64" else "float32"
    rows = node.reshape(node.cast(rows, wide), (*leading, taken * shape[-1]))
    weights = node.reshape(node.cut(as_expr(node, table, wide), 3, 0, shape[-1]), (given * parts, taken * shape[-1]))
    result = node.call("nn.dense", rows, weights, units=given * parts)
    result = node.reshape(node.cast(result, dtype), (*leading, given, parts))
    return node.transpose(result, np.argsort(order).tolist())


def _angles(node: Node, length: Extent, taken: Extent, given: Extent, parts: int) -> Numbers:
    """Return the angles for all pairs of output and input elements; `parts` is the number of table entries per pair."""
    allow(node, taken, given, each=8 * parts)
    rows, columns = counted(node, given, taken)
    turns = rows[:, None] * columns[None, :] % length
    angles: Numbers = turns.astype("float64") * (2.0 * np.pi / real(node, length))
    return angles


def _table(node: Node, length: Extent, extent: Extent, *, inverse: bool, onesided: bool) -> Any:
    """Return the table of a transform (output elements, output parts, input elements, input parts)."""
    if inverse and onesided:  # real output from half of the frequencies: the other half are their conjugates
        taken = minimum(length // 2 + 1, extent)
        angles = _angles(node, length, taken, length, 4)
        here, _ = counted(node, taken, length)
        alone = ((here == 0) | (here + here == length))[None, :]
        weights = (alone.astype("float64") * -1.0 + 2.0) / real(node, length)
        # self-conjugate frequencies ignore their imaginary parts
        imaginary = np.where(alone, 0.0, -np.sin(angles))
        parts: Numbers = np.stack([weights * np.cos(angles), weights * imaginary], 2)
        return parts.reshape(length, 1, taken, 2)
    taken, given = minimum(length, extent), length // 2 + 1 if onesided else length
    angles = _angles(node, length, taken, given, 6)
    real_parts, imaginary = np.cos(angles), np.sin(angles)
    if inverse:
        size = real(node, length)
        real_parts, imaginary = real_parts / size, imaginary / size
    else:
        imaginary = -imaginary
    return np.stack([np.stack([real_parts, -imaginary], 2), np.stack([imaginary, real_parts], 2)], 1)


@importer("STFT", since=17)
def _stft(node: Node) -> Expr:
    """Convolve the signal with the table of a transform; each output position is a frame."""
    x = node.input(0)
    if node.rank(0) == 2:
        x = node.reshape(x, (*node.shape(0), 1))
    shape = shape_of(x)
    if len(shape) != 3 or shape[2] not in (1, 2) or 0 in shape:
        node.wrong(f"{node.shape(0)} is not the shape of signals")
    step = _one(node, 1, "frame_step")
    lengths = [_one(node, 3, "frame_length")] if node.has(3) else []
    if node.has(2):
        if node.rank(2) != 1:
            node.wrong(f"a window of shape {node.shape(2)} is not a list of numbers")
        lengths += node.shape(2)
    if len(set(lengths)) > 1:
        node.wrong(f"a window of {lengths[1]} elements does not fit frames of {lengths[0]}")
    length = lengths[0] if lengths else shape[1]
    if isinstance(length, Dim):
        node.unsupported("of frames whose length is a runtime value is not supported", "Give frame_length, or a window")
    if not 1 <= length <= bounds(shape[1])[1] or step < 1:
        node.wrong(f"frames of {length} elements every {step} do not fit signals of {shape[1]}")
    table = _table(node, length, length, inverse=False, onesided=bool(node.integer("onesided", 1)))
    table = table[..., : shape[2]].transpose(2, 3, 0, 1)
    bins, dtype = table.shape[2], dtype_of(x)
    wide = dtype if dtype == "float64" else "float32"
    kernel, window = table.reshape(length, shape[2], -1), node.known(2)
    if window is not None:
        kernel = kernel * window.astype(np.float64)[:, None, None]
    kernel = node.constant(kernel, wide)
    if node.has(2) and window is None:
        kernel = node.call("multiply", kernel, node.reshape(node.cast(node.input(2), wide), (length, 1, 1)))
    frames = node.call(
        "nn.conv1d", node.cast(x, wide), kernel, strides=(step,), padding=(0, 0), dilation=(1,), groups=1,
        channels=2 * bins, kernel_size=(length,), data_layout="NWC", kernel_layout="WIO",
    )  # fmt: skip
    return node.cast(node.reshape(frames, (shape[0], shape_of(frames)[1], bins, 2)), dtype)


# value at both ends, and coefficients of sin^2(pi x) and sin^2(2 pi x)
_WINDOWS = {"HannWindow": (0.0, 1.0, 0.0), "HammingWindow": (4 / 46, 42 / 46, 0.0), "BlackmanWindow": (0.0, 1.0, -0.16)}


@importer(*_WINDOWS, since=17)
def _window(node: Node) -> Expr:
    declared = node.declared_shape
    size = _one(node, 0, "size", None if declared is None else prod(declared))
    if bounds(size)[1] < 0 or bounds(size)[0] >= _LONGEST:
        node.wrong(f"a window of {size} elements is not possible")
    allow(node, size, each=32)
    around = size if node.integer("periodic", 1) else size - 1
    (steps,) = counted(node, size)
    # for a symmetric window of one element ONNX's formula divides by zero; it is 1, as in PyTorch
    halves = steps * 2 + maximum(1 - around, 0)
    phase = halves.astype("float64") * (np.pi / real(node, maximum(2 * around, 2)))
    ends, half, whole = _WINDOWS[node.operator]
    middle, sides = np.sin(phase), np.sin(phase * 2.0)
    return _output(node, middle * middle * half + sides * sides * whole + ends)


def _output(node: Node, values: Numbers) -> Expr:
    # values of windows and filters are between 0 and 1, up to rounding
    return as_expr(node, values, dtype_name(node.integer("output_datatype", 1), node.name))


@importer("MelWeightMatrix", since=17)
def _mel_weight_matrix(node: Node) -> Expr:
    """Compute triangular mel filters over spectrum bins; edges are rounded to whole bins, as in ONNX's evaluator."""
    names = ("num_mel_bins", "dft_length", "sample_rate")
    count, length, rate = (node.int_values(index, name)[0] for index, name in enumerate(names))
    low, high = (
        float(node.value(index, name).reshape(())) for index, name in ((3, "lower_edge_hertz"), (4, "upper_edge_hertz"))
    )
    if min(count, length, rate) < 1 or max(count, length) >= _LONGEST or not 0 <= low <= high < np.inf:
        node.wrong(f"{count} filters from {low} Hz to {high} Hz of {length} samples at {rate} Hz are not possible")
    bins = length // 2 + 1
    cost.require("constants", 8 * bins * count, node.name)
    mels = 2595 * np.log10(1 + np.asarray([low, high]) / 700)
    steps = mels[0] + np.arange(count + 2) * ((mels[1] - mels[0]) / (count + 2))
    edges = ((length + 1) * 700 * (10 ** (steps / 2595) - 1) // rate).astype(np.int64)
    if edges[-2] >= bins or edges[-1] > bins:
        node.wrong(f"filters up to {high} Hz exceed the spectrum of {length} samples at {rate} Hz")
    at = np.arange(bins)[:, None]
    left, middle, right = edges[:-2], edges[1:-1], edges[2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = np.where((at >= left) & (at <= middle), (at - left) / (middle - left), 0.0)
        falling = np.where((at >= middle) & (at < right), (right - at) / (right - middle), 0.0)
    rising = np.where(middle == left, at == middle, rising)
    return _output(node, np.where((at >= middle) & (right > middle) & (at < right), falling, rising))

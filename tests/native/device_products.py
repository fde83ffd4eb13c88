"""Matrix products in all their forms, with odd sizes, and numpy references in exact or wide arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.relay import ir

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ProductCase:
    """A group, its inputs, and functions that return the result and, for floats, the sums of magnitudes."""

    label: str
    group: ir.Function
    inputs: Sequence[Array]
    expected: Callable[[], Array]
    magnitude: Callable[[], Array] | None = None

    def check(self, result: Array) -> None:
        """Fail unless integers are equal and floats within a few roundings of the sums of magnitudes."""
        expected = self.expected()
        assert result.shape == expected.shape, self.label
        if self.magnitude is None:
            np.testing.assert_array_equal(result, expected, self.label)
        else:
            assert np.all(np.abs(result - expected) <= 1e-6 * self.magnitude()), self.label


class _Windows:
    """Properties common to convolutions and transposed convolutions of channels-last images."""

    shape: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def layouts(self) -> dict[str, str]:
        letters = "DHW"[-self.rank :]
        return {"data_layout": f"N{letters}C", "kernel_layout": f"{letters}IO"}

    @property
    def spans(self) -> list[int]:
        return [(size - 1) * step + 1 for size, step in zip(self.kernel, self.dilation, strict=True)]


@dataclass(frozen=True)
class _Conv(_Windows):
    """Sizes of a convolution; the padding before all dimensions comes first, then that behind them."""

    shape: tuple[int, ...]
    kernel: tuple[int, ...]
    filters: int
    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1

    @property
    def attrs(self) -> dict[str, Any]:
        return {
            **self.layouts, "groups": self.groups, "strides": self.strides, "padding": self.padding,
            "dilation": self.dilation, "channels": self.filters, "kernel_size": self.kernel,
        }  # fmt: skip

    @property
    def weights_shape(self) -> tuple[int, ...]:
        return (*self.kernel, self.shape[-1] // self.groups, self.filters)

    def apply(self, data: Array, weights: Array) -> Array:
        """Return the convolution in the arrays' dtype."""
        rank = self.rank
        pads = zip(self.padding[:rank], self.padding[rank:], strict=True)
        padded = np.pad(data, ((0, 0), *pads, (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.spans, tuple(range(1, rank + 1)))
        steps = [slice(None, None, step) for step in (*self.strides, 1, *self.dilation)]
        windows = windows[(slice(None), *steps)]
        channels, filters = data.shape[-1] // self.groups, self.filters // self.groups
        parts = [
            np.tensordot(
                windows[(*[slice(None)] * (rank + 1), slice(group * channels, (group + 1) * channels))],
                np.moveaxis(weights, -2, 0)[..., group * filters : (group + 1) * filters],
                rank + 1,
            )
            for group in range(self.groups)
        ]
        return np.concatenate(parts, -1)


_CONVS = {
    "tiles-do-not-divide": _Conv((1, 9, 7, 5), (3, 3), 7, padding=(1, 1, 1, 1)),
    "vectors": _Conv((2, 9, 8, 16), (3, 3), 24, padding=(1, 0, 1, 2)),
    "one-tap-a-step": _Conv((1, 10, 10, 32), (3, 3), 40, strides=(2, 2), padding=(1, 1, 1, 1)),
    "dilated": _Conv((1, 12, 11, 8), (3, 2), 12, padding=(2, 1, 2, 1), dilation=(2, 2)),
    "groups": _Conv((1, 8, 8, 24), (3, 3), 12, padding=(1, 1, 1, 1), groups=3),
    "uneven-groups": _Conv((2, 6, 5, 6), (2, 3), 10, padding=(0, 2, 1, 0), groups=2),
    "pointwise": _Conv((1, 7, 9, 20), (1, 1), 70),
    "one-pixel-of-few": _Conv((1, 3, 3, 8), (3, 3), 9),
    "first-layer": _Conv((1, 23, 21, 3), (7, 7), 16, strides=(2, 2), padding=(3, 3, 2, 2)),
    "wide-tiles": _Conv((1, 20, 21, 8), (3, 3), 130, padding=(1, 1, 1, 1)),
    "shared-out-reduction": _Conv((1, 5, 6, 64), (3, 3), 20, padding=(1, 1, 1, 1)),
    "single-pixels": _Conv((3, 1, 1, 40), (1, 1), 27),
    "one-dimension": _Conv((2, 37, 12), (5,), 18, strides=(2,), padding=(2, 1), dilation=(2,), groups=3),
    "three-dimensions": _Conv(
        (1, 4, 7, 6, 8), (2, 3, 3), 20, strides=(1, 2, 1), padding=(1, 1, 0, 0, 1, 2), dilation=(2, 1, 1)
    ),
    "depthwise": _Conv((2, 9, 10, 6), (3, 3), 6, padding=(1, 1, 1, 1), groups=6),
    "depthwise-strided": _Conv((1, 11, 13, 5), (3, 5), 10, strides=(2, 3), padding=(1, 2, 0, 2), groups=5),
    "depthwise-dilated": _Conv((1, 12, 12, 4), (3, 3), 4, dilation=(2, 3), padding=(2, 3, 2, 3), groups=4),
}


@dataclass(frozen=True)
class _Transposed(_Windows):
    """Sizes of a transposed convolution; `filters` is the number of output channels of each group."""

    shape: tuple[int, ...]
    kernel: tuple[int, ...]
    filters: int
    strides: tuple[int, ...] = (2, 2)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    output_padding: tuple[int, ...] = (0, 0)
    groups: int = 1

    @property
    def attrs(self) -> dict[str, Any]:
        return {
            **self.layouts, "groups": self.groups, "strides": self.strides, "padding": self.padding,
            "dilation": self.dilation, "output_padding": self.output_padding,
            "channels": self.filters * self.groups, "kernel_size": self.kernel,
        }  # fmt: skip

    @property
    def weights_shape(self) -> tuple[int, ...]:
        return (*self.kernel, self.shape[-1], self.filters)

    def apply(self, data: Array, weights: Array) -> Array:
        """Return the transposed convolution in the arrays' dtype: each input element adds its window."""
        batch, *sizes, channels = data.shape
        full = [
            (size - 1) * stride + span + more
            for size, stride, span, more in zip(sizes, self.strides, self.spans, self.output_padding, strict=True)
        ]
        out = np.zeros((batch, *full, self.groups, self.filters), data.dtype)
        wide = data.reshape(batch, *sizes, self.groups, -1)
        parts = weights.reshape(*self.kernel, self.groups, channels // self.groups, self.filters)
        for taps in np.ndindex(*self.kernel):
            reached = tuple(
                slice(tap * step, tap * step + (size - 1) * stride + 1, stride)
                for tap, step, size, stride in zip(taps, self.dilation, sizes, self.strides, strict=True)
            )
            out[(slice(None), *reached)] += np.einsum("...gc,gcf->...gf", wide, parts[taps])
        ends = zip(full, self.padding[: self.rank], self.padding[self.rank :], strict=True)
        cut = out[(slice(None), *(slice(first, size - last) for size, first, last in ends))]
        return cut.reshape(*cut.shape[:-2], -1)


_TRANSPOSED = {
    "phases": _Transposed((2, 5, 6, 8), (3, 3), 12, padding=(1, 1, 1, 1), output_padding=(1, 0)),
    "kernel-below-stride": _Transposed((1, 4, 3, 5), (2, 1), 7, strides=(3, 2), output_padding=(1, 1)),
    "dilated": _Transposed((1, 6, 5, 4), (3, 2), 9, strides=(2, 3), dilation=(2, 2), padding=(2, 0, 1, 1)),
    "unstrided": _Transposed((1, 7, 8, 16), (3, 4), 33, strides=(1, 1), padding=(1, 2, 0, 1)),
    "groups-of-steps": _Transposed((1, 4, 5, 24), (4, 4), 6, padding=(1, 1, 1, 1), groups=3),
    "cut-at-both-ends": _Transposed((1, 6, 6, 4), (2, 2), 5, padding=(3, 2, 4, 3)),
    "one-dimension": _Transposed((2, 9, 8), (5,), 6, strides=(3,), padding=(1, 2), dilation=(1,), output_padding=(2,)),
    "depthwise": _Transposed((1, 5, 4, 6), (3, 3), 1, padding=(1, 1, 1, 1), groups=6),
}
_UNSIGNED = ("vectors", "groups", "first-layer", "depthwise")


def _scalar(value: float, dtype: str) -> ir.Constant:
    return ir.const(np.asarray(value, dtype))


def _variable(name: str, array: Array) -> ir.Var:
    return ir.Var(name, ir.TensorType(array.shape, str(array.dtype)))


def _group(body: ir.Expr, *params: ir.Var) -> ir.Function:
    return ir.Function(params, body, {"Primitive": 1})


def _float_conv(label: str, conv: _Conv, rng: np.random.Generator) -> ProductCase:
    data = rng.standard_normal(conv.shape).astype(np.float32)
    weights = rng.standard_normal(conv.weights_shape).astype(np.float32)
    bias = rng.standard_normal(conv.filters).astype(np.float32)
    x = _variable("x", data)
    body = ir.call(f"nn.conv{conv.rank}d", [x, ir.Constant(weights)], conv.attrs)
    body = ir.call("nn.relu", [ir.call("nn.bias_add", [body, ir.Constant(bias)], {"axis": -1})])
    wide = data.astype(np.float64), weights.astype(np.float64)
    return ProductCase(
        f"float-{label}", _group(body, x), [data], lambda: np.maximum(conv.apply(*wide) + bias, 0),
        lambda: conv.apply(*map(np.abs, wide)) + np.abs(bias),
    )  # fmt: skip


def _integer_conv(label: str, conv: _Conv, dtypes: tuple[str, str], rng: np.random.Generator) -> ProductCase:
    data_zero, weight_zero = (-5 if dtypes[0] == "int8" else 9), (0 if dtypes[1] == "int8" else 130)
    ranges = [np.iinfo(dtype) for dtype in dtypes]
    data, weights = (
        rng.integers(limits.min, limits.max + 1, shape).astype(limits.dtype)
        for limits, shape in zip(ranges, (conv.shape, conv.weights_shape), strict=True)
    )
    x = _variable("x", data)
    zeros = [_scalar(data_zero, "int32"), _scalar(weight_zero, "int32")]
    scales = [_scalar(0.5, "float32"), _scalar(0.25, "float32")]
    body = ir.call("qnn.conv2d", [x, ir.Constant(weights), *zeros, *scales], conv.attrs)
    wide = data.astype(np.int64) - data_zero, weights.astype(np.int64) - weight_zero
    label = f"{dtypes[0]}-{dtypes[1]}-{label}"
    return ProductCase(label, _group(body, x), [data], lambda: conv.apply(*wide).astype(np.int32))


def _float_transposed(label: str, conv: _Transposed, rng: np.random.Generator) -> ProductCase:
    data = rng.standard_normal(conv.shape).astype(np.float32)
    weights = rng.standard_normal(conv.weights_shape).astype(np.float32)
    bias = rng.standard_normal(conv.filters * conv.groups).astype(np.float32)
    x = _variable("x", data)
    body = ir.call(f"nn.conv{conv.rank}d_transpose", [x, ir.Constant(weights)], conv.attrs)
    body = ir.call("nn.relu", [ir.call("nn.bias_add", [body, ir.Constant(bias)], {"axis": -1})])
    wide = data.astype(np.float64), weights.astype(np.float64)
    return ProductCase(
        f"float-transposed-{label}", _group(body, x), [data], lambda: np.maximum(conv.apply(*wide) + bias, 0),
        lambda: conv.apply(*map(np.abs, wide)) + np.abs(bias),
    )  # fmt: skip


def _integer_transposed(label: str, conv: _Transposed, rng: np.random.Generator) -> ProductCase:
    data = rng.integers(-128, 128, conv.shape).astype(np.int8)
    weights = rng.integers(-127, 128, conv.weights_shape).astype(np.int8)
    x = _variable("x", data)
    zeros, scales = [_scalar(-7, "int32"), _scalar(0, "int32")], [_scalar(0.5, "float32"), _scalar(0.25, "float32")]
    body = ir.call("qnn.conv2d_transpose", [x, ir.Constant(weights), *zeros, *scales], conv.attrs)
    wide = data.astype(np.int64) + 7, weights.astype(np.int64)
    return ProductCase(f"int8-transposed-{label}", _group(body, x), [data], lambda: conv.apply(*wide).astype(np.int32))


def _dense(shape: tuple[int, ...], units: int, rng: np.random.Generator) -> ProductCase:
    data = rng.standard_normal(shape).astype(np.float32)
    weights = rng.standard_normal((units, shape[-1])).astype(np.float32)
    x = _variable("x", data)
    body = ir.call("nn.dense", [x, ir.Constant(weights)], {"units": units})
    wide = data.astype(np.float64), weights.astype(np.float64).T
    return ProductCase(
        f"dense-{shape}-{units}", _group(body, x), [data], lambda: wide[0] @ wide[1],
        lambda: np.abs(wide[0]) @ np.abs(wide[1]),
    )  # fmt: skip


def _integer_dense(rows: int, depth: int, units: int, rng: np.random.Generator) -> ProductCase:
    data = rng.integers(-128, 128, (rows, depth)).astype(np.int8)
    weights = rng.integers(-127, 128, (units, depth)).astype(np.int8)
    x = _variable("x", data)
    zeros, scales = [_scalar(3, "int32"), _scalar(0, "int32")], [_scalar(0.5, "float32"), _scalar(0.25, "float32")]
    body = ir.call("qnn.dense", [x, ir.Constant(weights), *zeros, *scales], {"units": units})
    wide = data.astype(np.int64) - 3, weights.astype(np.int64).T
    label = f"int8-dense-{rows}x{depth}x{units}"
    return ProductCase(label, _group(body, x), [data], lambda: (wide[0] @ wide[1]).astype(np.int32))


def _batch(transpose_a: bool, transpose_b: bool, rng: np.random.Generator) -> ProductCase:
    a = rng.standard_normal((3, 17, 21) if transpose_a else (3, 21, 17)).astype(np.float32)
    b = rng.standard_normal((3, 37, 17) if transpose_b else (3, 17, 37)).astype(np.float32)
    params = _variable("a", a), _variable("b", b)
    attrs = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    wide = (
        (a.swapaxes(1, 2) if transpose_a else a).astype(np.float64),
        (b.swapaxes(1, 2) if transpose_b else b).astype(np.float64),
    )
    return ProductCase(
        f"batch-{transpose_a}-{transpose_b}", _group(ir.call("nn.batch_matmul", params, attrs), *params), [a, b],
        lambda: wide[0] @ wide[1], lambda: np.abs(wide[0]) @ np.abs(wide[1]),
    )  # fmt: skip


def product_cases() -> list[ProductCase]:
    """Return every case."""
    rng = np.random.default_rng(7)
    cases = [_float_conv(label, conv, rng) for label, conv in _CONVS.items()]
    cases += [_integer_conv(label, conv, ("int8", "int8"), rng) for label, conv in _CONVS.items() if conv.rank == 2]
    pairs = (("uint8", "int8"), ("uint8", "uint8"))
    cases += [_integer_conv(label, _CONVS[label], pair, rng) for label in _UNSIGNED for pair in pairs]
    for label, transposed in _TRANSPOSED.items():
        cases.append(_float_transposed(label, transposed, rng))
        if transposed.rank == 2:
            cases.append(_integer_transposed(label, transposed, rng))
    cases += [
        _dense(shape, units, rng) for shape, units in (((1, 70), 9), ((3, 37), 19), ((70, 37), 19), ((2, 40, 36), 65))
    ]
    cases += [_integer_dense(rows, depth, 21, rng) for rows in (1, 33) for depth in (44, 45)]
    return cases + [_batch(first, second, rng) for first in (False, True) for second in (False, True)]

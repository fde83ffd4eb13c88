"""Fused groups for differential tests: a layer and a chain of elementwise operators.

Numbers of channels are around vector sizes. Inputs are quarters of small integers, so sums of products are equal in any
order and with fused multiply-adds. Discontinuous operators (rounding, comparisons) therefore see the same values in the
reference.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.relay import ir
from mlfc.relay.op import OPERATORS, Kind

Array: TypeAlias = "npt.NDArray[Any]"
Expr: TypeAlias = ir.Expr

CHANNELS = (1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 64)


def scalar(value: Any, dtype: str = "float32") -> Expr:
    return ir.const(np.asarray(value, dtype))


@dataclass
class Chain:
    """A group under construction: its variables, and a source of random constants.

    Attributes
    ----------
    name : str
        Names the layer and the operators behind it.
    variables : list of Var
    seed : int
    number : int
        Makes the names of its variables unique.
    """

    name: str
    seed: int
    number: int = 0
    variables: list[ir.Var] = field(default_factory=list)
    body: Expr | None = None

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def input(self, shape: Sequence[int], dtype: str = "float32") -> Expr:
        var = ir.Var(f"x{self.number}_{len(self.variables)}", ir.TensorType(tuple(shape), dtype))
        self.variables.append(var)
        return var

    def values(self, shape: Sequence[int], dtype: str = "float32") -> Array:
        if dtype == "float32":
            return (self.rng.integers(-8, 9, shape) / 4).astype(np.float32)
        if dtype == "bool":
            return self.rng.integers(0, 2, shape).astype(bool)
        limits = np.iinfo(dtype)
        low, high = max(limits.min, -128), min(limits.max, 255)
        return self.rng.integers(low, high + 1, shape).astype(dtype)

    def constant(self, shape: Sequence[int], dtype: str = "float32") -> Expr:
        return ir.const(self.values(shape, dtype))

    def inputs(self) -> list[Array]:
        """Return an array for each variable."""
        types = [ir.tensor_type(var) for var in self.variables]
        return [self.values(kind.shape, kind.dtype) for kind in types]


# layers: each takes a chain and the number of its channels --------------------------------------------------


def _conv(kernel: int, groups: bool = False, size: tuple[int, int] = (6, 4)) -> Callable[[Chain, int], Expr]:
    def layer(chain: Chain, channels: int) -> Expr:
        data = chain.input((1, *size, channels if groups else 5))
        weights = chain.constant((kernel, kernel, channels, 1) if groups else (kernel, kernel, 5, channels))
        call = ir.call(
            "nn.conv2d", [data, weights], kernel_size=(kernel, kernel), channels=channels, padding=(kernel // 2,) * 4,
            groups=channels if groups else 1, data_layout="NHWC", kernel_layout="HWOI" if groups else "HWIO",
        )  # fmt: skip
        return ir.call("nn.bias_add", [call, chain.constant((channels,))], axis=3)

    return layer


def _int8_conv(chain: Chain, channels: int) -> Expr:
    data, weights = chain.input((1, 5, 4, 6), "int8"), chain.constant((1, 1, 6, channels), "int8")
    zeros = [scalar(3, "int32"), scalar(0, "int32"), scalar(0.5), scalar(0.25)]
    sums = ir.call(
        "qnn.conv2d", [data, weights, *zeros], kernel_size=(1, 1), channels=channels, data_layout="NHWC",
        kernel_layout="HWIO", out_dtype="int32",
    )  # fmt: skip
    scales = ir.const(chain.rng.integers(1, 9, channels).astype(np.float32) / np.float32(512))
    arguments = [sums, scales, scalar(0, "int32"), scalar(1.0), scalar(-3, "int32")]
    return ir.call("qnn.requantize", arguments, axis=-1, rounding="DOUBLE", out_dtype="int8")


def _dense(chain: Chain, channels: int) -> Expr:
    return ir.call("nn.dense", [chain.input((3, 20)), chain.constant((channels, 20))], units=channels)


def _pool(name: str) -> Callable[[Chain, int], Expr]:
    def layer(chain: Chain, channels: int) -> Expr:
        return ir.call(name, [chain.input((1, 6, 4, channels))], pool_size=(2, 2), strides=(2, 2), layout="NHWC")

    return layer


def _reduce(name: str) -> Callable[[Chain, int], Expr]:
    return lambda chain, channels: ir.call(name, [chain.input((3, 4, channels))], axis=(1,))


def _tile(reps: tuple[int, ...]) -> Callable[[Chain, int], Expr]:
    return lambda chain, channels: ir.call("tile", [chain.input((2, 3, channels))], reps=reps)


def _gather(chain: Chain, channels: int) -> Expr:
    picks = ir.const(np.array([4, 0, 6, 6, 1], np.int64))
    return ir.call("take", [chain.input((7, channels)), picks], axis=0)


def _pad(chain: Chain, channels: int) -> Expr:
    widths = ((0, 0), (1, 2), (2, 0), (0, 1))
    return ir.call("nn.pad", [chain.input((1, 3, 2, channels)), scalar(0.25)], pad_width=widths)


def _concatenate(chain: Chain, channels: int) -> Expr:
    parts = (chain.input((3, 2, channels)), chain.input((3, 2, 5)))
    return ir.call("concatenate", [ir.Tuple(parts)], axis=-1)


def _elementwise(chain: Chain, channels: int) -> Expr:
    return ir.call("add", [chain.input((2, 5, channels)), chain.input((2, 5, channels))])


LAYERS: dict[str, Callable[[Chain, int], Expr]] = {
    "conv_1x1": _conv(1),
    "conv_1x1_large": _conv(1, size=(12, 12)),
    "conv_3x3": _conv(3),
    "depthwise": _conv(3, groups=True),
    "conv_int8": _int8_conv,
    "dense": _dense,
    "max_pool": _pool("nn.max_pool2d"),
    "avg_pool": _pool("nn.avg_pool2d"),
    "sum": _reduce("sum"),
    "mean": _reduce("mean"),
    "max": _reduce("max"),
    "tile": _tile((2, 3, 4)),
    "tile_twice": _tile((2, 1, 2)),
    "tile_often": _tile((2, 3, 64)),
    "gather": _gather,
    "pad": _pad,
    "concatenate": _concatenate,
    "elementwise": _elementwise,
}


# tails: each takes a chain and the value so far --------------------------------------------------------------

Tail: TypeAlias = Callable[[Chain, Expr], Expr]


def _shape(value: Expr) -> tuple[int, ...]:
    return ir.tensor_type(value).shape


def _as(value: Expr, dtype: str) -> Expr:
    """Return the value as another dtype; float32 becomes int8 by quantization, anything else by a cast."""
    own = ir.tensor_type(value).dtype
    if own == dtype:
        return value
    if dtype == "int8" and own == "float32":
        return ir.call("qnn.quantize", [value, scalar(0.25), scalar(1, "int32")], out_dtype="int8")
    return ir.call("cast", [value], dtype=dtype)


def _unary(name: str, **attrs: Any) -> Tail:
    return lambda chain, x: ir.call(name, [_as(x, "float32")], **attrs)


def _positive(name: str) -> Tail:
    return lambda chain, x: ir.call(name, [ir.call("add", [ir.call("abs", [_as(x, "float32")]), scalar(0.25)])])


def _within_one(name: str) -> Tail:
    def tail(chain: Chain, x: Expr) -> Expr:
        return ir.call(name, [ir.call("clip", [_as(x, "float32")], a_min=-0.75, a_max=0.75)])

    return tail


def _beside(name: str, dtype: str = "float32") -> Tail:
    """Return a tail with a second input of the same shape, so the result may be stored in place."""

    def tail(chain: Chain, x: Expr) -> Expr:
        return ir.call(name, [_as(x, dtype), chain.input(_shape(x), dtype)])

    return tail


def _by_channel(name: str, dtype: str = "float32", low: int = 1, high: int = 6, **attrs: Any) -> Tail:
    def tail(chain: Chain, x: Expr) -> Expr:
        numbers = chain.rng.integers(low, high, _shape(x)[-1:]).astype(dtype)
        return ir.call(name, [_as(x, dtype), ir.const(numbers)], **attrs)

    return tail


def _last_axis(name: str) -> Tail:
    def tail(chain: Chain, x: Expr) -> Expr:
        return ir.call(name, [_as(x, "float32"), chain.constant(_shape(x)[-1:])], axis=len(_shape(x)) - 1)

    return tail


def _slope(chain: Chain, x: Expr) -> Expr:
    """Add a residual, then scale negative values by a slope per channel, as importers write PReLU."""
    x = ir.call("add", [_as(x, "float32"), chain.input(_shape(x))])
    below = ir.call("less", [x, scalar(0.0)])
    return ir.call("where", [below, ir.call("multiply", [x, chain.constant(_shape(x)[-1:])]), x])


def _other_where_negative(chain: Chain, x: Expr) -> Expr:
    x = _as(x, "float32")
    return ir.call("where", [ir.call("less", [x, scalar(0.0)]), chain.input(_shape(x)), x])


def _power(chain: Chain, x: Expr) -> Expr:
    base = ir.call("add", [ir.call("abs", [_as(x, "float32")]), scalar(0.5)])
    return ir.call("power", [base, chain.constant(_shape(x)[-1:])])


def _divided(chain: Chain, x: Expr) -> Expr:
    return ir.call("divide", [chain.input(_shape(x)), ir.call("add", [ir.call("abs", [_as(x, "float32")]), scalar(1)])])


def _logical(name: str) -> Tail:
    def tail(chain: Chain, x: Expr) -> Expr:
        signs = ir.call("greater", [_as(x, "float32"), scalar(0.0)])
        return ir.call(name, [signs] if name == "logical_not" else [signs, chain.input(_shape(x), "bool")])

    return tail


def _narrowed(x: Expr) -> Expr:
    return ir.call("cast_narrow", [x], dtype="float8_e4m3fn", saturate=False)


def _broadcast(chain: Chain, x: Expr) -> Expr:
    # same shape, because fusion takes no operator behind a layer that changes the shape
    return ir.call("broadcast_to", [_as(x, "float32")], shape=_shape(x))


def _fixed_point(chain: Chain, x: Expr) -> Expr:
    return ir.call("fixed_point_multiply", [_as(x, "int32")], multiplier=1 << 30, shift=2)


_SCALES = [scalar(0.25), scalar(1, "int32"), scalar(0.5), scalar(-2, "int32")]


def _quantized(name: str, **attrs: Any) -> Tail:
    return lambda chain, x: ir.call(name, [_as(x, "int8"), *_SCALES], **attrs)


def _table(name: str, scale: float, zero: int) -> Tail:
    arguments = [scalar(0.25), scalar(1, "int32"), scalar(scale), scalar(zero, "int32")]
    return lambda chain, x: ir.call(name, [_as(x, "int8"), *arguments], fixed_point=True)


def _positive_codes(name: str) -> Tail:
    """Return a tail on codes that represent positive numbers."""
    arguments = [scalar(0.25), scalar(-128, "int32"), scalar(0.5), scalar(-2, "int32")]

    def tail(chain: Chain, x: Expr) -> Expr:
        codes = ir.call("maximum", [_as(x, "int8"), scalar(-127, "int8")])
        return ir.call(name, [codes, *arguments])

    return tail


def _quantized_beside(name: str) -> Tail:
    scales = [scalar(0.25), scalar(1, "int32"), scalar(0.125), scalar(2, "int32"), scalar(0.5), scalar(-2, "int32")]
    return lambda chain, x: ir.call(name, [_as(x, "int8"), chain.input(_shape(x), "int8"), *scales])


def _dynamic(name: str) -> Tail:
    """Return a tail with runtime quantization parameters: a magnitude, a range, or a scale and a zero point."""

    def tail(chain: Chain, x: Expr) -> Expr:
        x = _as(x, "float32")
        if name == "qnn.centred_quantize":
            return ir.call(name, [x, scalar(0.25), scalar(3, "int32")])
        if name == "qnn.symmetric_quantize":
            return ir.call(name, [x, scalar(2.0)])
        low, high = ir.call("minimum", [x, scalar(-0.25)]), ir.call("maximum", [x, scalar(0.25)])
        return ir.call(name, [low, high])

    return tail


_UNARY = (
    "abs", "asinh", "atan", "ceil", "copy", "cos", "cosh", "erf", "exp", "fast_erf", "fast_exp", "fast_tanh", "floor",
    "isfinite", "isinf", "isnan", "negative", "nn.mish", "nn.relu", "ones_like", "round", "sigmoid", "sign", "sin",
    "sinh", "tanh", "trunc", "zeros_like",
)  # fmt: skip
TAILS: dict[str, Tail] = {
    **{name: _unary(name) for name in _UNARY},
    **{name: _positive(name) for name in ("log", "log2", "log10", "rsqrt", "sqrt")},
    **{name: _within_one(name) for name in ("acos", "asin", "atanh", "tan")},
    "acosh": lambda chain, x: ir.call("acosh", [ir.call("add", [ir.call("abs", [_as(x, "float32")]), scalar(1.5)])]),
    **{name: _beside(name) for name in ("add", "subtract", "multiply", "maximum", "minimum")},
    **{name: _beside(name) for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")},
    **{name: _beside(name, "int32") for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{name: _by_channel(name, "int32") for name in ("left_shift", "right_shift", "floor_divide", "trunc_divide")},
    **{name: _by_channel(name, "int32") for name in ("floor_mod", "trunc_mod", "mod")},
    "bitwise_not": lambda chain, x: ir.call("bitwise_not", [_as(x, "int32")]),
    "broadcast_to": _broadcast,
    "cast": lambda chain, x: ir.call("cast", [_as(x, "float32")], dtype="float16"),
    "cast_narrow": lambda chain, x: ir.call("cast", [_narrowed(_as(x, "float32"))], dtype="float32"),
    "clip": _unary("clip", a_min=-1.0, a_max=2.5),
    "divide": _divided,
    "fixed_point_multiply": _fixed_point,
    **{name: _logical(name) for name in ("logical_and", "logical_or", "logical_xor", "logical_not")},
    "nn.bias_add": _last_axis("nn.bias_add"),
    "nn.leaky_relu": _unary("nn.leaky_relu", alpha=0.25),
    "nn.prelu": _last_axis("nn.prelu"),
    "power": _power,
    "where": _slope,
    **{f"qnn.{name}": _quantized(f"qnn.{name}") for name in ("abs", "elu", "erf", "exp", "gelu", "hardswish")},
    "qnn.leaky_relu": _quantized("qnn.leaky_relu", alpha=0.25),
    **{f"qnn.{name}": _positive_codes(f"qnn.{name}") for name in ("log", "rsqrt", "sqrt")},
    "qnn.sigmoid": _table("qnn.sigmoid", 1 / 256, -128),
    "qnn.tanh": _table("qnn.tanh", 1 / 128, 0),
    **{f"qnn.{name}": _quantized_beside(f"qnn.{name}") for name in ("add", "div", "mul", "prelu", "subtract")},
    "qnn.squared_difference": _quantized_beside("qnn.squared_difference"),
    "signal.log": lambda chain, x: ir.call(
        "signal.log", [ir.call("cast", [_as(x, "int32")], dtype="uint32")], correction_bits=3, output_scale=64
    ),
    "qnn.requantize": lambda chain, x: ir.call(
        "qnn.requantize",
        [_as(x, "int8"), scalar(0.25), scalar(1, "int32"), scalar(0.375), scalar(-2, "int32")],
        rounding="TONEVEN",
        out_dtype="int8",
    ),
    "qnn.quantize": lambda chain, x: ir.call(
        "qnn.quantize", [_as(x, "float32"), scalar(0.5), scalar(1, "int32")], out_dtype="uint8", rounding="TONEVEN"
    ),
    "qnn.dequantize": lambda chain, x: ir.call("qnn.dequantize", [_as(x, "int8"), scalar(0.25), scalar(1, "int32")]),
    **{
        name: _dynamic(name)
        for name in (
            "qnn.asymmetric_scale", "qnn.asymmetric_zero_point", "qnn.centred_quantize", "qnn.symmetric_quantize"
        )
    },
}  # fmt: skip
"""Tails by the operator that they test; every elementwise and broadcasting operator has one."""

MORE_TAILS: dict[str, Tail] = {
    "other_where_negative": _other_where_negative,
    "residual": _beside("add"),
}


def without_tail() -> list[str]:
    """Return the elementwise and broadcasting operators without a tail."""
    kinds = (Kind.ELEMENTWISE, Kind.BROADCAST)
    return [name for name in OPERATORS if OPERATORS.get(name).kind in kinds and name not in TAILS]


def chain_of(layer: str, tails: Sequence[str], channels: int, seed: int) -> Chain:
    """Return a group of a layer followed by tails."""
    chain = Chain("-".join([layer, *tails, str(channels)]), seed, seed)
    value = LAYERS[layer](chain, channels)
    for name in tails:
        value = (TAILS.get(name) or MORE_TAILS[name])(chain, value)
    chain.body = value
    return chain


def covering(seed: int, most_channels: int = max(CHANNELS)) -> list[Chain]:
    """Return randomly combined chains that cover every layer, every tail and every number of channels."""
    order = random.Random(seed)
    tails = list(TAILS)
    order.shuffle(tails)
    chains = []
    layers, channels = list(LAYERS), [count for count in CHANNELS if count <= most_channels]
    count = max(-(-len(tails) // 2), len(layers), len(channels))
    order.shuffle(channels)
    for index in range(count):
        behind = tails[2 * index % len(tails) : 2 * index % len(tails) + 2]
        chains.append(chain_of(layers[index % len(layers)], behind, channels[index % len(channels)], seed + index))
    return chains


def random_chains(seed: int, count: int) -> list[Chain]:
    """Return chains of one to three tails."""
    order = random.Random(seed)
    names = [*TAILS, *MORE_TAILS]
    return [
        chain_of(
            order.choice(list(LAYERS)), order.choices(names, k=order.randint(1, 3)), order.choice(CHANNELS),
            seed * 1000 + index,
        )
        for index in range(count)
    ]  # fmt: skip

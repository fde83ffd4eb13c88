"""Scaled dot-product attention: products, softmax and mixed values of each query in one operator.

The kernels (`kernels.attention`) keep the scores of a tile of keys alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlfc.errors import TypeCheckError
from mlfc.kernels import templates
from mlfc.kernels.attention import FARTHEST, AttentionOperand, FusedAttention
from mlfc.ops.rules import check_alike, check_choice, check_dtype, declare, same_extent
from mlfc.ops.spelled_attention import spelled_out
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind
from mlfc.support.dims import Dim, bounds
from mlfc.tir.context import Context, Output, Tensor

ORDERS = ("BHND", "BNHD", "NBHD")
"""Orders of batch, heads, positions and elements in memory."""

EXTRAS = ("mask", "bias", "offset", "lengths", "sink")
_ONCE = ("offset", "lengths", "sink")
_WIDE = {"float16": "float32", "bfloat16": "float32"}


def _sizes(shape: Sequence[int], order: str) -> tuple[int, ...]:
    """Return (batch, heads, positions, elements)."""
    return tuple(shape[order.index(letter)] for letter in "BHND")


def _check_attrs(name: str, attrs: Attrs) -> None:
    orders = attrs["orders"]
    if not isinstance(orders, tuple) or len(orders) != 4:
        raise TypeCheckError(f"{name}: expected the orders of query, key, value and result, got {orders}")
    for order in orders:
        check_choice(name, "an order", order, ORDERS)
    for extra in attrs["extras"]:
        check_choice(name, "an extra argument", extra, EXTRAS)
    for extra in _ONCE:
        if attrs["extras"].count(extra) > 1:
            raise TypeCheckError(f"{name}: '{extra}' is given more than once")
    for limit in ("left", "right"):
        if not -1 <= attrs[limit] <= FARTHEST:
            raise TypeCheckError(f"{name}: expected {limit} from -1 to {FARTHEST}, got {attrs[limit]}")
    nearest, farthest = bounds(attrs["offset"])
    if nearest > FARTHEST or farthest < -FARTHEST:
        raise TypeCheckError(f"{name}: expected an offset within {FARTHEST}, got {attrs['offset']}")
    if attrs["softcap"] < 0:
        raise TypeCheckError(f"{name}: expected a softcap of 0 or more, got {attrs['softcap']}")


def _infer(name: str, attrs: Attrs, *types: TensorType) -> TensorType:
    """Check query, key, value and the tensors that `extras` names; the result has the elements of the value."""
    _check_attrs(name, attrs)
    if len(types) != 3 + len(attrs["extras"]):
        raise TypeCheckError(f"{name}: expected query, key, value and {', '.join(attrs['extras']) or 'no more'}")
    query, key, value, *extras = types
    check_dtype(name, query.dtype, "float")
    check_alike(name, query, key)
    check_alike(name, query, value)
    if any(len(part.shape) != 4 or 0 in part.shape for part in types[:3]):
        raise TypeCheckError(f"{name}: expected query, key and value of 4 dimensions that are not empty")
    order = attrs["orders"]
    q, k, v = (_sizes(part.shape, own) for part, own in zip(types[:3], order[:3], strict=True))
    pairs = [(q[0], k[0]), (k[0], v[0]), (q[3], k[3]), *zip(k[1:3], v[1:3], strict=True)]
    for first, second in pairs:
        if isinstance(first, Dim) or isinstance(second, Dim):
            same_extent(name, first, second, "extents of query, key and value")
    if any(isinstance(extent, Dim) for extent in (q[1], k[1], q[3], v[3])):
        raise TypeCheckError(f"{name}: expected heads of a fixed number and size, got {query}, {key} and {value}")
    if any(first != second for first, second in pairs) or q[1] % k[1]:
        raise TypeCheckError(f"{name}: {query}, {key} and {value} do not fit together")
    if max(bounds(q[2])[0], bounds(k[2])[0]) > FARTHEST:
        raise TypeCheckError(f"{name}: more than {FARTHEST} positions")
    for extra, kind in zip(attrs["extras"], extras, strict=True):
        _check_extra(name, extra, kind, (q[0], q[1], q[2], k[2]))
    sizes = {"B": q[0], "H": q[1], "N": q[2], "D": v[3]}
    return TensorType(tuple(sizes[letter] for letter in order[3]), query.dtype)


def _check_extra(name: str, extra: str, kind: TensorType, scores: tuple[int, ...]) -> None:
    if extra in ("mask", "bias"):
        check_dtype(name, kind.dtype, "bool" if extra == "mask" else "float")
        if len(kind.shape) != 4 or any(own not in (1, size) for own, size in zip(kind.shape, scores, strict=True)):
            raise TypeCheckError(f"{name}: a {extra} of shape {kind.shape} does not fit scores of shape {scores}")
        return
    batch, heads = scores[:2]
    wanted = (heads,) if extra == "sink" else (batch,)
    if kind.shape != wanted:
        raise TypeCheckError(f"{name}: expected {extra} of shape {wanted}, got {kind.shape}")
    if extra == "sink":
        check_dtype(name, kind.dtype, "float")
    elif kind.dtype != "int32":
        raise TypeCheckError(f"{name}: expected {extra} of int32, got {kind.dtype}")


def _emit(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    wide = [templates.in_float(ctx, tensor) for tensor in inputs[:3]]
    q, k, v = (AttentionOperand(order, tensor) for order, tensor in zip(attrs["orders"][:3], wide, strict=True))
    batch, heads, queries, size = _sizes(q.tensor.shape, q.order)
    _, groups, keys, value_size = _sizes(v.tensor.shape, v.order)
    found: dict[str, list[Tensor]] = {extra: [] for extra in EXTRAS}
    for extra, tensor in zip(attrs["extras"], inputs[3:], strict=True):
        found[extra].append(templates.in_float(ctx, tensor) if extra == "sink" else tensor)
    offsets, lengths, sink = (found[extra][0] if found[extra] else None for extra in _ONCE)
    dtype = _WIDE.get(q.tensor.dtype, q.tensor.dtype)
    work = FusedAttention(
        q, k, v, attrs["orders"][3], batch, heads, groups, queries, keys, size, value_size, dtype, attrs["scale"],
        attrs["softcap"], attrs["left"], attrs["right"], attrs["offset"], offsets, lengths, tuple(found["mask"]),
        tuple(found["bias"]), sink, attrs["fill"], attrs["zero_rows"], attrs["zero_nan"],
    )  # fmt: skip
    templates.emit("attention", ctx, work, out)


def _macs(types: Sequence[Any], attrs: Attrs, _: Any) -> int:
    """Return the multiply-accumulates where every query sees every key."""
    q, v = _sizes(types[0].shape, attrs["orders"][0]), _sizes(types[2].shape, attrs["orders"][2])
    return q[0] * q[1] * q[2] * v[2] * (q[3] + v[3])


declare(
    "nn.attention", None, _infer, Kind.ANCHOR,
    (Attr("scale", REQUIRED, True), Attr("softcap", 0.0, True), Attr("left", -1), Attr("right", -1),
     Attr("offset", 0), Attr("extras", ()), Attr("fill", None, True), Attr("zero_rows", True),
     Attr("zero_nan", False), Attr("orders", ("BHND",) * 4)),
    emit=_emit, macs=_macs, in_tvm=spelled_out,
    contract="within 2e-6 of the largest value of a head; keys outside of the window or the lengths are not read",
    doc="softmax(scale * q k^T, masked) v of each head, without the scores in memory",
)  # fmt: skip

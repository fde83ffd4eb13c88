"""Absorb the transposes around `nn.attention` into its `orders` attribute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from mlfc.ops.attention import ORDERS
from mlfc.relay import ir
from mlfc.relay.ir import Call, Expr, IRModule
from mlfc.relay.visitor import children, post_order, users, with_children
from mlfc.transform.matching import joined_span, match_call, reshaped, shape_of, storage_owner, transpose_axes


@dataclass(frozen=True)
class AttentionOrders:
    """Make `nn.attention` read queries, keys and values before their transposes, and write its result transposed.

    This avoids copies between (batch, positions, heads, elements), the order of dense layers, and (batch, heads,
    positions, elements).
    """

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module with these transposes absorbed."""
        body = module.main.body
        nodes = post_order(body)
        if not any(match_call(node, "nn.attention") for node in nodes):
            return module
        readers = users(body)
        done: dict[Expr, Expr] = {}
        for node in nodes:
            done[node] = with_children(node, (done[child] for child in children(node)))
            if isinstance(node, Call):
                taken = _with_sources(done[node]) if match_call(node, "nn.attention") else _turned(node, done, readers)
                done[node] = taken or done[node]
        return module.with_body(done[body])


def _with_sources(call: Expr) -> Call | None:
    """Return the attention on the sources of its transposed arguments; None if no argument changes."""
    assert isinstance(call, Call)
    args, orders = list(call.args), list(call.attrs["orders"])
    for index in range(3):
        source = storage_owner(args[index])
        turned = match_call(source, "transpose")
        if turned is None:
            continue
        letters = _letters(shape_of(turned), shape_of(args[index]), orders[index])
        extents = dict(zip(orders[index], shape_of(args[index]), strict=True))
        if letters is None:
            continue
        places = [letters[place] for place in map(transpose_axes(turned).index, range(len(letters)))]
        before = _order(places, extents)
        if before is not None:
            args[index] = reshaped(turned.args[0], [extents[letter] for letter in before], turned.span)
            orders[index] = before
    if orders == list(call.attrs["orders"]):
        return None
    return ir.call("nn.attention", args, {**call.attrs, "orders": tuple(orders)}, span=call.span)


def _turned(node: Call, done: dict[Expr, Expr], readers: dict[Expr, list[Expr]]) -> Expr | None:
    """Return the attention with its result transposed by `node`, if nothing else reads that result."""
    if match_call(node, "transpose") is None:
        return None
    source: Expr = node.args[0]
    while True:
        if len(readers[source]) > 1 or not isinstance(source, Call):
            return None
        if match_call(source, "nn.attention") is not None:
            break
        if storage_owner(source) is source:
            return None
        source = source.args[0]
    found = done[source]
    if not isinstance(found, Call) or match_call(found, "nn.attention") is None:
        return None
    orders, read = found.attrs["orders"], shape_of(node.args[0])
    letters = _letters(read, shape_of(found), orders[3])
    if letters is None:
        return None
    extents = dict(zip(orders[3], shape_of(found), strict=True))
    after = _order([letters[axis] for axis in transpose_axes(node)], extents)
    if after is None:
        return None
    span = joined_span(found, node)
    attrs = {**found.attrs, "orders": (*orders[:3], after)}
    return reshaped(ir.call("nn.attention", found.args, attrs, span=replace(span, tensor=None)), shape_of(node), span)


def _letters(view: tuple[int, ...], shape: tuple[int, ...], order: str) -> list[str] | None:
    """Return the dimensions of `order` that each dimension of a view covers; None if they do not match."""
    found, rest = [], list(zip(order, shape, strict=True))
    for axis, extent in enumerate(view):
        taken = ""
        while rest and (prod(shape[order.index(letter)] for letter in taken) != extent or not taken):
            letter, size = rest[0]
            if not taken and extent == 1 and size != 1:
                break  # a dimension of size 1 that covers none
            taken += letter
            rest.pop(0)
        if axis == len(view) - 1:
            taken += "".join(letter for letter, _ in rest)
            rest = []
        if prod(shape[order.index(letter)] for letter in taken) != extent:
            return None
        found.append(taken)
    return None if rest else found


def _order(letters: Sequence[str], extents: Mapping[str, int]) -> str | None:
    """Return the supported order of the given dimensions, ignoring those of size 1; None if none matches."""

    def long(order: str) -> list[str]:
        return [letter for letter in order if extents[letter] != 1]

    return next((order for order in ORDERS if long(order) == long("".join(letters))), None)

"""Attention that exporters spell out, in products, scales, masks and a softmax, becomes `nn.attention`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf, isnan, prod

import numpy as np

from mlfc.kernels.attention import FARTHEST
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, IRModule
from mlfc.relay.op import Operator
from mlfc.relay.visitor import children, post_order, users, with_children
from mlfc.support.dims import bounds, is_static
from mlfc.transform.matching import (
    Array,
    dtype_of,
    is_moderate,
    joined_span,
    match_call,
    reshaped,
    scalar_of,
    shape_of,
    storage_owner,
    transposed,
    value_of,
)

LOWEST = -1e9
"""What is added to masked scores that come to nothing beside any other, as minus infinity would."""


@dataclass(frozen=True)
class RecognizeAttention:
    """Recognize ``softmax(scale * q k^T + masks) v`` of float32, unless something else reads the scores.

    Scales may be factors of queries, keys or scores, masks may be added or selected; keys and values that are repeated
    for several heads are read once. Models whose results depend on the last bit of a float stay as they are.
    """

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module with those expressions replaced."""
        nodes = post_order(module.main.body)
        calls = [node for node in nodes if isinstance(node, Call) and isinstance(node.op, Operator)]
        if any(isinstance(call.op, Operator) and call.op.rounding_sensitive for call in calls):
            return module
        products = [call for call in calls if match_call(call, "nn.batch_matmul") and dtype_of(call) == "float32"]
        found = {call: match for call in products if (match := _match(call)) is not None} if len(products) > 1 else {}
        if not found:
            return module
        readers = users(module.main.body)
        found = {call: match for call, match in found.items() if _is_closed(match.inner, call, readers)}
        done: dict[Expr, Expr] = {}
        for node in nodes:
            done[node] = with_children(node, (done[child] for child in children(node)))
            if isinstance(node, Call) and node in found:
                done[node] = found[node].build(node, done)
        return module.with_body(done[module.main.body])


def _is_closed(inner: Iterable[Expr], last: Call, readers: Mapping[Expr, list[Expr]]) -> bool:
    """Tell whether nothing but `last` and each other reads any of `inner`."""
    known = {*inner, last}
    return all(reader in known for node in inner for reader in readers[node])


@dataclass(frozen=True, eq=False)
class _MaskPart:
    """A tensor of a mask, as it is broadcast to scores of a shape."""

    kind: str  # mask or bias
    tensor: Expr
    view: tuple[int, ...]  # the shape of the scores where it is read
    negated: bool = False  # whether a mask is true where the key is hidden


@dataclass(eq=False)
class _Match:
    """What was found on the way from the second product back to the first."""

    values: Expr = field(init=False)
    first: Call = field(init=False)  # the first product
    leading: tuple[int, ...] = ()  # leading dimensions of the softmax
    scale: float = 1.0
    cap: float = 0.0
    zero_nan: bool = False
    fill: float | None = None  # of masked scores, None for minus infinity
    parts: list[_MaskPart] = field(default_factory=list)
    inner: list[Expr] = field(default_factory=list)  # all between the products, and the first of them
    build: Callable[[Call, Mapping[Expr, Expr]], Expr] = field(init=False)


def _match(last: Call) -> _Match | None:
    """Return the attention whose second product is `last`, None if it is none."""
    if last.attrs["transpose_a"]:
        return None
    match = _Match()
    softmax = _softmax(match, last.args[0])
    if softmax is None:
        return None
    match.leading = shape_of(softmax)[:-2]
    if len(shape_of(softmax)) < 3 or not _scores(match, softmax.args[0], 16):
        return None
    return match if _Builder(match, last).fits() else None


def _through_views(match: _Match, expr: Expr) -> Expr:
    """Return what an expression is a view of; the views belong to the match."""
    owner = storage_owner(expr)
    while expr is not owner:
        match.inner.append(expr)
        expr = expr.args[0]  # type: ignore[union-attr]  # a view is a call
    return owner


def _softmax(match: _Match, expr: Expr) -> Call | None:
    """Return the softmax over keys that an expression is, NaN replaced by zeros or not."""
    expr = _through_views(match, expr)
    chosen = match_call(expr, "where")
    if chosen is not None:
        test = match_call(chosen.args[0], "isnan")
        if test is None or test.args[0] is not chosen.args[2] or scalar_of(chosen.args[1]) != 0.0:
            return None
        match.inner += [chosen, test]
        match.zero_nan = True
        expr = chosen.args[2]
    found = match_call(expr, "nn.softmax", "nn.fast_softmax")
    if found is None or found.attrs["axis"] % len(shape_of(found)) != len(shape_of(found)) - 1:
        return None
    match.inner.append(found)
    return found


def _scores(match: _Match, expr: Expr, depth: int) -> bool:
    """Follow what a softmax reads back to the first product; tell whether all of it is that of an attention."""
    expr = _through_views(match, expr)
    if not isinstance(expr, Call) or depth == 0:
        return False
    match.inner.append(expr)
    if match_call(expr, "add"):
        return _either(match, expr, depth)
    if match_call(expr, "where"):
        return _selected(match, expr, depth)
    return _scaled(match, expr)


def _either(match: _Match, call: Call, depth: int) -> bool:
    """Follow the operand of an addition that leads to the product; the other one is a bias."""
    for scores, bias in (call.args, call.args[::-1]):
        if shape_of(scores) != shape_of(call) or dtype_of(bias) != dtype_of(call):
            continue
        parts, inner, numbers = list(match.parts), list(match.inner), (match.scale, match.cap, match.fill)
        match.parts.append(_MaskPart("bias", bias, shape_of(call)))
        if _scores(match, scores, depth - 1) and match.fill in (numbers[2], -inf):  # else it changes what is hidden
            return True
        match.parts, match.inner, (match.scale, match.cap, match.fill) = parts, inner, numbers
    return False


def _selected(match: _Match, call: Call, depth: int) -> bool:
    """Follow the operand of a selection that leads to the product; the other one is a number for hidden scores."""
    condition, then, otherwise = call.args
    for scores, other, negated in ((then, otherwise, False), (otherwise, then, True)):
        number = scalar_of(other)
        if number is None or isnan(number) or shape_of(scores) != shape_of(call):
            continue
        if any(part.kind == "mask" for part in match.parts):
            continue
        match.fill = number
        match.parts.append(_MaskPart("mask", condition, shape_of(call), negated))
        return _scores(match, scores, depth - 1)
    return False


def _scaled(match: _Match, expr: Expr) -> bool:
    """Follow factors of the scores, and a cap, to the product of queries and keys."""
    while match_call(expr, "nn.batch_matmul") is None:
        factored = _factored(expr)
        tanh = match_call(expr, "tanh")
        if factored is not None:
            inner, factor = factored
            bent = match_call(inner, "tanh")
            if bent is not None and match.scale == 1.0 and not match.cap and factor > 0:
                match.cap = factor
            elif bent is not None:
                return False
            match.scale *= factor
        elif tanh is not None and match.cap:
            inner = tanh.args[0]
        else:
            return False
        expr = _through_views(match, inner)
        match.inner.append(expr)
    assert isinstance(expr, Call)
    match.first = expr
    return True


def _factored(expr: Expr) -> tuple[Expr, float] | None:
    """Return an expression and the number that it is multiplied with, if it is a product with one."""
    call = match_call(expr, "multiply", "divide")
    if call is None:
        return None
    by_number = match_call(call, "divide")
    for inner, other in (call.args, call.args[::-1])[: 1 if by_number else 2]:
        number = scalar_of(other)
        if number and shape_of(inner) == shape_of(call) and is_moderate(np.asarray(number)).all():
            return inner, 1 / number if by_number else number
    return None


class _Builder:
    """Makes the call from a match: sizes, the tensors before factors and repetitions, and masks."""

    def __init__(self, match: _Match, last: Call) -> None:
        self.match, self.last = match, last
        self.heads, self.batch = match.leading[-1], prod(match.leading[:-1])
        self.scale = match.scale
        first = match.first
        self.queries, self.keys = shape_of(first)[1:]
        self.size, self.value_size = shape_of(first.args[0])[1 if first.attrs["transpose_a"] else 2], shape_of(last)[2]

    def fits(self) -> bool:
        """Tell whether the match is an attention; then it can be built."""
        match, first = self.match, self.match.first
        if shape_of(first)[0] != self.batch * self.heads or 0 in shape_of(first) or 0 in (self.size, self.value_size):
            return False
        if max(bounds(self.queries)[0], bounds(self.keys)[0]) > FARTHEST:
            return False
        q = self._before(first.args[0])
        k, self.turned = self._unturned(self._before(first.args[1]), not first.attrs["transpose_b"])
        v, repeats = self._unrepeated(self.last.args[1])
        k, others = self._unrepeated(k)
        if repeats != others or not is_static((self.heads, repeats, self.size, self.value_size)):
            return False
        if self.heads % repeats or not is_moderate(np.asarray(self.scale)):
            return False
        stacks = (shape_of(first.args[0])[0], shape_of(first.args[1])[0], shape_of(self.last.args[1])[0])
        if any(stack != self.batch * self.heads for stack in stacks):
            return False
        if not all(self._placed(part) for part in match.parts):
            return False
        self.groups, self.sources = self.heads // repeats, (q, k, v)
        match.build = self.build
        return True

    def _before(self, expr: Expr) -> Expr:
        """Return a factor of the first product without the numbers that it is multiplied with."""
        while (factored := _factored(storage_owner(expr))) is not None:
            self.scale *= factored[1]
            expr = factored[0]
        return expr

    def _unturned(self, expr: Expr, swapped: bool) -> tuple[Expr, bool]:
        """Return keys before a transposition of each matrix, and whether they are elements by positions then."""
        turned = match_call(storage_owner(expr), "transpose")
        if turned is None or shape_of(turned)[-2:] not in ((self.keys, self.size), (self.size, self.keys)):
            return expr, swapped
        rank = len(shape_of(turned))
        axes = [axis % rank for axis in turned.attrs["axes"] or reversed(range(rank))]
        only = axes == [*range(rank - 2), rank - 1, rank - 2]
        return (turned.args[0], not swapped) if only else (expr, swapped)

    def _unrepeated(self, expr: Expr) -> tuple[Expr, int]:
        """Return keys or values before they were repeated for each head that shares them, and how often that was."""
        call = match_call(storage_owner(expr), "broadcast_to")
        if call is None:
            return expr, 1
        before, after = shape_of(call.args[0]), shape_of(call)
        if (
            len(before) != len(after)
            or len(after) < 4
            or before[-3] != 1
            or prod(after[:-2]) != self.batch * self.heads
        ):
            return expr, 1
        same = before[:-3] == after[:-3] and before[-2:] == after[-2:] and prod(after[:-4]) == self.batch
        return (call.args[0], after[-3]) if same else (expr, 1)

    def build(self, last: Call, done: Mapping[Expr, Expr]) -> Expr:
        """Return the call that stands for the match; `done` has what stands for expressions before it."""
        match, first = self.match, self.match.first
        q, k, v = (done[source] for source in self.sources)
        parts = [
            self._stack(q, self.heads, self.queries, self.size, swapped=first.attrs["transpose_a"]),
            self._stack(k, self.groups, self.keys, self.size, swapped=self.turned),
            self._stack(v, self.groups, self.keys, self.value_size, swapped=last.attrs["transpose_b"]),
        ]
        attrs: dict[str, object] = {"softcap": match.cap, "fill": match.fill, "scale": self.scale}
        attrs |= {"zero_rows": False, "zero_nan": match.zero_nan}
        extras: list[tuple[str, Expr]] = []
        for part in match.parts:
            window = self._window(part)
            if window is not None and "offset" not in attrs:
                attrs |= window
                if part.kind == "mask":
                    attrs["fill"] = None
                continue
            tensor = self._broadcast(done[part.tensor], part.view)
            if part.negated:
                tensor = _inverted(tensor)
            extras.append((part.kind, tensor))
        attrs["extras"] = tuple(kind for kind, _ in extras)
        span = joined_span(*(node for node in reversed(match.inner) if isinstance(node, Call)), last)
        args = [*parts, *(tensor for _, tensor in extras)]
        found = ir.call("nn.attention", args, attrs, span=replace(span, tensor=None))
        return reshaped(found, shape_of(last), span)

    def _stack(self, expr: Expr, heads: int, count: int, size: int, *, swapped: bool) -> Expr:
        """Return a tensor of matrices by (batch, heads, positions, elements)."""
        shape = (self.batch, heads, count, size)
        source = storage_owner(expr)
        if swapped:
            wanted = (size, count)
            expr = source if shape_of(source)[-2:] == wanted else reshaped(source, (self.batch * heads, *wanted))
            rank = len(shape_of(expr))
            turned = match_call(expr, "transpose")
            axes = (*range(rank - 2), rank - 1, rank - 2)
            if turned is not None:  # which exporters write for the product: then this undoes it
                before = turned.attrs["axes"] or tuple(reversed(range(rank)))
                expr = transposed(turned.args[0], [before[axis] % rank for axis in axes])
            else:
                expr = transposed(expr, axes)
            source = storage_owner(expr)
        return reshaped(source, shape)

    def _placed(self, part: _MaskPart) -> bool:
        """Tell whether a mask fits (batch, heads, queries, keys)."""
        if part.view[-2:] != (self.queries, self.keys):
            return False
        if len(shape_of(part.tensor)) > len(part.view):
            return False
        return self._grouping(part.view[:-2]) is not None or all(extent == 1 for extent in _aligned(part)[:-2])

    def _grouping(self, leading: tuple[int, ...]) -> int | None:
        """Return how many leading dimensions make up the batch, if the others make up the heads."""
        for split in range(len(leading), -1, -1):
            if prod(leading[:split]) == self.batch and prod(leading[split:]) == self.heads:
                return split
        return None

    def _broadcast(self, tensor: Expr, view: tuple[int, ...]) -> Expr:
        """Return a mask with the dimensions (batch, heads, queries, keys), of which each may be one."""
        shape = (1,) * (len(view) - len(shape_of(tensor))) + shape_of(tensor)
        split = self._grouping(view[:-2])
        groups = [range(0)] * 2 if split is None else [range(split), range(split, len(view) - 2)]
        wanted, target = list(shape), []
        for group in groups:
            if any(shape[axis] != 1 for axis in group):
                for axis in group:
                    wanted[axis] = view[axis]
            target.append(prod(wanted[axis] for axis in group))
        tensor = reshaped(tensor, shape)
        if tuple(wanted) != shape:
            tensor = ir.call("broadcast_to", [tensor], shape=tuple(wanted))
        return reshaped(tensor, (*target, *shape[-2:]))

    def _window(self, part: _MaskPart) -> dict[str, object] | None:
        """Return the attributes that say the same as a constant mask of a window, None if it is none."""
        value = value_of(part.tensor)
        if value is None or value.shape[-2:] != (self.queries, self.keys) or value.size != self.queries * self.keys:
            return None
        value = value.reshape(self.queries, self.keys)
        if part.kind == "bias":
            hidden = value <= LOWEST
            if not np.all(value[~hidden] == 0):
                return None
            return window_of(~hidden, needs_keys=bool(np.any(np.isfinite(value[hidden]))))
        fill = self.match.fill
        if fill is not None and fill > LOWEST:
            return None
        return window_of(~value if part.negated else value, needs_keys=fill not in (None, -inf))


def window_of(seen: Array, *, needs_keys: bool) -> dict[str, object] | None:
    """Return `offset`, `left` and `right` of a mask of (queries, keys), None if it is no window.

    `needs_keys`: a query that sees no key is none of a window.
    """
    queries, keys = seen.shape
    first, last = np.flatnonzero(seen[0]), np.flatnonzero(seen[-1])
    if needs_keys and not seen.any(axis=1).all():
        return None
    end = int(first[-1]) if first.size else -1  # the last key of the first query, behind which each sees one more
    begin = int(last[0]) - (queries - 1) if last.size else 0
    at = np.arange(queries)[:, None]
    positions = np.arange(keys)
    for right in (True, False):
        for left in (False, True):
            wanted = ((positions <= at + end) | (not right)) & ((positions >= at + begin) | (not left))
            if (right or left) and (not (right and left) or end >= begin) and np.array_equal(wanted, seen):
                offset = end if right else begin
                return {"offset": offset, "right": 0 if right else -1, "left": offset - begin if left else -1}
    return None


def _aligned(part: _MaskPart) -> tuple[int, ...]:
    shape = shape_of(part.tensor)
    return (1,) * (len(part.view) - len(shape)) + shape


def _inverted(mask: Expr) -> Expr:
    if isinstance(mask, Constant):
        return Constant(~mask.data, mask.name, mask.span)
    return ir.call("logical_not", [mask], span=ir.Span(mask.span.nodes))

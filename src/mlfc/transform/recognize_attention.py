"""Recognize attention that exporters expand into products, scales, masks and a softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isnan, prod

import numpy as np

from mlfc.kernels.attention import FARTHEST
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, IRModule
from mlfc.relay.op import Operator
from mlfc.relay.visitor import children, post_order, users, with_children
from mlfc.support.dims import bounds, is_static
from mlfc.transform import matching
from mlfc.transform.matching import dtype_of, is_moderate, match_call, reshaped, scalar_of, shape_of, storage_owner

LOWEST = -1e9
"""Largest number that hides a score it is added to as completely as minus infinity does."""


@dataclass(frozen=True)
class RecognizeAttention:
    """Recognize ``softmax(scale * q k^T + masks) v`` of float32, unless something else reads the scores.

    Scales may multiply queries, keys or scores; masks may be added or selected. Keys and values that are repeated for
    several heads are read once. Rounding-sensitive models are not changed.
    """

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module with `nn.attention` in place of these expressions."""
        nodes = post_order(module.main.body)
        calls = [node for node in nodes if isinstance(node, Call) and isinstance(node.op, Operator)]
        if any(isinstance(call.op, Operator) and call.op.rounding_sensitive for call in calls):
            return module
        products = [call for call in calls if match_call(call, "nn.batch_matmul") and dtype_of(call) == "float32"]
        candidates = [_AttentionMatch(call) for call in products] if len(products) > 1 else []
        matches = [candidate for candidate in candidates if candidate.matches()]
        if not matches:
            return module
        readers = users(module.main.body)
        # values between the products must not have other readers
        found = {
            match.last: match
            for match in matches
            if {*match.inner, match.last}.issuperset(reader for node in match.inner for reader in readers[node])
        }
        done: dict[Expr, Expr] = {}
        for node in nodes:
            done[node] = with_children(node, (done[child] for child in children(node)))
            if isinstance(node, Call) and node in found:
                done[node] = found[node].build(done)
        return module.with_body(done[module.main.body])


@dataclass(frozen=True, eq=False)
class _MaskPart:
    """A mask or bias tensor, and the shape of the scores that it is broadcast to."""

    kind: str  # mask or bias
    tensor: Expr
    view: tuple[int, ...]  # the shape of the scores at that point
    negated: bool = False  # whether the mask is true for hidden keys


class _AttentionMatch:
    """A candidate, matched from its second product `last` back to its first: sizes, unscaled tensors, masks."""

    first: Call  # the first product

    def __init__(self, last: Call) -> None:
        self.last = last
        self.scale, self.cap, self.zero_nan = 1.0, 0.0, False
        self.fill: float | None = None  # of masked scores, None for minus infinity
        self.parts: list[_MaskPart] = []
        self.inner: list[Expr] = []  # all expressions between the products, and the first product

    def matches(self) -> bool:
        """Return whether the candidate is an attention, so that `build` may be called."""
        softmax = None if self.last.attrs["transpose_a"] else self._softmax(self.last.args[0])
        if softmax is None or len(shape_of(softmax)) < 3 or not self._scores(softmax.args[0], 16):
            return False
        return self._fits(shape_of(softmax)[:-2])

    def _through_views(self, expr: Expr) -> Expr:
        """Return the source of a chain of views; the views are added to `inner`."""
        owner = storage_owner(expr)
        while expr is not owner:
            self.inner.append(expr)
            expr = expr.args[0]  # type: ignore[union-attr]  # a view is a call
        return owner

    def _softmax(self, expr: Expr) -> Call | None:
        """Return the softmax over keys that `expr` is, with or without a replacement of NaN by zero; else None."""
        expr = self._through_views(expr)
        chosen = match_call(expr, "where")
        if chosen is not None:
            test = match_call(chosen.args[0], "isnan")
            if test is None or test.args[0] is not chosen.args[2] or scalar_of(chosen.args[1]) != 0.0:
                return None
            self.inner += [chosen, test]
            self.zero_nan = True
            expr = chosen.args[2]
        found = match_call(expr, "nn.softmax", "nn.fast_softmax")
        if found is None or found.attrs["axis"] % len(shape_of(found)) != len(shape_of(found)) - 1:
            return None
        self.inner.append(found)
        return found

    def _scores(self, expr: Expr, depth: int) -> bool:
        """Match from the input of the softmax back to the first product; return whether it matches."""
        expr = self._through_views(expr)
        if not isinstance(expr, Call) or depth == 0:
            return False
        self.inner.append(expr)
        if match_call(expr, "add"):
            return self._either(expr, depth)
        if match_call(expr, "where"):
            return self._selected(expr, depth)
        return self._scaled(expr)

    def _either(self, call: Call, depth: int) -> bool:
        """Match the operand of an addition that leads to the product; the other one is a bias."""
        for scores, bias in (call.args, call.args[::-1]):
            if shape_of(scores) != shape_of(call) or dtype_of(bias) != dtype_of(call):
                continue
            parts, inner, numbers = list(self.parts), list(self.inner), (self.scale, self.cap, self.fill)
            self.parts.append(_MaskPart("bias", bias, shape_of(call)))
            if self._scores(scores, depth - 1) and self.fill in (numbers[2], -inf):  # else it changes what is hidden
                return True
            self.parts, self.inner, (self.scale, self.cap, self.fill) = parts, inner, numbers
        return False

    def _selected(self, call: Call, depth: int) -> bool:
        """Match the operand of a selection that leads to the product; the other is the fill of hidden scores."""
        condition, then, otherwise = call.args
        for scores, other, negated in ((then, otherwise, False), (otherwise, then, True)):
            number = scalar_of(other)
            if number is None or isnan(number) or shape_of(scores) != shape_of(call):
                continue
            if any(part.kind == "mask" for part in self.parts):
                continue
            self.fill = number
            self.parts.append(_MaskPart("mask", condition, shape_of(call), negated))
            return self._scores(scores, depth - 1)
        return False

    def _scaled(self, expr: Expr) -> bool:
        """Match the factors of the scores, and a soft cap, back to the product of queries and keys."""
        while match_call(expr, "nn.batch_matmul") is None:
            factored = _factored(expr)
            tanh = match_call(expr, "tanh")
            if factored is not None:
                inner, factor = factored
                bent = match_call(inner, "tanh")
                if bent is not None and self.scale == 1.0 and not self.cap and factor > 0:
                    self.cap = factor
                elif bent is not None:
                    return False
                self.scale *= factor
            elif tanh is not None and self.cap:
                inner = tanh.args[0]
            else:
                return False
            expr = self._through_views(inner)
            self.inner.append(expr)
        assert isinstance(expr, Call)
        self.first = expr
        return True

    def _fits(self, leading: tuple[int, ...]) -> bool:
        """Return whether the sizes match an attention, given the leading dimensions of its softmax; store them."""
        self.heads, self.batch = leading[-1], prod(leading[:-1])
        first = self.first
        self.queries, self.keys = shape_of(first)[1:]
        self.size, self.value_size = (
            shape_of(first.args[0])[1 if first.attrs["transpose_a"] else 2],
            shape_of(self.last)[2],
        )
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
        if not all(self._placed(part) for part in self.parts):
            return False
        self.groups, self.sources = self.heads // repeats, (q, k, v)
        return True

    def _before(self, expr: Expr) -> Expr:
        """Return an operand of the first product without its scalar factors, which are multiplied into `scale`."""
        while (factored := _factored(storage_owner(expr))) is not None:
            self.scale *= factored[1]
            expr = factored[0]
        return expr

    def _unturned(self, expr: Expr, swapped: bool) -> tuple[Expr, bool]:
        """Return the keys before a transpose of each matrix, and whether these are (elements, positions)."""
        turned = match_call(storage_owner(expr), "transpose")
        if turned is None or shape_of(turned)[-2:] not in ((self.keys, self.size), (self.size, self.keys)):
            return expr, swapped
        rank = len(shape_of(turned))
        only = matching.transpose_axes(turned) == (*range(rank - 2), rank - 1, rank - 2)
        return (turned.args[0], not swapped) if only else (expr, swapped)

    def _unrepeated(self, expr: Expr) -> tuple[Expr, int]:
        """Return keys or values before their repetition for the heads that share them, and the repeat count."""
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

    def build(self, done: Mapping[Expr, Expr]) -> Expr:
        """Return the `nn.attention` call of the match; `done` maps earlier expressions to their rewritten forms."""
        first, last = self.first, self.last
        q, k, v = (done[source] for source in self.sources)
        parts = [
            self._stack(q, self.heads, self.queries, self.size, swapped=first.attrs["transpose_a"]),
            self._stack(k, self.groups, self.keys, self.size, swapped=self.turned),
            self._stack(v, self.groups, self.keys, self.value_size, swapped=last.attrs["transpose_b"]),
        ]
        attrs: dict[str, object] = {"softcap": self.cap, "fill": self.fill, "scale": self.scale}
        attrs |= {"zero_rows": False, "zero_nan": self.zero_nan}
        extras: list[tuple[str, Expr]] = []
        for part in self.parts:
            window = self._window(part)
            if window is not None and "offset" not in attrs:
                attrs |= window
                if part.kind == "mask":
                    attrs["fill"] = None
                continue
            tensor = self._broadcast(done[part.tensor], part.view)
            if part.negated and isinstance(tensor, Constant):
                tensor = Constant(~tensor.data, tensor.name, tensor.span)
            elif part.negated:
                tensor = ir.call("logical_not", [tensor], span=ir.Span(tensor.span.nodes))
            extras.append((part.kind, tensor))
        attrs["extras"] = tuple(kind for kind, _ in extras)
        span = matching.joined_span(*(node for node in reversed(self.inner) if isinstance(node, Call)), last)
        args = [*parts, *(tensor for _, tensor in extras)]
        found = ir.call("nn.attention", args, attrs, span=replace(span, tensor=None))
        return reshaped(found, shape_of(last), span)

    def _stack(self, expr: Expr, heads: int, count: int, size: int, *, swapped: bool) -> Expr:
        """Return a tensor of matrices in the shape (batch, heads, positions, elements)."""
        shape = (self.batch, heads, count, size)
        source = storage_owner(expr)
        if swapped:
            wanted = (size, count)
            expr = source if shape_of(source)[-2:] == wanted else reshaped(source, (self.batch * heads, *wanted))
            rank = len(shape_of(expr))
            turned = match_call(expr, "transpose")
            axes = (*range(rank - 2), rank - 1, rank - 2)
            if turned is not None:  # exporters add it for the product: undo it
                before = matching.transpose_axes(turned)
                expr = matching.transposed(turned.args[0], [before[axis] for axis in axes])
            else:
                expr = matching.transposed(expr, axes)
            source = storage_owner(expr)
        return reshaped(source, shape)

    def _placed(self, part: _MaskPart) -> bool:
        """Return whether a mask broadcasts to (batch, heads, queries, keys)."""
        if part.view[-2:] != (self.queries, self.keys):
            return False
        if len(shape_of(part.tensor)) > len(part.view):
            return False
        own = shape_of(part.tensor)  # aligned to the view from the right
        is_plain = all(extent == 1 for extent in own[:-2])
        return self._grouping(part.view[:-2]) is not None or is_plain

    def _grouping(self, leading: tuple[int, ...]) -> int | None:
        """Return how many leading dimensions form the batch, if the others form the heads; else None."""
        for split in range(len(leading), -1, -1):
            if prod(leading[:split]) == self.batch and prod(leading[split:]) == self.heads:
                return split
        return None

    def _broadcast(self, tensor: Expr, view: tuple[int, ...]) -> Expr:
        """Return a mask in the shape (batch, heads, queries, keys), in which each dimension may be 1."""
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
        """Return the window attributes equivalent to a constant mask; None if the mask is not a window."""
        value = matching.value_of(part.tensor)
        if value is None or value.shape[-2:] != (self.queries, self.keys) or value.size != self.queries * self.keys:
            return None
        value = value.reshape(self.queries, self.keys)
        if part.kind == "bias":
            hidden = value <= LOWEST
            if not np.all(value[~hidden] == 0):
                return None
            return window_of(~hidden, needs_keys=bool(np.any(np.isfinite(value[hidden]))))
        fill = self.fill
        if fill is not None and fill > LOWEST:
            return None
        return window_of(~value if part.negated else value, needs_keys=fill not in (None, -inf))


def _factored(expr: Expr) -> tuple[Expr, float] | None:
    """Return the tensor and the scalar factor of a product or quotient; None for other expressions."""
    call = match_call(expr, "multiply", "divide")
    if call is None:
        return None
    by_number = match_call(call, "divide")
    for inner, other in (call.args, call.args[::-1])[: 1 if by_number else 2]:
        number = scalar_of(other)
        if number and shape_of(inner) == shape_of(call) and is_moderate(np.asarray(number)).all():
            return inner, 1 / number if by_number else number
    return None


def window_of(seen: matching.Array, *, needs_keys: bool) -> dict[str, object] | None:
    """Return `offset`, `left` and `right` of a (queries, keys) mask; None if it is not a window.

    With `needs_keys`, each query must see at least one key.
    """
    queries, keys = seen.shape
    first, last = np.flatnonzero(seen[0]), np.flatnonzero(seen[-1])
    if needs_keys and not seen.any(axis=1).all():
        return None
    end = int(first[-1]) if first.size else -1  # the last key that the first query sees; each later query sees one more
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

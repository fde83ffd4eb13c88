"""Evaluate expressions of constants at compile time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from mlfc.errors import UnsupportedError
from mlfc.ops.evaluate import evaluate
from mlfc.relay.ir import Call, Constant, Expr, IRModule, TensorType, has_trait, operator, tensor_type
from mlfc.relay.op import POINTWISE, Operator, Trait
from mlfc.relay.visitor import rewrite, users, with_children
from mlfc.transform.matching import flat_args


@dataclass(frozen=True)
class FoldConstant:
    """Replace calls whose arguments are all constants by their value.

    A large mask that compares row positions with column positions stays a comparison if its only reader is pointwise:
    the reader computes it element by element in its own loop.
    """

    max_growth: int = 4  # largest ratio of a result's bytes to its arguments' that is still stored as data
    always_bytes: int = 1 << 20  # results up to this size are stored regardless of the ratio
    mask_bytes: int = 1 << 10  # masks up to this size are stored regardless of the ratio

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module with constants in place of these calls."""
        folded: dict[Expr, Call] = {}
        body = rewrite(module.main.body, partial(self._visit, folded))
        # position masks stay comparisons if they fuse with their reader
        masks: dict[Expr, Expr] = {}
        readers = users(body) if folded else {}
        for constant in folded:
            mask, found = self._comparison(constant, folded), readers.get(constant, [])
            reader = operator(found[0]) if len(found) == 1 else None
            if mask is not None and reader is not None and reader.kind in POINTWISE:
                masks[constant] = mask
        return module.with_body(rewrite(body, lambda node: masks.get(node, node)) if masks else body)

    def _comparison(self, constant: Expr, folded: Mapping[Expr, Call]) -> Expr | None:
        """Return the comparison that produced a large mask, or the logic of several comparisons; else None."""
        call = folded.get(constant)
        if call is None or tensor_type(constant).nbytes <= self.mask_bytes:
            return None
        if has_trait(call, Trait.LOGIC):
            inner = [self._comparison(arg, folded) for arg in call.args]
            parts = [part for part in inner if part is not None]
            return with_children(call, parts) if len(parts) == len(inner) else None
        if not has_trait(call, Trait.COMPARISON):
            return None
        given = sum(tensor_type(arg).size for arg in call.args)
        return call if tensor_type(constant).size > self.max_growth * given else None

    def _visit(self, folded: dict[Expr, Call], node: Expr) -> Expr:
        if not isinstance(node, Call) or not isinstance(node.op, Operator) or not isinstance(node.type, TensorType):
            return node
        if not node.type.is_static:
            return node
        args = flat_args(node)
        constants = [arg for arg in args if isinstance(arg, Constant)]
        given = sum(constant.type.nbytes for constant in constants)
        if len(constants) < len(args) or node.type.nbytes > max(self.always_bytes, self.max_growth * given):
            return node
        try:
            value = evaluate(node)
        except UnsupportedError:  # a layout that a later pass converts; the call is folded after that
            return node
        if value is None:
            return node
        name = node.span.tensor or next((constant.name for constant in constants if constant.name), None)
        constant = Constant(value, name, node.span)
        folded[constant] = node
        return constant

"""What depends on constants alone is computed at compile time."""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.errors import UnsupportedError
from mlfc.ops.evaluate import evaluate
from mlfc.relay.ir import Call, Constant, Expr, IRModule, TensorType
from mlfc.relay.op import Operator
from mlfc.relay.visitor import rewrite
from mlfc.transform.matching import flat_args


@dataclass(frozen=True)
class FoldConstant:
    """Replace calls whose arguments are all constants by their value."""

    max_growth: int = 4  # largest ratio of a result's bytes to its arguments' that is still stored as data
    always_bytes: int = 1 << 20  # results up to this size are stored whatever their ratio is

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module with those calls replaced."""
        return module.with_body(rewrite(module.main.body, self._visit))

    def _visit(self, node: Expr) -> Expr:
        if not isinstance(node, Call) or not isinstance(node.op, Operator) or not isinstance(node.type, TensorType):
            return node
        args = flat_args(node)
        constants = [arg for arg in args if isinstance(arg, Constant)]
        given = sum(constant.type.nbytes for constant in constants)
        if len(constants) < len(args) or node.type.nbytes > max(self.always_bytes, self.max_growth * given):
            return node
        try:
            value = evaluate(node)
        except UnsupportedError:  # a layout that a later pass converts, which then is folded
            return node
        if value is None:
            return node
        name = node.span.tensor or next((constant.name for constant in constants if constant.name), None)
        return Constant(value, name, node.span)

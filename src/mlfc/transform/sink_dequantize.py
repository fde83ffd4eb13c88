"""Duplicate widening operators for each reader, so that the narrow tensor stays in memory."""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.relay.ir import Call, Expr, IRModule, Tuple, tensor_type
from mlfc.relay.op import Kind, Operator
from mlfc.relay.visitor import Rewriter, children, with_children, with_span
from mlfc.support import dtypes
from mlfc.transform.matching import match_call


@dataclass(frozen=True)
class SinkDequantize:
    """Duplicate a ``qnn.dequantize`` or widening ``cast`` for each reader, into which fusion then inlines it.

    Otherwise several readers would share the wide tensor in memory. Operators that always read their input from memory
    share one copy.
    """

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module with these operators duplicated."""
        rewriter = Rewriter(lambda node: self._visit(rewriter, node))
        return module.with_body(rewriter(module.main.body))

    def _visit(self, rewriter: Rewriter, node: Expr) -> Expr:
        fuses = isinstance(node, Call) and isinstance(node.op, Operator) and node.op.kind not in _IN_MEMORY
        if not fuses:
            return node
        return with_children(node, [_own(rewriter, arg) for arg in children(node)])


_IN_MEMORY = (Kind.ANCHOR, Kind.VIEW, Kind.OPAQUE, Kind.LIST, Kind.EXTERNAL)


def _own(rewriter: Rewriter, arg: Expr) -> Expr:
    if isinstance(arg, Tuple):
        return with_children(arg, [_own(rewriter, item) for item in arg.fields])
    call = match_call(arg, "qnn.dequantize", "cast")
    if call is None or rewriter.reads(call) < 2:
        return arg
    if dtypes.nbytes(tensor_type(call).dtype) <= dtypes.nbytes(tensor_type(call.args[0]).dtype):  # of as many elements
        return arg
    return with_span(call, call.span)

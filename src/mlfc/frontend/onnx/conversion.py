"""Running the importer of one node, and checking what it made of the node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from mlfc.errors import MlfcError, ModelError, TypeCheckError, UnsupportedError
from mlfc.frontend.dynamic import Dynamic
from mlfc.frontend.onnx import older, table
from mlfc.frontend.onnx.declared_shapes import declared_result
from mlfc.frontend.onnx.node import Node, UnknownValueError
from mlfc.frontend.onnx.remedies import Advisor
from mlfc.frontend.onnx.runtime_shapes import late_result
from mlfc.relay.ir import Expr
from mlfc.support.dims import Extent, Symbol, UndecidedError, bounds, substituted

# What hostile attribute values can make numpy, Python or an importer stumble over.
MALFORMED = (ArithmeticError, LookupError, TypeError, ValueError, MemoryError)


def _result_of(node: Node, found: table.Importer, advisor: Advisor) -> Expr | Sequence[Expr]:
    if node.dynamic is not None:
        return _open_result(node, found, node.dynamic, advisor)
    try:
        return found.convert(node)
    except UnknownValueError as refusal:
        error = refusal
        try:
            result = declared_result(node, found.convert)
        except UnknownValueError as other:
            result, error = None, other
        if result is None:
            raise advisor.advised(node, lambda node: _listed(found.convert(node)), error) from error
        return result


def _open_result(node: Node, found: table.Importer, dynamic: Dynamic, advisor: Advisor) -> Expr | Sequence[Expr]:
    """Import a node whose shapes may depend on the run: on extents, or on values that come late."""
    try:
        result = found.convert(node)
        for expr in _listed(result):
            dynamic.exclude_empty_operands(expr)
        return result
    except (UnknownValueError, UndecidedError, TypeCheckError) as refusal:
        if isinstance(refusal, TypeCheckError) and not isinstance(refusal.__cause__, UndecidedError):
            raise
        undecided = refusal if isinstance(refusal, UndecidedError) else refusal.__cause__
        if isinstance(undecided, UndecidedError) and undecided.extent is not None:
            dynamic.exclude_empty([undecided.extent], partial(_is_decided, undecided.extent))
        computed = late_result(node, found.convert, refusal)
        if computed is not None:
            return computed
        if isinstance(refusal, UnknownValueError):
            raise advisor.advised(node, lambda node: _listed(found.convert(node)), refusal) from refusal
        raise UnsupportedError(
            f"{node.operator} cannot be compiled for all extents: {refusal}",
            place=node.name,
            next_step="Give the inputs fixed shapes, or ranges of extents that decide it: --shape x=n:2..512,...",
        ) from refusal


def _is_decided(extent: Extent, values: Mapping[Symbol, Extent]) -> bool:
    """Tell whether other bounds of symbols decide how an extent compares with 0."""
    low, high = bounds(substituted(extent, values))
    return low >= 0 or high < 0


def _listed(result: Expr | Sequence[Expr]) -> list[Expr]:
    return [result] if not isinstance(result, Sequence) else list(result)


def converted(node: Node, found: table.Importer, advisor: Advisor, *, as_opset_7: bool) -> list[Expr]:
    """Run the importer of a node; refuse attributes that it did not look at."""
    try:
        if as_opset_7:
            node = older.as_opset_7(node)
        result = _result_of(node, found, advisor)
    except MlfcError as error:
        if error.place != node.name:
            raise
        error.place = f"node '{node.name}'"
        raise
    except MALFORMED as error:
        raise ModelError(f"{node.operator} is malformed: {error}", place=f"node '{node.name}'") from error
    results = _listed(result)
    unread = sorted(set(node.attributes) - node.read_attributes - found.ignores)
    if unread:
        raise UnsupportedError(
            f"{node.operator} (opset {node.opset}) with the attribute '{unread[0]}' is not supported",
            place=f"node '{node.name}'",
        )
    missing = [tensor for tensor in node.outputs[len(results) :] if tensor]
    if missing:
        raise UnsupportedError(
            f"{node.operator} (opset {node.opset}) with {len(node.outputs)} outputs is not supported",
            place=f"node '{node.name}'",
            next_step=f"Only the first {len(results)} of its outputs can be used",
        )
    return results

"""Import of one node: checks before and after its importer runs, and naming of its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, reduce

from onnx import TensorProto, defs

from mlfc.errors import MlfcError, ModelError, TypeCheckError, UnsupportedError
from mlfc.frontend.onnx import older, table
from mlfc.frontend.onnx.node import Node, UnknownValueError, shape_of
from mlfc.frontend.onnx.remedies import Advisor
from mlfc.frontend.onnx.shape import extent_from_end, reshaped_at_run, stretched
from mlfc.frontend.onnx.tensors import DTYPES
from mlfc.relay.ir import Call, Constant, Expr, Span, TensorType, Tuple, Var
from mlfc.relay.visitor import children, with_children
from mlfc.support.dims import UndecidedError, maximum

# exceptions that malformed attribute values can raise in numpy, Python or an importer
MALFORMED = (ArithmeticError, LookupError, TypeError, ValueError, MemoryError)
_NEWEST = {"": defs.onnx_opset_version(), table.ML: defs.onnx_ml_opset_version()}
_OF_TEXT = {f"tensor({TensorProto.DataType.Name(code).lower()})": dtype for code, dtype in DTYPES.items()}
_BROADCASTING = {
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor",
}  # fmt: skip


@cache
def _schema(domain: str, operator: str, opset: int) -> defs.OpSchema | None:
    try:
        return defs.get_schema(operator, opset, domain)
    except defs.SchemaError:
        return None


def check_schema(node: Node, domain: str, operator: str) -> None:
    """Raise ModelError for an attribute that the node's opset lacks, or a dtype that no opset of its operator allows.

    Operators of other domains, and opsets that the installed onnx does not define, are not checked.
    """
    newest = _NEWEST.get(domain, 0)
    schema, latest = (_schema(domain, operator, opset) for opset in (node.opset, newest))
    if schema is None or latest is None:
        return
    unknown = sorted(set(node.attributes) - set(schema.attributes)) if node.opset <= newest else []
    if unknown:
        node.wrong(f"opset {node.opset} does not define the attribute '{unknown[0]}'")
    for index, value in enumerate(node.inputs if latest.inputs else ()):
        formals = [each.inputs[min(index, len(each.inputs) - 1)] for each in (latest, schema) if each.inputs]
        dtypes = sorted({_OF_TEXT[text] for each in formals for text in each.types if text in _OF_TEXT})
        if value is not None and isinstance(value.type, TensorType) and dtypes and value.type.dtype not in dtypes:
            node.wrong(f"input '{formals[0].name}' has the dtype {value.type.dtype}; expected {' or '.join(dtypes)}")


def converted(node: Node, found: table.Importer, advisor: Advisor, *, as_opset_7: bool) -> list[Expr]:
    """Run the importer of a node; refuse attributes that it did not read."""
    place = f"node '{node.name}'"
    try:
        if as_opset_7:
            node = older.as_opset_7(node)
        results = _results_of(node, found, advisor)
    except MlfcError as error:
        if error.place == node.name:
            error.place = place
        raise
    except MALFORMED as error:
        raise ModelError(f"{node.operator} is malformed: {error}", place=place) from error
    unread = sorted(set(node.attributes) - node.read_attributes - found.ignores)
    if unread:
        raise UnsupportedError(
            f"{node.operator} (opset {node.opset}) with the attribute '{unread[0]}' is not supported", place=place
        )
    if any(node.outputs[len(results) :]):
        cause = f"{node.operator} (opset {node.opset}) with {len(node.outputs)} outputs is not supported"
        step = f"Only the first {len(results)} of its outputs can be used"
        raise UnsupportedError(cause, place=place, next_step=step)
    return results


def _results_of(node: Node, found: table.Importer, advisor: Advisor) -> list[Expr]:
    def results(node: Node) -> list[Expr]:
        result = found.convert(node)
        return list(result) if isinstance(result, Sequence) else [result]

    try:
        converted = results(node)
        if node.dynamic is not None:
            for expr in converted:
                node.dynamic.exclude_empty_operands(expr)
        return converted
    except UnknownValueError as error:
        raise advisor.advised(node, results, error) from error
    except (UndecidedError, TypeCheckError) as refusal:
        node.undecided(refusal)
        cause = f"{node.operator} cannot be compiled for all extents: {refusal}"
        step = "Give the inputs static shapes, or bounds that decide it: --shape x=n:2..512,..."
        raise UnsupportedError(cause, place=node.name, next_step=step) from refusal


def checked_at_run(node: Node) -> Node | None:
    """Return a Reshape or broadcasting node with shape checks at run time; None for other nodes.

    Operands may then differ in dimension sizes: at run time, a size of 1 broadcasts, and other mismatches raise an
    error.
    """
    if node.dynamic is not None and node.operator == "Reshape":
        return reshaped_at_run(node)
    found: list[Expr] = [
        operand for operand in node.inputs if operand is not None and isinstance(operand.type, TensorType)
    ]
    if node.dynamic is None or node.operator not in _BROADCASTING or len(found) < len(node.inputs):
        return None
    rank = max(len(shape_of(operand)) for operand in found)
    for axis in range(-rank, 0):
        extents = [extent_from_end(operand, axis) for operand in found]
        others = list(dict.fromkeys(extent for extent in extents if extent != 1))
        if len(others) > 1:
            wide = next((extent for extent in others if isinstance(extent, int)), None)
            wide = reduce(maximum, others) if wide is None else wide
            found = [stretched(node, operand, axis, wide) for operand in found]
    return replace(node, inputs=[*found])


def named_results(results: Sequence[Expr], tensors: Sequence[str], node: str) -> list[Expr]:
    """Return the results of a node with their tensor names.

    Naming an expression replaces it, so common subexpressions of several results are replaced in all of them; otherwise
    they would be computed twice.
    """
    titles: dict[Expr, str] = {}
    for tensor, result in zip(tensors, results, strict=False):
        if tensor:
            titles.setdefault(result, tensor)
    done: dict[Expr, Expr] = {}
    for result in results:
        for expr in _own(result, done, node):
            seen = expr
            if len(results) > 1 and isinstance(expr, (Call, Tuple)):
                seen = with_children(expr, (done.get(child, child) for child in children(expr)))
            done[expr] = _named(seen, titles[expr], node) if expr in titles else seen
    return [done[result] for result in results]


def _own(result: Expr, done: dict[Expr, Expr], node: str) -> list[Expr]:
    """Return the expressions that the node created for a result, in post-order."""
    order: list[Expr] = []
    seen = {result, *done}
    stack = [] if result in done else [(result, iter(children(result)))]
    while stack:
        expr, rest = stack[-1]
        for child in rest:
            is_own = isinstance(child, (Call, Tuple)) and child.span.nodes == (node,) and child.span.tensor is None
            if is_own and child not in seen:
                seen.add(child)
                stack.append((child, iter(children(child))))
                break
        else:
            order.append(expr)
            stack.pop()
    return order


def _named(result: Expr, tensor: str, node: str) -> Expr:
    """Return `result` with a tensor name, unless it already has one."""
    if isinstance(result, Constant):
        return result if result.name is not None else Constant(result.data, tensor, Span((node,), tensor))
    if isinstance(result, (Var, Tuple)) or result.span.tensor is not None:
        return result
    return replace(result, span=Span(result.span.nodes or (node,), tensor))

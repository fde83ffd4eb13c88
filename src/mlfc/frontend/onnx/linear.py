"""Matrix products: MatMul, Gemm, Einsum."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from math import prod

import numpy as np

from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.frontend.onnx.table import MICROSOFT, importer
from mlfc.ops.rules import broadcast_shape
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr
from mlfc.support import dtypes
from mlfc.support.dims import is_static


@importer("MatMul")
def _matmul(node: Node) -> Expr:
    return matmul(node, node.input(0), node.input(1))


def matmul(node: Node, a: Expr, b: Expr) -> Expr:
    """Return the product by numpy's rules: vectors are promoted, leading dimensions broadcast."""
    if not shape_of(a) or not shape_of(b):
        node.wrong("a scalar is not a matrix")
    left = node.reshape(a, (1, *shape_of(a))) if len(shape_of(a)) == 1 else a
    right = node.reshape(b, (*shape_of(b), 1)) if len(shape_of(b)) == 1 else b
    if not node.has_shape(shape_of(left)[-1:], shape_of(right)[-2:-1]):
        node.wrong(f"shapes {shape_of(a)} and {shape_of(b)} do not fit together")
    if len(shape_of(right)) == 2:
        weight = _transposed_weight(node, right)
        result = node.call("nn.dense", left, weight, units=shape_of(weight)[0])
    else:
        *stacks, leading = batches(node, left, right)
        result = node.call("nn.batch_matmul", *stacks, transpose_a=False, transpose_b=False)
        result = node.reshape(result, (*leading, *shape_of(result)[1:]))
    shape = list(shape_of(result))
    if len(shape_of(b)) == 1:
        del shape[-1]
    if len(shape_of(a)) == 1:
        del shape[-1 if len(shape_of(b)) == 1 else -2]
    return node.reshape(result, shape)


def _transposed_weight(node: Node, weight: Expr) -> Expr:
    """Return a transposed matrix; of dequantized weights, transpose the integers, to keep the pattern recognizable."""
    if ir.op_name(weight) == "qnn.dequantize" and isinstance(weight, Call) and isinstance(weight.args[0], Constant):
        integers = weight.args[0]
        turned = Constant(integers.data.T, integers.name, integers.span)
        attrs = {**weight.attrs, "axis": 1 - weight.attrs["axis"] % 2}
        return ir.call("qnn.dequantize", [turned, *weight.args[1:]], attrs, span=ir.Span(weight.span.nodes))
    return node.transpose(weight, (1, 0))


def batches(node: Node, a: Expr, b: Expr) -> tuple[Expr, Expr, tuple[int, ...]]:
    """Return two stacks of matrices with the leading dimensions flattened into one, and these dimensions.

    A stack of one matrix is not broadcast: it is used with every matrix of the other.
    """
    around = shape_of(a)[:-2], shape_of(b)[:-2]
    is_known = is_static((*around[0], *around[1]))
    try:
        leading = np.broadcast_shapes(*around) if is_known else broadcast_shape("MatMul", *around)
    except ValueError:
        node.wrong(f"shapes {shape_of(a)} and {shape_of(b)} do not fit together")
    stacks = []
    for operand in (a, b):
        own = shape_of(operand)
        stack = operand if prod(own[:-2]) == 1 else node.broadcast(operand, (*leading, *own[-2:]))
        stacks.append(node.reshape(stack, (prod(shape_of(stack)[:-2]), *own[-2:])))
    return stacks[0], stacks[1], tuple(leading)


@importer("FusedMatMul", domain=MICROSOFT)
def _fused_matmul(node: Node) -> Expr:
    operands = [node.input(0), node.input(1)]
    for index, letter in enumerate("AB"):
        rank = node.rank(index)
        if node.integer(f"transBatch{letter}", 0):
            node.unsupported(f"with transBatch{letter} is not supported")
        if node.integer(f"trans{letter}", 0) and rank > 1:
            operands[index] = node.transpose(operands[index], (*range(rank - 2), rank - 1, rank - 2))
    return _times(node, matmul(node, *operands), node.real("alpha", 1.0))


@importer("Gemm")
def _gemm(node: Node) -> Expr:
    a, b = node.input(0), node.input(1)
    if node.rank(0) != 2 or node.rank(1) != 2:
        node.wrong(f"shapes {node.shape(0)} and {node.shape(1)} are not matrices")
    if node.integer("transA", 0):
        a = node.transpose(a, (1, 0))
    weight = b if node.integer("transB", 0) else _transposed_weight(node, b)
    alpha, beta = node.real("alpha", 1.0), node.real("beta", 1.0)
    dtype = kind = dtype_of(a)
    if not alpha == beta == 1.0:
        # 16-bit floats overflow before they are scaled; the scaled sum of integers is truncated
        kind = "float32" if dtype in dtypes.HALVES else dtype if dtypes.is_float(dtype) else "float64"
    out_dtype = "float32" if dtype in dtypes.HALVES and kind != dtype else None
    result = node.call("nn.dense", a, weight, units=shape_of(weight)[0], out_dtype=out_dtype)
    result = _times(node, node.cast(result, kind), alpha)
    if not node.has(2) or beta == 0.0:
        return node.cast(result, dtype)
    addend = _times(node, node.cast(node.input(2), kind), beta)
    units = shape_of(result)[-1]
    if shape_of(addend) in ((units,), (1, units)):
        return node.cast(node.call("nn.bias_add", result, node.reshape(addend, (units,)), axis=1), dtype)
    return node.cast(node.call("add", result, addend), dtype)


def _times(node: Node, x: Expr, factor: float) -> Expr:
    return x if factor == 1.0 else node.call("multiply", x, factor)


@importer("Det")
def _determinant(node: Node) -> Expr:
    return node.call("linalg.det", node.input(0))


@importer("Einsum")
def _einsum(node: Node) -> Expr:
    terms, wanted = _equation(node, [shape_of(operand) for operand in node.all_inputs()])
    parts = [_diagonal(node, operand, term) for operand, term in zip(node.all_inputs(), terms, strict=True)]
    sizes: dict[str, int] = {}
    for operand, term in parts:
        for label, size in zip(term, shape_of(operand), strict=True):
            if not label.isalpha() and 1 in (size, sizes.get(label)):  # dimensions of an ellipsis broadcast
                sizes[label] = size if sizes.get(label, 1) == 1 else sizes[label]
            elif not node.has_shape((sizes.setdefault(label, size),), (size,)):
                node.wrong(f"label '{label}' stands for both {sizes[label]} and {size}")
    # ellipsis dimensions of size 1 are dropped, and broadcast by the other operand
    kept = [[label.isalpha() or size != 1 for label, size in zip(term, shape_of(x), strict=True)] for x, term in parts]
    pairs = zip(parts, kept, strict=True)
    parts = [(node.reshape(x, [*compress(shape_of(x), own)]), "".join(compress(term, own))) for (x, term), own in pairs]
    result, labels = _without_unused(node, *parts[0], set(wanted).union(*(term for _, term in parts[1:])))
    for position, (operand, term) in enumerate(parts[1:], 1):
        needed = set(wanted).union(*(term for _, term in parts[position + 1 :]))
        other, other_labels = _without_unused(node, operand, term, needed.union(labels))
        result, labels = _contracted(node, result, labels, other, other_labels, needed)
    ones = "".join(label for label in wanted if label not in labels)
    result = node.reshape(result, (*(1,) * len(ones), *shape_of(result)))
    return node.transpose(result, [(ones + labels).index(label) for label in wanted])


def _equation(node: Node, shapes: Sequence[tuple[int, ...]]) -> tuple[list[str], str]:
    """Return the labels of each operand and of the result; labels of ellipsis dimensions are digits, the last is 0."""
    text = node.string("equation").replace(" ", "")
    left, arrow, wanted = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        node.wrong(f"the equation '{text}' has {len(terms)} operands, the node {len(shapes)}")
    if not arrow:
        alone = sorted(label for label in set(left) - {",", "."} if left.count(label) == 1)
        wanted = ("..." if "..." in left else "") + "".join(alone)
    hidden = [len(shape) - len(term) + 3 if "..." in term else 0 for term, shape in zip(terms, shapes, strict=True)]
    if not 0 <= min(hidden) <= max(hidden) <= len(_DIGITS):
        node.wrong(f"the equation '{text}' does not fit tensors of shapes {', '.join(map(str, shapes))}")
    given = [term.replace("...", _hidden(count), 1) for term, count in zip(terms, hidden, strict=True)]
    wanted = wanted.replace("...", _hidden(max(hidden)), 1)
    for term, labels, shape in zip(terms, given, shapes, strict=True):
        letters = term.replace("...", "", 1)
        if len(labels) != len(shape) or (letters and not letters.isalpha()):
            node.wrong(f"'{term}' of the equation '{text}' does not fit a tensor of shape {shape}")
    if len(set(wanted)) != len(wanted) or not set(wanted) <= set("".join(given)):
        node.wrong(f"the result of the equation '{text}' is malformed")
    return given, wanted


_DIGITS = "76543210"


def _hidden(count: int) -> str:
    return _DIGITS[len(_DIGITS) - count :]


def _diagonal(node: Node, x: Expr, labels: str) -> tuple[Expr, str]:
    """Return the diagonal along repeated labels, so that each label occurs once."""
    for label in sorted(set(labels)):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            others = [axis for axis in range(len(labels)) if axis not in (first, second)]
            size = shape_of(x)[first]
            if not node.has_shape((shape_of(x)[second],), (size,)):
                node.wrong(f"label '{label}' stands for both {size} and {shape_of(x)[second]}")
            turned = node.transpose(x, [*others, first, second])
            kept = shape_of(turned)[:-2]
            flat = node.reshape(turned, (*kept, size * size))
            places: Expr = node.counted(size, "int32")
            if isinstance(places, Constant):
                places = node.constant(places.data * (size + 1), "int32")
            else:
                places = node.call("multiply", places, size + 1)
            x = node.call("take", flat, places, axis=len(kept))
            labels = "".join(labels[axis] for axis in others) + label
    return x, labels


def _without_unused(node: Node, x: Expr, labels: str, needed: set[str]) -> tuple[Expr, str]:
    """Sum over the dimensions whose labels are not needed."""
    unused = tuple(index for index, label in enumerate(labels) if label not in needed)
    if not unused:
        return x, labels
    kept = "".join(label for label in labels if label in needed)
    return node.call("sum", x, axis=unused, keepdims=False), kept


def _contracted(node: Node, a: Expr, a_labels: str, b: Expr, b_labels: str, needed: set[str]) -> tuple[Expr, str]:
    """Return the product of two operands, contracted over shared labels that are not needed any more."""
    shared = [label for label in a_labels if label in b_labels]
    batch = [label for label in shared if label in needed]
    inner = [label for label in shared if label not in needed]
    rows = [label for label in a_labels if label not in b_labels]
    columns = [label for label in b_labels if label not in a_labels]
    left = node.transpose(a, [a_labels.index(label) for label in (*batch, *rows, *inner)])
    right = node.transpose(b, [b_labels.index(label) for label in (*batch, *inner, *columns)])
    shape = shape_of(left)[: len(batch) + len(rows)] + shape_of(right)[len(batch) + len(inner) :]
    stack = prod(shape[: len(batch)])
    reduction = prod(shape_of(left)[len(batch) + len(rows) :])
    matrices = node.reshape(left, (stack, prod(shape[len(batch) : len(batch) + len(rows)]), reduction))
    others = node.reshape(right, (stack, reduction, prod(shape[len(batch) + len(rows) :])))
    product = node.call("nn.batch_matmul", matrices, others, transpose_a=False, transpose_b=False)
    return node.reshape(product, shape), "".join((*batch, *rows, *columns))

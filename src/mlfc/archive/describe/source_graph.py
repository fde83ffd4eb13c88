"""What a module's operators are in the model that it was compiled from: source nodes, and Relay operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlfc.archive.read.opening import Archive
from mlfc.archive.read.source import read_source
from mlfc.errors import MlfcError
from mlfc.relay.ir import Call, Expr, TensorType
from mlfc.relay.op import OPERATORS, Operator, Trait
from mlfc.relay.visitor import children, post_order

_EXACT, _ROUNDED = "exact", "correctly rounded"


@dataclass(frozen=True)
class SourceNode:
    """A node of the original model."""

    operators: tuple[str, ...]  # of Relay, in order
    type: str  # of what it gives
    reads: tuple[str, ...]  # other nodes
    tensors: tuple[str, ...] = ()  # of the original model


def source_nodes(archive: Archive, module: str) -> dict[str, SourceNode]:
    """Return the nodes of the original model by name, as the archive's Relay text has them.

    Archives without that text, or with one that is not read, have none.
    """
    try:
        source, _ = read_source(archive, module)
    except MlfcError:
        return {}
    operators: dict[str, list[str]] = {}
    types: dict[str, str] = {}
    reads: dict[str, dict[str, None]] = {}
    tensors: dict[str, dict[str, None]] = {}
    for function in source.functions.values():
        for expr in post_order(function.body):
            for name in expr.span.nodes if expr.span.tensor is not None else ():
                tensors.setdefault(name, {})[str(expr.span.tensor)] = None
            if not isinstance(expr, Call) or not isinstance(expr.op, Operator):
                continue
            above = [name for child in children(expr) for name in _nodes(child)]
            for name in expr.span.nodes:
                operators.setdefault(name, []).append(expr.op.name)
                reads.setdefault(name, {}).update(dict.fromkeys(other for other in above if other != name))
                if isinstance(expr.type, TensorType):
                    types[name] = f"{expr.type.dtype}[{','.join(map(str, expr.type.shape))}]"
    return {
        name: SourceNode(tuple(listed), types.get(name, ""), tuple(reads[name]), tuple(tensors.get(name, ())))
        for name, listed in operators.items()
    }


def _nodes(expr: Expr) -> Iterator[str]:
    """Yield the nodes that compute what a tuple or a call gives."""
    remaining = [expr]
    while remaining:
        item = remaining.pop()
        if isinstance(item, Call) and item.span.nodes:
            yield from item.span.nodes
        elif not isinstance(item, Call):
            remaining += children(item)


def contract_of(operators: Sequence[str], *, integers: bool) -> str | None:
    """Return the numeric contract of fused operators: those that are not exact, by operator; None if unknown.

    `integers`: they compute with integers, of which sums and products are exact.
    """
    if not operators:
        return None
    exact = (_EXACT, _ROUNDED) if integers else (_EXACT,)
    told = {name: OPERATORS.get(name).contract for name in operators}
    loose = {name: contract for name, contract in told.items() if contract not in exact}
    if len({*loose.values()}) == 1:
        return next(iter(loose.values()))
    return "; ".join(f"{name}: {contract}" for name, contract in loose.items()) or _EXACT


def short_operators(operators: Sequence[str]) -> str:
    """Return operators as titles have them: without the names of dialects."""
    return ", ".join(name.rpartition(".")[2] for name in dict.fromkeys(operators))


def main_operators(operators: Sequence[str]) -> str:
    """Return operators as `short_operators`, without those that come with others: bias, and what rounds and limits."""
    main = [name for name in operators if not OPERATORS.get(name).traits & Trait.CLOSING]
    return short_operators(main or operators)

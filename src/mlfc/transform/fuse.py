"""Operator fusion: every operator call ends up in a Primitive function, which becomes one loop nest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlfc.errors import UnsupportedError
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, IRModule, Tuple, TupleGetItem, Var
from mlfc.relay.op import Kind
from mlfc.relay.visitor import post_order, with_children
from mlfc.transform.grouping import Group, Grouping, kind_of
from mlfc.transform.matching import as_function


@dataclass(frozen=True)
class FuseOps:
    """Group operators into Primitive functions; only those and VIEW operators stay in ``main``.

    Constants move into the functions. An output that is an input, a constant, or storage that another output has
    already, becomes a copy.
    """

    max_depth: int = 64  # most operators of a group
    copies: bool = True  # whether such outputs are copied

    def __call__(self, module: IRModule) -> IRModule:
        """Return the fused module."""
        main = module.main
        fields = main.body.fields if isinstance(main.body, Tuple) else (main.body,)
        outputs = _own_storage(fields) if self.copies else tuple(fields)
        body = Tuple(outputs, main.body.span) if isinstance(main.body, Tuple) else outputs[0]
        calls = _operator_calls(body)
        groups = Grouping(calls, outputs, self.max_depth).find()
        return module.with_body(_GroupRewriter({group.exit: group for group in groups})(body))


def _own_storage(outputs: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return the outputs, with a copy of each that would share its bytes with an input or another output."""
    owned: set[Expr] = set()
    result = []
    for output in outputs:
        owner = output
        while isinstance(owner, Call) and kind_of(owner) is Kind.VIEW:
            owner = owner.args[0]
        if isinstance(owner, (Var, Constant)) or owner in owned:
            output = ir.call("copy", [output], span=output.span)  # noqa: PLW2901  (the copy takes its place)
        owned.add(owner)
        result.append(output)
    return tuple(result)


def _operator_calls(body: Expr) -> list[Call]:
    calls = []
    for node in post_order(body):
        if isinstance(node, TupleGetItem) or (isinstance(node, Call) and kind_of(node) is Kind.OPAQUE):
            source = node.value if isinstance(node, TupleGetItem) else node
            raise UnsupportedError(
                f"{ir.op_name(source) or 'a tuple'} has no loop-level form that stands alone",
                place=source.span.place,
                next_step="Only the first result of normalizations, and the parts of splits, can be compiled",
            )
        if isinstance(node, Call):
            calls.append(node)
    return calls


class _GroupRewriter:
    """Builds the fused graph, group by group, in the order of execution."""

    def __init__(self, exits: dict[Call, Group]) -> None:
        self._exits = exits
        self._done: dict[Expr, Expr] = {}

    def __call__(self, body: Expr) -> Expr:
        """Return the fused form of `body`."""
        for node in post_order(body):
            if isinstance(node, Call) and kind_of(node) in (Kind.VIEW, Kind.EXTERNAL):
                self._done[node] = with_children(node, (self._done.get(arg, arg) for arg in node.args))
            elif isinstance(node, Call):
                if node in self._exits:
                    self._done[node] = self._fused(self._exits[node])
            elif not isinstance(node, Tuple) or node is body:
                fields = node.fields if isinstance(node, Tuple) else ()
                self._done[node] = with_children(node, (self._done[field] for field in fields))
        return self._done[body]

    def _fused(self, group: Group) -> Call:
        function, args = as_function(group.members, group.exit, {"Primitive": 1})
        return ir.call_function(function, [self._done[arg] for arg in args], span=function.span)

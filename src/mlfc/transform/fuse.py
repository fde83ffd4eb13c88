"""Operator fusion: each operator call is moved into a Primitive function, which becomes one loop nest.

A group has one exit, the only member that is read from outside, and every member leads to it. This keeps the graph of
groups acyclic: a path that leaves a group and returns would start and end at the exit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod

from mlfc.errors import InternalError, UnsupportedError
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, Function, IRModule, Tuple, TupleGetItem, Var, has_trait, tensor_type
from mlfc.relay.op import POINTWISE, Kind, Operator, Trait
from mlfc.relay.visitor import post_order, with_children
from mlfc.support.dim_estimates import typical
from mlfc.target.features import Features
from mlfc.tir import ir as tir
from mlfc.tir import visitor
from mlfc.tir.context import Context, Indices, Tensor
from mlfc.transform import matching
from mlfc.transform.matching import as_function, compares_constants, flat_args, operator_of, shape_of, storage_owner


@dataclass(frozen=True)
class FuseOps:
    """Group operators into Primitive functions; only those and VIEW operators stay in ``main``.

    Constants move into the functions. An output that is an input, a constant, or shares its storage with an
    earlier output becomes a copy.
    """

    max_depth: int = 64  # most operators of a group
    copies: bool = True  # whether such outputs are copied

    def __call__(self, module: IRModule) -> IRModule:
        """Return the fused module."""
        main = module.main
        fields = main.body.fields if isinstance(main.body, Tuple) else (main.body,)
        outputs = _own_storage(fields) if self.copies else tuple(fields)
        body = Tuple(outputs, main.body.span) if isinstance(main.body, Tuple) else outputs[0]
        nodes = post_order(body)
        for node in nodes:
            if isinstance(node, TupleGetItem) or (isinstance(node, Call) and kind_of(node) is Kind.OPAQUE):
                source = node.value if isinstance(node, TupleGetItem) else node
                raise UnsupportedError(
                    f"{ir.op_name(source) or 'a tuple'} cannot be compiled on its own",
                    place=source.span.place,
                    next_step="Only the first result of normalizations, and the parts of splits, can be compiled",
                )
        calls = [node for node in nodes if isinstance(node, Call)]
        exits = {group.exit: group for group in Grouping(calls, outputs, self.max_depth).find()}
        done: dict[Expr, Expr] = {}
        for node in nodes:
            if isinstance(node, Call) and kind_of(node) in (Kind.VIEW, Kind.EXTERNAL):
                done[node] = with_children(node, (done.get(arg, arg) for arg in node.args))
            elif isinstance(node, Call):
                if node in exits:
                    function, args = as_function(exits[node].members, node, {"Primitive": 1})
                    done[node] = ir.call_function(function, [done[arg] for arg in args], span=function.span)
            elif not isinstance(node, Tuple) or node is body:
                fields = node.fields if isinstance(node, Tuple) else ()
                done[node] = with_children(node, (done[field] for field in fields))
        return module.with_body(done[body])


def _own_storage(outputs: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return the outputs, with a copy of each that would share its bytes with an input or another output."""
    owned: set[Expr] = set()
    result = []
    for output in outputs:
        owner = storage_owner(output)
        if isinstance(owner, (Var, Constant)) or owner in owned:
            output = ir.call("copy", [output], span=output.span)  # noqa: PLW2901  (the copy takes its place)
        owned.add(owner)
        result.append(output)
    return tuple(result)


_LOOPS = (Kind.ANCHOR, Kind.REDUCE)

# How often operators of kind REDUCE without `Trait.READS_ONCE` read an element of their input.
_SEVERAL_READS = 3
_MAX_CHEAP_REPEATS = 4.0
_MAX_DIAMOND = 32
# Largest number of copies of a producer, times those of its indices, in a kernel's code.
_MAX_COPIES = 32


@dataclass(eq=False)
class Group:
    """Calls that become one function."""

    exit: Call  # the member whose value is the group's
    members: list[Call]
    master: Call | None = None  # the anchor or reduction, if any
    evaluations: dict[Call, float] = field(default_factory=dict)  # number of elements of a member that are computed
    # members whose elements are computed once each, into a local, at the store of the result
    at_store: set[Call] = field(default_factory=set)
    # how often the group's code inlines any other member, and repeats an index in one such copy
    copies: dict[Call, int] = field(default_factory=dict)
    index_copies: dict[Call, int] = field(default_factory=dict)


def kind_of(call: Call) -> Kind:
    """Return how the called operator may be fused."""
    if isinstance(call.op, Function) and "Compiler" in call.op.attrs:
        return Kind.EXTERNAL
    if not isinstance(call.op, Operator):
        raise InternalError("the graph is already fused")
    return call.op.kind


class Grouping:
    """Search for the groups of a graph.

    `calls` are all operator calls in topological order; `outputs` are always stored in memory; `max_depth` is the
    largest number of members of a group.
    """

    def __init__(self, calls: Sequence[Call], outputs: Sequence[Expr], max_depth: int) -> None:
        self._calls = [call for call in calls if kind_of(call) not in (Kind.VIEW, Kind.EXTERNAL)]
        self._index = {call: index for index, call in enumerate(calls)}
        self._outputs = set(outputs)
        self._max_depth = max_depth
        self._group: dict[Call, Group] = {}
        self._users: dict[Expr, list[Call]] = {}
        self._inline_cost = cache(inline_cost)
        for call in calls:
            for arg in flat_args(call):
                self._users.setdefault(arg, []).append(call)

    def find(self) -> list[Group]:
        """Return the groups in the order of their exits; each call, except views and external ones, is in one group."""
        # the later of two producers takes the operator that joins them: the other's value exists by then
        for call in reversed(self._calls):
            if kind_of(call) in _LOOPS:
                self._claim_consumers(call)
        for call in reversed(self._calls):
            if call in self._group:
                continue
            # inlined into the group of all its readers, or in a new group
            group = self._joinable(call)
            if group is None:
                group = Group(call, [], None, {call: _size(call)}, {call})
            elif call not in group.evaluations:
                group.evaluations[call] = self._evaluations(call, group)
                if self._is_at_store(call, group):
                    group.at_store.add(call)
                group.copies[call], group.index_copies[call] = self._copies(call, group)
            group.members.append(call)
            self._group[call] = group
        groups = {id(self._group[call]): self._group[call] for call in self._calls}
        for group in groups.values():
            group.members.sort(key=self._index.__getitem__)
        return sorted(groups.values(), key=lambda group: self._index[group.exit])

    def _claim_consumers(self, master: Call) -> None:
        """Create the group of `master` and the pointwise operators of its shape that follow it."""
        group = self._group[master] = Group(master, [master], master)
        while (found := self._next_exit(group, master)) is not None:
            group.members += found
            self._group.update(dict.fromkeys(found, group))
            group.exit = found[-1]
        # consumers of the master are computed once, at the store of the result
        group.evaluations.update((call, _size(call)) for call in group.members)
        group.at_store.update(call for call in group.members if call is not master)

    def _next_exit(self, group: Group, master: Call) -> list[Call] | None:
        """Return the calls up to the next one that post-dominates the group's exit, or None."""
        if group.exit in self._outputs:
            return None
        waiting = set(self._users.get(group.exit, ()))
        taken: list[Call] = []
        while waiting and len(taken) < _MAX_DIAMOND:
            call = min(waiting, key=self._index.__getitem__)
            fits = kind_of(call) in POINTWISE and shape_of(call) == shape_of(master) and call not in self._group
            if not fits or len(group.members) + len(taken) >= self._max_depth:
                return None
            taken.append(call)
            if len(waiting) == 1:
                return taken
            if call in self._outputs or not self._users.get(call):
                return None
            waiting.remove(call)
            waiting.update(self._users[call])
        return None

    def _joinable(self, call: Call) -> Group | None:
        if call in self._outputs:
            return None
        readers = self._users.get(call, [])
        groups = {id(self._group[reader]): self._group[reader] for reader in readers if reader in self._group}
        if len(groups) != 1 or any(reader not in self._group for reader in readers):
            return None
        (group,) = groups.values()
        if len(group.members) >= self._max_depth or any(kind_of(reader) is Kind.ANCHOR for reader in readers):
            return None
        repeats = self._evaluations(call, group) / max(_size(call), 1)
        limit = 1.0 if operator_of(call).expensive else _MAX_CHEAP_REPEATS
        # interpolation computes an element from several others; it vectorizes unless a reduction reads it
        is_injective = kind_of(call) is Kind.INJECTIVE
        moves_data = is_injective and max(self._inline_cost(call).names.values(), default=1) == 1
        if is_injective and not moves_data and any(kind_of(reader) is Kind.REDUCE for reader in readers):
            return None
        # comparing two constants costs as much as reading a mask
        if repeats > limit and not moves_data and not compares_constants(call):
            return None
        copies, index_copies = self._copies(call, group)
        return group if copies * index_copies <= _MAX_COPIES else None

    def _is_at_store(self, call: Call, group: Group) -> bool:
        return all(
            reader in group.at_store and kind_of(reader) in POINTWISE and shape_of(reader) == shape_of(call)
            for reader in self._users[call]
        )

    def _copies(self, call: Call, group: Group) -> tuple[int, int]:
        """Return how often the group's code would inline `call`, and repeat each index in one copy."""
        if self._is_at_store(call, group):
            return 1, 1
        copies, index_copies = 0, 1
        for reader in dict.fromkeys(self._users[call]):
            names, growth = 1, 1
            if reader is not group.master:
                cost = self._inline_cost(reader)
                names, growth = cost.names.get(call, 0), cost.index_growth
            copies += group.copies.get(reader, 1) * names
            index_copies = max(index_copies, group.index_copies.get(reader, 1) * growth)
        return copies, index_copies

    def _evaluations(self, call: Call, group: Group) -> float:
        """Return the number of elements of `call` that are computed if it is inlined into its readers."""
        if self._is_at_store(call, group):
            return _size(call)
        total = 0.0
        for reader in self._users[call]:
            total += group.evaluations[reader] / max(_size(reader), 1) * self._reads(reader, call)
        return total

    def _reads(self, reader: Call, source: Call) -> float:
        """Return the number of elements of `source` that one complete evaluation of `reader` reads."""
        kind = kind_of(reader)
        if kind is Kind.REDUCE:
            return _size(source) * (1 if has_trait(reader, Trait.READS_ONCE) else _SEVERAL_READS)
        if any(isinstance(arg, Tuple) for arg in reader.args):
            return _size(source)
        return _size(reader) * (self._inline_cost(reader).names.get(source, 1) if kind is Kind.INJECTIVE else 1)


def _size(call: Call) -> float:
    return float(typical(prod(shape_of(call))))


@dataclass(frozen=True)
class InlineCost:
    """Code size of one element of a call's result."""

    names: dict[Expr, int]  # how often each argument is read
    index_growth: int  # largest number of times that a read of an argument uses one index of the result


def inline_cost(call: Call) -> InlineCost:
    """Return the inline cost of a call whose operator computes element by element."""
    operator = call.op
    if not isinstance(operator, Operator) or operator.compute is None:
        raise InternalError("only operators that compute element by element can be inlined")
    out = tensor_type(call)
    bound: dict[tir.Var, Expr] = {}
    growth = 1

    def placeholder(arg: Expr) -> Tensor:
        kind = tensor_type(arg)

        def read(indices: Indices) -> tir.Expr:
            nonlocal growth
            seen = Counter(node for index in indices for node in visitor.walk_expr(index) if isinstance(node, tir.Var))
            growth = max(growth, *(seen[var] for var in own))
            var = tir.Var("element", kind.dtype)
            bound[var] = arg
            return var

        own = (*result_indices, tir.Var("none"))
        return Tensor(kind.shape, kind.dtype, read, None, matching.value_of(arg))

    result_indices = tuple(tir.Var(f"i{axis}") for axis in range(len(out.shape)))
    inputs = [placeholder(arg) for arg in flat_args(call)]
    element = operator.compute(Context(Features()), inputs, call.attrs, out)(result_indices)
    named = Counter(bound[node] for node in visitor.walk_expr(element) if isinstance(node, tir.Var) and node in bound)
    return InlineCost(dict(named), growth)

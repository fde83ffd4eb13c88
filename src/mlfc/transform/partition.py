"""Assign parts of a graph to external code generators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlfc.byoc.generator import Composite, Generator
from mlfc.relay import ir
from mlfc.relay.ir import Call, Expr, IRModule, Tuple
from mlfc.relay.visitor import children, post_order, users, with_children
from mlfc.support.dims import symbols_of
from mlfc.target.features import Features
from mlfc.transform.matching import as_function


@dataclass(eq=False)
class _Region:
    """A match: calls of which only the last is read from outside."""

    generator: Generator
    composite: Composite
    calls: list[Call]
    merged: bool = False


@dataclass(frozen=True)
class PartitionGraph:
    """Move each part that a generator supports into a function with attributes ``Compiler`` and ``Composite``.

    Generators are tried in order. Matching starts at the outputs.
    """

    generators: tuple[Generator, ...]
    features: Features = field(default_factory=Features)  # of the target

    def __call__(self, module: IRModule) -> IRModule:
        """Return the partitioned module."""
        body = module.main.body
        order = post_order(body)
        readers = users(body)
        outputs: set[Expr] = set(body.fields) if isinstance(body, Tuple) else {body}
        claimed: set[Expr] = set()
        found: dict[Call, _Region] = {}  # the matches by their last calls; they are disjoint
        for expr in reversed(order):
            if isinstance(expr, Call) and expr not in claimed:
                match = self._match(expr, claimed, readers, outputs)
                if match is not None:
                    claimed.update(match.calls)
                    found[expr] = match
        if not found:
            return module
        regions = _merged(found, order, readers, outputs)
        inside = {call for region in regions.values() for call in region.calls[:-1]}
        done: dict[Expr, Expr] = {}
        for expr in order:
            if expr in inside:
                continue
            region = regions.get(expr) if isinstance(expr, Call) else None
            if region is None:
                done[expr] = with_children(expr, (done.get(child, child) for child in children(expr)))
                continue
            attrs = {"Compiler": region.generator.name, "Composite": region.composite.name}
            function, args = as_function(region.calls, region.calls[-1], attrs)
            done[expr] = ir.call_function(function, [done[arg] for arg in args], span=function.span)
        return module.with_body(done[body])

    def _match(
        self, expr: Call, claimed: set[Expr], readers: Mapping[Expr, Sequence[Expr]], outputs: set[Expr]
    ) -> _Region | None:
        for generator in self.generators:
            for composite in generator.table:
                calls = composite.pattern(expr)
                if not calls or not claimed.isdisjoint(calls):
                    continue
                types = (expr.type for call in calls for expr in (call, *call.args))
                if not generator.takes_open and symbols_of(ir.extents_of(types)):
                    continue
                inner = set(calls)
                closed = all(
                    call not in outputs and inner.issuperset(_through_tuples(call, readers)) for call in calls[:-1]
                )
                if closed and composite.accepts(calls, self.features):
                    return _Region(generator, composite, list(calls))
        return None


def _through_tuples(expr: Expr, readers: Mapping[Expr, Sequence[Expr]]) -> list[Expr]:
    """Return the readers of an expression; a tuple is replaced by its readers."""
    found: list[Expr] = []
    for reader in readers[expr]:
        found.extend(_through_tuples(reader, readers) or [reader] if isinstance(reader, Tuple) else [reader])
    return found


def _merged(
    regions: Mapping[Call, _Region], order: Sequence[Expr], readers: Mapping[Expr, Sequence[Expr]], outputs: set[Expr]
) -> dict[Call, _Region]:
    """Return the regions; a region with one reading region of the same merging generator is joined to it."""
    home = {call: region for region in regions.values() for call in region.calls}
    place = {expr: index for index, expr in enumerate(order)}
    for last in sorted(regions, key=place.__getitem__, reverse=True):
        region = regions[last]
        into = {id(home[reader]): home[reader] for reader in _through_tuples(last, readers) if reader in home}
        outside = any(reader not in home for reader in _through_tuples(last, readers))
        if outside or last in outputs or len(into) != 1 or not region.generator.merges:
            continue
        (other,) = into.values()
        if other.generator is region.generator:
            other.calls = sorted([*region.calls, *other.calls], key=place.__getitem__)
            home.update(dict.fromkeys(region.calls, other))
            region.merged = True
    return {last: region for last, region in regions.items() if not region.merged}

"""Metadata from which LLVM learns what the loop-level code knows: accesses that never meet, loops that stay loops."""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.ir as ll

from mlfc.codegen.llvm.llvm_types import Value

_UNROLL_DISABLE = "llvm.loop.unroll.disable"
_IS_VECTORIZED = "llvm.loop.isvectorized"
_OF_VECTORS = "llvm.loop.vectorize.followup_all"  # properties of the loops that vectorization makes
_VECTORIZE = "llvm.loop.vectorize.enable"
_PARALLEL_ACCESSES = "llvm.loop.parallel_accesses"


class DistinctNode(ll.values.MDValue):  # type: ignore[misc]  # llvmlite has no types
    """A node that is no other node, even with the same operands; it may begin with itself."""

    def __init__(self, module: Value, operands: Sequence[Value], *, begins_with_itself: bool = True) -> None:
        super().__init__(module, operands, name=str(len(module.metadata)))
        self.operands: tuple[Value, ...] = (self, *operands) if begins_with_itself else tuple(operands)

    def descr(self, buf: list[str]) -> None:
        """Append the node's text."""
        references = ", ".join(operand.get_reference() for operand in self.operands)
        buf += [f"distinct !{{ {references} }}", "\n"]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def access_group(module: Value) -> Value:
    """Return a mark for accesses that are independent between iterations of a loop."""
    return DistinctNode(module, [], begins_with_itself=False)


def loop_properties(
    module: Value, *, rolled: bool = False, lanes: bool = False, scalar: bool = False, group: Value | None = None
) -> Value | None:
    """Return the properties of a loop, for the branch that closes it; None if there are none.

    Parameters
    ----------
    module : llvmlite.ir.Module
    rolled : bool
        Do not unroll it.
    lanes : bool
        Do not unroll it before it is vectorized: of copies of its body, outer loops would make vectors whose lanes are
        apart in memory.
    scalar : bool
        Do not vectorize it; `lanes` has then no effect.
    group : metadata or None
        The accesses that are independent between iterations.
    """
    properties = []
    if rolled or (lanes and not scalar):
        properties.append(module.add_metadata([_UNROLL_DISABLE]))
    if scalar:
        properties.append(module.add_metadata([_VECTORIZE, ll.Constant(ll.IntType(1), 0)]))
    elif lanes and not rolled:
        vectorized = module.add_metadata([_IS_VECTORIZED])
        properties.append(module.add_metadata([_OF_VECTORS, vectorized]))
    if group is not None:
        properties.append(module.add_metadata([_PARALLEL_ACCESSES, group]))
    return DistinctNode(module, properties) if properties else None


def separate_scopes(module: Value, count: int) -> list[tuple[Value, Value]]:
    """Return, for each of `count` pieces of memory, the list of its own scope and that of all others."""
    domain = DistinctNode(module, [])
    scopes = [DistinctNode(module, [domain]) for _ in range(count)]
    return [
        (module.add_metadata([scope]), module.add_metadata([other for other in scopes if other is not scope]))
        for scope in scopes
    ]

"""Merge kernels that differ only in literals: zero points, per-tensor multipliers, limits.

The literals become elements of an additional constant, which the kernel loads before its loops. Since only arguments
differ, executors and printers need no changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir import ir, visitor
from mlfc.tir.ir import Buffer, Expr, PrimFunc, Stmt, Var
from mlfc.tir.program import KernelCall, Value

FEWEST_NODES = 64
"""Minimum number of expression nodes of a shared function; the loads that sharing adds outweigh a smaller one."""

_DTYPES = ("int32", "int8", "uint8", "float32")
_PROVEN = frozenset({"floordiv", "floormod", "truncdiv", "truncmod", "shl", "shr"})
_LIMIT = "limit"  # in place of a dtype: an upper bound of an expression; any larger number is also a bound
_LARGEST = (1 << 31) - 1

Number: TypeAlias = "int | float"
Give: TypeAlias = "Callable[[ir.Const, str], Expr]"
"""Returns the replacement of a literal, given its dtype or `_LIMIT`."""
Constants: TypeAlias = "Callable[[str, npt.NDArray[Any]], Value]"


def share_kernels(calls: Sequence[KernelCall], constant: Constants) -> dict[KernelCall, KernelCall]:
    """Return the replacement of each call whose kernel can be shared.

    Parameters
    ----------
    calls : sequence of KernelCall
    constant : callable
        Creates a constant of the program from its name and elements.
    """
    kinds: dict[object, list[PrimFunc]] = defaultdict(list)
    for kernel in dict.fromkeys(call.kernel for call in calls):
        is_plain = kernel.device is None and kernel.external is None and not kernel.symbols
        if is_plain and any(count >= FEWEST_NODES for count, _ in enumerate(visitor.nodes(kernel.body), 1)):
            buffers = (*kernel.params, *kernel.scratch)
            kinds[tuple((buffer.dtype, buffer.shape) for buffer in buffers)].append(kernel)
    families: dict[object, list[_Member]] = defaultdict(list)
    for member in (_Member(kernel) for alike in kinds.values() if len(alike) > 1 for kernel in alike):
        families[member.key].append(member)
    shared: dict[PrimFunc, tuple[PrimFunc, tuple[Value, ...]]] = {}
    for family in families.values():
        if len(family) > 1:
            shared.update(_shared(family, constant))
    return {
        call: replace(call, kernel=kernel, constants=(*call.constants, *values))
        for call in calls
        if call.kernel in shared
        for kernel, values in [shared[call.kernel]]
    }


class _Member:
    """A kernel, the literals of its bodies, and a key that is equal for kernels that differ only in these."""

    def __init__(self, kernel: PrimFunc) -> None:
        self.kernel = kernel
        self.literals: list[list[tuple[Number, str]]] = []
        bodies = []
        for prim in (kernel, *(variant for _, variant in kernel.variants)):
            found: list[tuple[Number, str]] = []
            self.literals.append(found)

            def noted(const: ir.Const, kind: str, found: list[tuple[Number, str]] = found) -> Expr:
                found.append((const.value, kind))
                return ir.Const(0, const.dtype)

            bodies.append(replace(prim, body=_Literals(prim.body, noted).stmt(prim.body), variants=()))
        levels = tuple(level for level, _ in kernel.variants)
        self.key = (levels, tuple(map(visitor.signature, bodies)))


def _shared(family: Sequence[_Member], constant: Constants) -> dict[PrimFunc, tuple[PrimFunc, tuple[Value, ...]]]:
    """Return the kernel that replaces each kernel of a family, and its additional constants."""
    first, numbers = family[0].kernel, _FamilyNumbers(family)
    prims = [first, *(variant for _, variant in first.variants)]
    whole = [
        replace(prim, body=numbers.body(prim.body, place), constants=(*prim.constants, *numbers.buffers.values()))
        for place, prim in enumerate(prims)
    ]
    variants = tuple((level, prim) for (level, _), prim in zip(first.variants, whole[1:], strict=True))
    kernel = replace(whole[0], variants=variants)
    return {
        member.kernel: (kernel, tuple(constant("numbers", array) for array in numbers.arrays(place)))
        for place, member in enumerate(family)
    }


class _FamilyNumbers:
    """The numbers in which the kernels of a family differ: one array per dtype, without duplicates."""

    def __init__(self, family: Sequence[_Member]) -> None:
        # for each body, its literals in order; each literal has its value in all kernels
        self._rows = [list(zip(*literals, strict=True)) for literals in zip(*(m.literals for m in family), strict=True)]
        self._columns: dict[str, dict[tuple[str, ...], tuple[Number, ...]]] = {}
        for row in self._rows:
            for literals in row:
                kind = literals[0][1]
                values = tuple(value for value, _ in literals)
                if kind != _LIMIT and len(set(map(repr, values))) > 1:
                    self._columns.setdefault(kind, {})[tuple(map(repr, values))] = values
        self.buffers = {kind: Buffer("numbers", (len(held),), kind) for kind, held in self._columns.items()}

    def arrays(self, member: int) -> list[npt.NDArray[Any]]:
        """Return the elements of the arrays for one kernel."""
        return [
            np.array([values[member] for values in held.values()], dtypes.to_numpy(kind))
            for kind, held in self._columns.items()
        ]

    def body(self, body: Stmt, place: int) -> Stmt:
        """Return the body with the numbers loaded from these arrays, each once."""
        rows = iter(self._rows[place])
        used: dict[tuple[str, tuple[str, ...]], Var] = {}

        def given(const: ir.Const, kind: str) -> Expr:
            values = tuple(value for value, _ in next(rows))
            if kind == _LIMIT:
                return ir.Const(max(values), const.dtype)
            key = tuple(map(repr, values))
            return used.setdefault((kind, key), Var("number", kind)) if len(set(key)) > 1 else const

        result = _Literals(body, given).stmt(body)
        for (kind, key), var in reversed(used.items()):
            columns = self._columns[kind]
            number, most = tb.load(self.buffers[kind], [list(columns).index(key)]), max(map(abs, columns[key]))
            is_limited = kind == "int32" and most <= _LARGEST
            result = ir.Let(var, tb.intrinsic("within", number, tb.const(most)) if is_limited else number, result)
        return result


class _Literals:
    """Replacement of literals in computed values. Literals in indices, extents and divisors stay: proofs use them."""

    def __init__(self, body: Stmt, give: Give) -> None:
        self._give = give
        self._placing = _placing(body)

    def stmt(self, stmt: Stmt) -> Stmt:
        """Return a statement with its literals replaced."""
        if isinstance(stmt, ir.Store):
            return ir.Store(stmt.buffer, stmt.indices, self._value(stmt.value))
        if isinstance(stmt, ir.Let):
            value = stmt.value if stmt.var in self._placing else self._value(stmt.value)
            return replace(stmt, value=value, body=self.stmt(stmt.body))
        return visitor.rebuilt_stmt(stmt, self.stmt)

    def _value(self, expr: Expr) -> Expr:
        if isinstance(expr, ir.Const):
            return self._give(expr, expr.dtype) if expr.dtype in _DTYPES else expr
        if isinstance(expr, (ir.Load, Var)):
            return expr
        if isinstance(expr, ir.Call) and expr.name == "within":
            limit = expr.args[1]
            value = self._value(expr.args[0])
            return replace(expr, args=(value, self._give(limit, _LIMIT) if isinstance(limit, ir.Const) else limit))
        if isinstance(expr, ir.Binary) and expr.op in _PROVEN:
            return replace(expr, a=self._value(expr.a))
        return visitor.rebuilt(expr, self._value)


def _placing(body: Stmt) -> set[Var]:
    """Return the variables that determine which elements are accessed, and how often."""
    found: set[Var] = set()
    bound: list[ir.Let] = []
    for stmt in visitor.walk(body):
        placing = list(stmt.indices) if isinstance(stmt, ir.Store) else []
        exprs = visitor.own_exprs(stmt)
        if isinstance(stmt, ir.Let):
            bound.append(stmt)
        elif not isinstance(stmt, ir.Store):
            placing += exprs
        for node in (node for expr in exprs for node in visitor.walk_expr(expr)):
            placing += node.indices if isinstance(node, ir.Load) else ()
        found.update(node for expr in placing for node in visitor.walk_expr(expr) if isinstance(node, Var))
    for let in reversed(bound):
        if let.var in found:
            found.update(node for node in visitor.walk_expr(let.value) if isinstance(node, Var))
    return found

"""Numbers in which functions of the same structure differ: parameters of one function that serves them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.ir import Buffer, Expr, PrimFunc, Var

Number: TypeAlias = "int | float"

_LARGEST_OFFSET = 256
_FACTORS = (2, 4, 8, 16, 32, 64)  # a shift, which addressing modes have for nothing


@dataclass(frozen=True, eq=False)
class Parameter:
    """A number that differs between the members of a family, with its value in each."""

    var: Var
    values: tuple[Number, ...]


@dataclass(frozen=True, eq=False)
class SharedFunction:
    """One function for a family of functions that differ in numbers alone."""

    # its buffers have one dimension, and the largest size that any member asks for. Parameters are free variables.
    prim: PrimFunc
    parameters: tuple[Parameter, ...]
    members: tuple[PrimFunc, ...]  # what it stands for, in the order of the parameters' values
    sizes: Mapping[Buffer, tuple[int, ...]]  # elements of each buffer in each member
    scratch_offsets: tuple[Expr, ...]  # where each scratch buffer lies in the member's own scratch

    def values(self, member: int) -> dict[Var, Number]:
        """Return the value of each parameter in one member."""
        return {parameter.var: parameter.values[member] for parameter in self.parameters}


@dataclass(eq=False)
class ParameterPool:
    """Hands out a parameter for each tuple of differing numbers; tuples that go along share one."""

    parameters: list[Parameter] = field(default_factory=list)
    _names: dict[str, int] = field(default_factory=dict)

    def number(self, values: Sequence[Number], dtype: str, hint: str) -> Expr:
        """Return the expression of a number by its value in each member: a literal where all are the same.

        `hint` names a new parameter.
        """
        found = tuple(values)
        if len({repr(value) for value in found}) == 1:
            return tb.const(found[0], dtype)
        for parameter in self.parameters:
            known = self._derived(parameter, found, dtype)
            if known is not None:
                return known
        count = self._names.get(hint, 0)
        self._names[hint] = count + 1
        var = Var(hint if count == 0 else f"{hint}_{count}", dtype)
        self.parameters.append(Parameter(var, found))
        return var

    @staticmethod
    def _derived(parameter: Parameter, values: tuple[Number, ...], dtype: str) -> Expr | None:
        """Return `values` as a parameter that is there, as one plus a literal, or as one times a power of two."""
        var = parameter.var
        if var.dtype != dtype:
            return None
        if not dtypes.is_integer(dtype):
            return var if list(map(repr, parameter.values)) == list(map(repr, values)) else None
        pairs = [(int(known), int(value)) for known, value in zip(parameter.values, values, strict=True)]
        differences = {value - known for known, value in pairs}
        if len(differences) == 1 and abs(offset := differences.pop()) <= (_LARGEST_OFFSET if dtype == "int32" else 0):
            return tb.binary("add", var, tb.const(offset, dtype)) if offset else var
        for factor in _FACTORS if dtype == "int32" else ():
            if all(value == factor * known for known, value in pairs):
                return tb.binary("mul", var, tb.const(factor))
        return None

"""Specialization of a module: values replace symbols in types and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlfc.errors import OptionError, unknown
from mlfc.relay.dynamic import input_symbols
from mlfc.relay.ir import IRModule
from mlfc.relay.visitor import Substitution
from mlfc.support.dims import Symbol


def fixed_symbols(module: IRModule, values: Mapping[str, int]) -> dict[Symbol, int]:
    """Return the values by symbol, given the values by name.

    Raises OptionError if no input has a symbol of that name, or a value is out of bounds.
    """
    known = input_symbols(module)
    chosen: dict[Symbol, int] = {}
    for name, value in values.items():
        if name not in known:
            raise OptionError(unknown("dynamic dimension", name, known), place="specialize")
        symbol = known[name]
        if not symbol.low <= value <= symbol.high:
            raise OptionError(
                f"expected {symbol.low} to {symbol.high} for the dimension '{name}', got {value}", place="specialize"
            )
        chosen[symbol] = value
    return chosen


def specialized(module: IRModule, values: Mapping[str, int]) -> IRModule:
    """Return the module with the named symbols replaced by values. Raises OptionError as `fixed_symbols` does."""
    chosen = fixed_symbols(module, values)
    functions = {name: Substitution(chosen).function(function) for name, function in module.functions.items()}
    return replace(module, functions=functions)

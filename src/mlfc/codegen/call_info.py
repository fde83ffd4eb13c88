"""What profiles tell of a kernel call: its nodes, tensors, bytes and multiply-accumulates."""

from __future__ import annotations

from typing import Any

from mlfc.support.call_shapes import UNKNOWN, count_text, tensor_text
from mlfc.support.dim_estimates import most
from mlfc.support.dims import LARGEST, Dim, Extent, substituted, symbols_of
from mlfc.support.module_info import OperatorInfo
from mlfc.tir.program import KernelCall


def call_info(call: KernelCall, function: str) -> OperatorInfo:
    """Return what is known of a call of the generated function of this name."""
    touched = dict.fromkeys(value.root for value in (*call.inputs, *call.constants, call.output))
    nbytes: Any = sum(value.nbytes for value in touched)
    macs = call.kernel.macs
    numbered = {symbol: place for place, symbol in enumerate(call.kernel.symbols)}
    # of the model's own extents, those that the call passes as they are
    passed = {
        number.symbol: place
        for place, number in reversed([*enumerate(call.numbers)])
        if isinstance(number, Dim) and number.symbol is not None
    }
    text = count_text(macs, numbered) if isinstance(macs, Dim) else UNKNOWN
    return OperatorInfo(
        function,
        tuple(call.nodes),
        _at_most(macs),
        most(nbytes),
        tuple(tensor_text(value.dtype, value.shape, passed) for value in (*call.inputs, *call.constants, call.output)),
        None if text == UNKNOWN else text,
    )


def _at_most(count: Extent) -> int:
    """Return a number that depends on open extents, for the largest ones; those without a bound count as 1."""
    sizes = {symbol: symbol.high if symbol.high < LARGEST else 1 for symbol in symbols_of([count])}
    return max(0, int(substituted(count, sizes)))

"""The metadata of a dynamic model."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.support.executable import Executable
from mlfc.support.module_info import SymbolInfo, VmInfo
from mlfc.support.tensor_info import TensorInfo

_SHOWN_EXTENTS = 8
_SHOWN_NAME = 60


def vm_info(executable: Executable) -> VmInfo:
    """Return what a dynamic model needs."""
    return VmInfo(executable.arena_bytes, executable.work_bytes, executable.symbols)


def most_input_bytes(inputs: Sequence[TensorInfo], vm: VmInfo) -> int | None:
    """Return the bytes of all inputs in the worst case; None where they have no bound.

    Metadata of older versions do not have them: then extents that follow from others in a way that their names do not
    tell are not known either.
    """
    if vm.input_bytes is not None:
        return vm.input_bytes
    highs = {symbol.name: symbol.high for symbol in vm.symbols if symbol.high is not None}
    largest = [tensor.at(highs) for tensor in inputs]
    return sum(tensor.nbytes for tensor in largest) if all(tensor.is_static for tensor in largest) else None


def bounding_option(inputs: Sequence[TensorInfo], symbols: Sequence[SymbolInfo]) -> str:
    """Return an option that gives an input bounds, as an example: ``--shape x=batch:1..8,3``."""
    lows = {symbol.name: symbol.low for symbol in symbols if symbol.high is None and symbol.name.isidentifier()}
    for tensor in inputs:
        extents = [str(extent) for extent in tensor.shape]
        plain = tensor.name.isprintable() and " " not in tensor.name and len(tensor.name) <= _SHOWN_NAME
        if plain and len(extents) <= _SHOWN_EXTENTS and any(extent in lows for extent in extents):
            bounded = (f"{name}:{lows[name]}..{max(8, lows[name])}" if name in lows else name for name in extents)
            return f"--shape {tensor.name}={','.join(bounded)}"
    return "--shape INPUT=batch:1..8"

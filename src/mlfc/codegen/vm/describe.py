"""The description of a dynamic model that its code is accompanied by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlfc.codegen.unit import kernels_in_code
from mlfc.support.containers import BYTES, EXTENTS, Container, parts_of
from mlfc.support.dims import LARGEST, Dim, Extent, Symbol, symbols_of
from mlfc.support.executable import Executable, PartInfo, VmValue
from mlfc.support.module_info import SymbolInfo
from mlfc.tir.program import Program, Value


def executable_of(
    program: Program, arena_bytes: int | None, name: str, containers: Sequence[Container] = ()
) -> Executable:
    """Return the description of a module `name`; `containers` are made of its inputs and outputs."""
    names: dict[Symbol, str] = {}
    for symbol in symbols_of([extent for value in program.inputs for extent in value.shape]):
        is_taken = symbol.name in names.values()
        names[symbol] = f"{symbol.name}_{len(names)}" if is_taken else symbol.name
    inputs, outputs = (_parts(containers, is_output=is_output) for is_output in (False, True))
    kinds = {kernel.device for kernel in program.kernels if kernel.device}
    return Executable(
        name,
        tuple(_value(value, names, inputs) for value in program.inputs),
        tuple(_value(value, names, outputs) for value in program.outputs),
        tuple(
            SymbolInfo(text, symbol.low, symbol.high if symbol.high < LARGEST else None)
            for symbol, text in names.items()
        ),
        tuple(_value(state.before, names, {}) for state in program.states),
        tuple(state.after.name for state in program.states),
        arena_bytes,
        len(kernels_in_code(program)),
        tuple(sorted(kinds)),
    )


def _value(value: Value, names: Mapping[Symbol, str], parts: Mapping[str, PartInfo]) -> VmValue:
    extents = tuple(_dimension(extent, names) for extent in value.shape)
    return VmValue(value.name, value.dtype, extents, parts.get(value.name))


def _dimension(extent: Extent, names: Mapping[Symbol, str]) -> int | str | None:
    if not isinstance(extent, Dim):
        return extent
    return names.get(extent.symbol) if extent.symbol is not None else None


def _parts(containers: Sequence[Container], *, is_output: bool) -> dict[str, PartInfo]:
    """Return the parts that inputs or outputs are, by their names."""
    found = {}
    for container in containers:
        details = {EXTENTS: container.kind, BYTES: container.dtype}
        if container.is_output == is_output:
            for name, part in zip(container.parts, parts_of(container.kind), strict=True):
                found[name] = PartInfo(part, details.get(part), container.is_mixed and part == EXTENTS)
    return found

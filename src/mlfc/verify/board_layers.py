"""Comparison of the operators of a normal build: on a board, by checksums; on this machine, by fused group."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlfc.archive.describe.profile import profiled_factory
from mlfc.errors import InternalError, MlfcError
from mlfc.factory import Factory
from mlfc.micro.run.emulator import EmulatedModule
from mlfc.runtime import ProfiledModule
from mlfc.support.arrays import Array
from mlfc.support.dtypes import to_numpy
from mlfc.verify.difference import Difference, difference
from mlfc.verify.reference import Reference, WrappedReference

UNOPTIMIZED = "-O0"


@dataclass(frozen=True)
class BoardOperator:
    """An operator of a program, identified by its output."""

    name: str  # unique name of its output, the original tensor's if possible
    shape: tuple[int, ...]
    dtype: str
    nodes: tuple[str, ...]  # the original nodes
    function: str  # the generated C function

    def array(self, data: bytes) -> Array:
        """Return the output stored in bytes."""
        return np.frombuffer(data, to_numpy(self.dtype)).reshape(self.shape)


class BoardLayers:
    """A compiled model that runs on a board and on this machine, operator by operator.

    `firmware`: of the same module, with tracing.
    `layers`: by name, in the order of computation.
    `unlike_host`: the layers whose results on the board differed from this machine's for any inputs so far.
    """

    def __init__(self, factory: Factory, firmware: EmulatedModule) -> None:
        host = profiled_factory(factory)
        if not isinstance(host, ProfiledModule):
            raise InternalError("the graph executor does not support profiling of operators")
        self._host, self._firmware = host, firmware
        self.inputs, self.outputs = firmware.inputs, firmware.outputs
        self.layers = {layer.name: layer for layer in program_layers(factory)}
        self.unlike_host: set[str] = set()

    def run(self, *inputs: Any) -> dict[str, Array]:
        """Return all layers and the model's outputs, computed on the board, by name."""
        given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], Mapping) else inputs
        self._host.reset_state()  # as the firmware does at its start
        here = self._host.operator_outputs(given)
        measured = self._firmware.measure(given)
        pairs = enumerate(zip(here, measured.checksums, strict=True))
        sizes = {index: len(data) for index, (data, checksum) in pairs if zlib.crc32(data) != checksum}
        fetched = self._firmware.operator_outputs(given, sizes) if sizes else {}
        found = {}
        for index, layer in enumerate(self.layers.values()):
            if index in fetched:
                self.unlike_host.add(layer.name)
            found[layer.name] = layer.array(fetched.get(index, here[index]))
        return {**found, **measured.outputs}

    def on_host(self, inputs: Mapping[str, Array] | Sequence[Array]) -> dict[str, Array]:
        """Return all layers, computed on this machine, by name."""
        self._host.reset_state()
        here = self._host.operator_outputs(inputs)
        return {layer.name: layer.array(data) for layer, data in zip(self.layers.values(), here, strict=True)}


class BesideHost(WrappedReference):
    """A reference that adds the tensors it lacks, and those not in `known`, from this machine.

    `known`: the tensors to use from `reference`; None for all.
    """

    def __init__(self, reference: Reference, compiled: BoardLayers, known: Sequence[str] | None) -> None:
        super().__init__(reference)
        self._compiled, self._known = compiled, known

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return tensors by name."""
        expected = self._reference.run(inputs)
        if self._known is not None:
            expected = {name: expected[name] for name in self._known}
        here = self._compiled.on_host(inputs)
        # an operator may compute only a part of the tensor that it is named after
        whole = {name: array for name, array in expected.items() if name not in here or array.size == here[name].size}
        return {**here, **whole}


def program_layers(factory: Factory) -> list[BoardOperator]:
    """Return the operators of compiled code, in the order of the calls."""
    outputs = {value.root: value.name for value in factory.program.outputs}
    taken, found, functions = set(outputs.values()), [], factory.code.function_names
    for index, call in enumerate(factory.program.calls):
        value = call.output
        own = outputs.pop(value.root, None) if value.nbytes == value.root.nbytes else None
        name = own or value.name
        if own is None and name in taken:
            name = f"{name} (operator {index})"
        taken.add(name)
        found.append(BoardOperator(name, value.shape, value.dtype, call.nodes, functions[call.kernel.name]))
    return found


def differing_groups(
    factory: Factory, reference: Reference, sets: Sequence[tuple[str, dict[str, Array]]]
) -> tuple[Difference, ...]:
    """Return the fused groups whose results differ, in the order of computation.

    `reference`: with all tensors.
    `sets`: named input sets for which the outputs differ.

    Each difference names the group's nodes; its note names the C function, and whether the optimizer causes the
    difference. The result is empty if no single group differs, or the code cannot be profiled.
    """
    shipped = profiled_factory(factory)
    if not isinstance(shipped, ProfiledModule):
        return ()
    plain = None
    with suppress(MlfcError):  # the compiler lacks the flag
        plain = profiled_factory(factory, flags=(UNOPTIMIZED,)) if factory.target.kind == "c" else None
    layers = program_layers(factory)
    found: dict[int, Difference] = {}
    for sample, inputs in sets:
        expected = reference.run(inputs)
        ours = shipped.operator_outputs(inputs)
        theirs = plain.operator_outputs(inputs) if isinstance(plain, ProfiledModule) else None
        for index, layer in enumerate(layers):
            if index not in found:
                item = _group(layer, sample, ours[index], theirs[index] if theirs else None, expected)
                if item is not None:
                    found[index] = item
    return tuple(found[index] for index in sorted(found))


def _group(
    layer: BoardOperator, sample: str, data: bytes, unoptimized: bytes | None, expected: Mapping[str, Array]
) -> Difference | None:
    array = layer.array(data)
    if unoptimized is not None:
        item = difference(layer.name, array, layer.array(unoptimized), sample)
        if not item.is_within:
            note = f"C function {layer.function}; correct without compiler optimizations ({UNOPTIMIZED})"
            return replace(item, nodes=layer.nodes, note=note)
    if layer.name not in expected:
        return None
    tensor = expected[layer.name]
    layouts = [tensor] if tensor.size == np.prod(layer.shape, dtype=np.int64) else []
    if tensor.ndim >= 3 and (last := np.moveaxis(tensor, 1, -1)).shape == layer.shape:  # channels last
        layouts.append(last)
    items = [difference(layer.name, array, other, sample) for other in layouts]
    if not items or any(item.is_within for item in items):
        return None
    nearest = min(items, key=lambda item: item.largest)
    return replace(nearest, nodes=layer.nodes, note=f"C function {layer.function}")

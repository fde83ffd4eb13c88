"""Comparison of the operators of a normal build: on a board, by checksums; on this machine, by fused group."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlfc.archive.describe.inspect import live_during, overlap_notes
from mlfc.archive.describe.profile import profiled_factory
from mlfc.archive.details import planned_blocks
from mlfc.errors import InternalError, MlfcError
from mlfc.factory import Factory
from mlfc.micro.run.emulator import EmulatedModule
from mlfc.runtime import ProfiledModule
from mlfc.support.dtypes import to_numpy
from mlfc.support.tensor_info import Array
from mlfc.support.text import shortened
from mlfc.verify.difference import Difference, difference
from mlfc.verify.reference import Reference, WrappedReference

UNOPTIMIZED = "-O0"
_LISTED = 3


@dataclass(frozen=True)
class BoardOperator:
    """An operator of a program, identified by its output."""

    name: str  # unique name of its output, the original tensor's if possible
    shape: tuple[int, ...]
    dtype: str
    nodes: tuple[str, ...]  # the original nodes
    function: str  # the generated C function
    overlap: str = ""  # why its output shares memory with another tensor in the normal build, if it does

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
        # by the identity of the inputs, which are kept alive
        self._computed: dict[int, tuple[dict[str, Array], dict[str, Array], object]] = {}

    def prepare(self, sequence: Sequence[Mapping[str, Array]]) -> None:
        """Compute consecutive steps, which keep the model's states; `run` then returns their results."""
        self._host.reset_state()  # as the firmware does at its start
        here = [self._host.operator_outputs(given) for given in sequence]
        measured = self._firmware.measure_steps(sequence)
        count = len(self.layers)
        every = [data for step in here for data in step]
        pairs = enumerate(zip(every, measured.checksums, strict=True))
        sizes = {index % count: len(data) for index, (data, checksum) in pairs if zlib.crc32(data) != checksum}
        fetched = self._firmware.operator_outputs(sequence, sizes) if sizes else [{}] * len(sequence)
        self.unlike_host |= {name for index, name in enumerate(self.layers) if index in sizes}
        self._computed = {
            id(given): (self._arrays(host), {**self._arrays(host, there), **outputs}, given)
            for given, host, there, outputs in zip(sequence, here, fetched, measured.steps, strict=True)
        }

    def _arrays(self, here: Sequence[bytes], there: Mapping[int, bytes] | None = None) -> dict[str, Array]:
        """Return the layers by name: those in `there`, else those in `here`."""
        return {
            layer.name: layer.array((there or {}).get(index, here[index]))
            for index, layer in enumerate(self.layers.values())
        }

    def run(self, *inputs: Any) -> dict[str, Array]:
        """Return all layers and the model's outputs, computed on the board, by name."""
        (given,) = inputs
        if id(given) not in self._computed:
            self.prepare([given])
        return dict(self._computed[id(given)][1])

    def described(self, item: Difference) -> Difference:
        """Return the difference of a layer with its nodes and, if it is real, with why its output shares memory."""
        layer = self.layers.get(item.tensor)
        item = replace(item, is_unlike_host=item.tensor in self.unlike_host)
        if layer is None:
            return item
        note = item.note if item.is_within else _joined(item.note, layer.overlap)
        return replace(item, nodes=layer.nodes, note=note)

    def on_host(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return all layers of the inputs of the last runs, computed on this machine, by name."""
        return self._computed[id(inputs)][0]


class WholeSequence:
    """A model on a board that runs a sequence of steps at once, and returns their results one by one."""

    def __init__(self, firmware: EmulatedModule, sequence: Sequence[Mapping[str, Array]]) -> None:
        self.inputs, self.outputs = firmware.inputs, firmware.outputs
        self._steps = iter(firmware.measure_steps(sequence).steps)

    def run(self, *_: Any) -> dict[str, Array]:
        """Return the outputs of the next step."""
        return dict(next(self._steps))


class BesideHost(WrappedReference):
    """A reference that adds the tensors it lacks, and those not in `known`, from this machine.

    `known`: the tensors to use from `reference`; None for all.
    """

    def __init__(self, reference: Reference, compiled: BoardLayers, known: Sequence[str] | None) -> None:
        super().__init__(reference)
        self._compiled, self._known = compiled, known

    @property
    def held(self) -> Mapping[str, Array]:
        """The values of states for the next run, by input name."""
        held: Mapping[str, Array] = getattr(self._reference, "held", {})
        return held

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
    taken, found, functions = set(outputs.values()), list[BoardOperator](), factory.code.function_names
    live = live_during(planned_blocks(factory) or (), len(factory.program.calls))
    notes = overlap_notes([[block.to_json() for block in call] for call in live or ()])
    for index, call in enumerate(factory.program.calls):
        value = call.output
        own = outputs.pop(value.root, None) if value.nbytes == value.root.nbytes else None
        name = own or value.name
        if own is None and name in taken:
            name = f"{name} (operator {index})"
        taken.add(name)
        found.append(
            BoardOperator(
                name, value.shape, value.dtype, call.nodes, functions[call.kernel.name], *notes[index : index + 1]
            )
        )
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


def with_overlaps(items: Sequence[Difference], factory: Factory) -> tuple[Difference, ...]:
    """Return differences whose first notes the operators that share memory, the only cause left."""
    shared = [f"{shortened(layer.name)} {layer.overlap}" for layer in program_layers(factory) if layer.overlap]
    notes = "; ".join([*shared[:_LISTED], *([f"{len(shared) - _LISTED} more"] if shared[_LISTED:] else [])])
    return tuple(item if item.is_within else replace(item, note=_joined(item.note, notes)) for item in items)


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _group(
    layer: BoardOperator, sample: str, data: bytes, unoptimized: bytes | None, expected: Mapping[str, Array]
) -> Difference | None:
    array = layer.array(data)
    if unoptimized is not None:
        item = difference(layer.name, array, layer.array(unoptimized), sample)
        if not item.is_within:
            note = f"C function {layer.function}; correct without compiler optimizations ({UNOPTIMIZED})"
            return replace(item, nodes=layer.nodes, note=_joined(note, layer.overlap))
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
    return replace(nearest, nodes=layer.nodes, note=_joined(f"C function {layer.function}", layer.overlap))

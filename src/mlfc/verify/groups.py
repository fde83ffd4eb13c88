"""Which fused group of the code that ships is the first to differ.

The library is built again from the same C with the hook around every operator turned on. What each group computes is
compared with what the same C gives when the compiler optimizes nothing, and with the reference's tensor of that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mlfc.archive.describe.profile import profiled_factory
from mlfc.errors import MlfcError
from mlfc.factory import Factory
from mlfc.runtime import ProfiledModule
from mlfc.support.arrays import Array
from mlfc.verify.board_layers import BoardOperator, program_layers
from mlfc.verify.difference import Difference, difference
from mlfc.verify.reference import Reference

UNOPTIMIZED = "-O0"


def differing_groups(
    factory: Factory, reference: Reference, sets: Sequence[tuple[str, dict[str, Array]]]
) -> tuple[Difference, ...]:
    """Return the fused groups whose result differs, in the order of computation.

    `reference`: with all tensors.
    `sets`: named sets of inputs on which the outputs differ.

    Each difference names the group's nodes; its note names the C function, and whether the compiler's optimizer makes
    the difference. The result is empty if no group differs by itself, or the code has no hook.
    """
    shipped = profiled_factory(factory)
    if not isinstance(shipped, ProfiledModule):
        return ()
    plain = _unoptimized(factory)
    layers = program_layers(factory)
    found: dict[int, Difference] = {}
    for sample, inputs in sets:
        expected = reference.run(inputs)
        ours = shipped.operator_outputs(inputs)
        theirs = plain.operator_outputs(inputs) if plain else ()
        for index, layer in enumerate(layers):
            if index not in found:
                item = _group(layer, sample, ours[index], theirs[index] if plain else None, expected)
                if item is not None:
                    found[index] = item
    return tuple(found[index] for index in sorted(found))


def _unoptimized(factory: Factory) -> ProfiledModule | None:
    if factory.target.kind != "c":
        return None
    try:
        module = profiled_factory(factory, flags=(UNOPTIMIZED,))
    except MlfcError:  # a compiler without such a flag
        return None
    return module if isinstance(module, ProfiledModule) else None


def _group(
    layer: BoardOperator, sample: str, data: bytes, unoptimized: bytes | None, expected: Mapping[str, Array]
) -> Difference | None:
    array = layer.array(data)
    if unoptimized is not None:
        item = difference(layer.name, array, layer.array(unoptimized), sample)
        if not item.is_within:
            note = f"C function {layer.function}; without the compiler's optimizations ({UNOPTIMIZED}) it is right"
            return replace(item, nodes=layer.nodes, note=note)
    if layer.name not in expected:
        return None
    items = [difference(layer.name, array, other, sample) for other in _layouts(expected[layer.name], layer.shape)]
    if not items or any(item.is_within for item in items):
        return None
    nearest = min(items, key=lambda item: item.largest)
    return replace(nearest, nodes=layer.nodes, note=f"C function {layer.function}")


def _layouts(tensor: Array, shape: tuple[int, ...]) -> list[Array]:
    """Return a tensor of the model as compiled code may have it: as it is, or with channels last."""
    found = [tensor] if tensor.size == np.prod(shape, dtype=np.int64) else []
    if tensor.ndim >= 3:
        last = np.moveaxis(tensor, 1, -1)
        if last.shape == shape:
            found.append(last)
    return found

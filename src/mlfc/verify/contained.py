"""Sequences and optionals among a model's inputs and outputs: values made up for them, and how results compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlfc.errors import InputError
from mlfc.relay.ir import Call, IRModule, Var, operator
from mlfc.relay.op import Kind
from mlfc.relay.visitor import post_order
from mlfc.runtime.tensor.arrays import fill
from mlfc.runtime.tensor.npz import flattened
from mlfc.support.arrays import Array
from mlfc.support.containers import ContainerInfo
from mlfc.support.tensor_info import TensorInfo
from mlfc.verify.inputs import CORNERS, EXTENTS, corner_arrays, sample_extents

EMPTY = "empty"
VARIED, ALIKE, EQUAL = STYLES = ("varied", "alike", "equal")
"""How open extents are made up: each another one, those of one sequence as one tensor, all as one number."""
_LENGTHS = (2, 1, 4, 3, 7)

Sets = list[tuple[str, dict[str, Any]]]


# Inputs


@dataclass(frozen=True)
class Asked:
    """The inputs that are to be made up.

    Attributes
    ----------
    infos : sequence of TensorInfo
    bounds : mapping of str to (int, int)
        The least and the largest value of each open extent of tensors.
    elements : mapping of str to tuple of int or None
        The extents of the tensors in sequences and optionals, as far as they are known.
    samples, seed : int
    """

    infos: Sequence[TensorInfo]
    bounds: Mapping[str, tuple[int, int]]
    elements: Mapping[str, Sequence[int | None]]
    samples: int
    seed: int


def element_shapes(module: IRModule) -> dict[str, tuple[int | None, ...]]:
    """Return the extents of the tensors in the model's sequences and optionals, None for open ones, by input."""
    names = {container.parts[-1]: container.name for container in module.containers if not container.is_output}
    found = {}
    for node in post_order(module.main.body) if names else ():
        called = operator(node)
        if isinstance(node, Call) and called is not None and called.kind is Kind.LIST and "shape" in node.attrs:
            data = node.args[-1] if node.args else None
            if isinstance(data, Var) and data.name in names:
                shape = node.attrs["shape"]
                found[names[data.name]] = tuple(extent if isinstance(extent, int) else None for extent in shape)
    return found


def made_up_sets(asked: Asked, accepts: Callable[[Mapping[str, Any]], bool]) -> tuple[Sets, int]:
    """Return made-up sets of inputs that the reference accepts, and how many it does not.

    Which positions a sequence has and which extents go together is written nowhere, so the way is taken in which the
    most sets are accepted. The last set has empty sequences, and no value where that is possible.

    Raises InputError if no set is accepted.
    """
    best: Sets = []
    count = 0
    for style in STYLES:
        sets = [*_samples(asked, style)]
        count = len(sets)
        accepted = [one for one in sets if accepts(one[1])]
        if len(accepted) > len(best):
            best = accepted
        if len(best) == count:
            break
    if not best and count > 1:
        names = [info.name for info in asked.infos if isinstance(info, ContainerInfo)]
        raise InputError(
            f"the reference accepts none of {count} made-up sets of inputs",
            place=names[0],
            next_step=f"Give inputs: --inputs FILE.npz, where the tensors of '{names[0]}' are"
            f" {', '.join(_keys(asked.infos, names[0]))}",
        )
    return best, count - len(best)


def _keys(infos: Sequence[TensorInfo], name: str) -> tuple[str, ...]:
    info = next(info for info in infos if info.name == name)
    return (f"{name}.0", f"{name}.1", "...") if isinstance(info, ContainerInfo) and info.is_sequence else (name,)


def _samples(asked: Asked, style: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for index in range(asked.samples):
        infos = _tensors(asked, style, index)
        yield f"random {index}", _formed(asked.infos, fill(infos, "random", asked.seed + index))
    for index, title in enumerate(CORNERS):
        yield title, _formed(asked.infos, corner_arrays(_tensors(asked, style, index), title))
    tensors = [info for info in _tensors(asked, style, 0) if any(info.name == one.name for one in asked.infos)]
    optional = {info.name for info in asked.infos if isinstance(info, ContainerInfo)}
    yield EMPTY, _formed(asked.infos, fill([info for info in tensors if info.name not in optional], "random"))


def _tensors(asked: Asked, style: str, index: int) -> list[TensorInfo]:
    """Return the tensors of one set: of sequences and optionals those that are in them."""
    if style == EQUAL:
        size = EXTENTS[index % len(EXTENTS)]
        extents = {name: max(low, min(high, size)) for name, (low, high) in asked.bounds.items()}
    else:
        extents = sample_extents(asked.bounds, index)
    found: list[TensorInfo] = []
    for info in asked.infos:
        if not isinstance(info, ContainerInfo):
            found.append(info.at(extents))
            continue
        known = asked.elements.get(info.name, (None,) * len(info.shape))
        for element in range(_LENGTHS[index % len(_LENGTHS)]) if info.is_sequence else (None,):
            shape = tuple(
                _size(style, index, element or 0, axis) if extent is None else extent
                for axis, extent in enumerate(known)
            )
            found.append(replace(info.element(element), shape=shape))
    return found


def _size(style: str, index: int, element: int, axis: int) -> int:
    step = {VARIED: element + axis + 1, ALIKE: axis, EQUAL: 0}[style]
    return EXTENTS[(index + step) % len(EXTENTS)]


def _formed(infos: Sequence[TensorInfo], tensors: Mapping[str, Array]) -> dict[str, Any]:
    """Return values of inputs, made of their tensors; those of a sequence ``s`` are ``s.0``, ``s.1``, ..."""
    found: dict[str, Any] = {}
    for info in infos:
        if isinstance(info, ContainerInfo) and info.is_sequence:
            items: list[Array] = []
            while f"{info.name}.{len(items)}" in tensors:
                items.append(tensors[f"{info.name}.{len(items)}"])
            found[info.name] = None if info.may_be_none and not items else items
        else:
            found[info.name] = tensors.get(info.name)
    return found


# Outputs


def unlike(ours: Any, theirs: Any) -> str:
    """Return how two results are no values of one form, such as ``2 tensors against 3``; empty if they are."""
    one, other = _form(ours), _form(theirs)
    return "" if one == other else f"{one} against {other}"


def _form(value: Any) -> str:
    if value is None:
        return "no value"
    if not isinstance(value, list):
        return "a tensor"
    return f"a sequence of {len(value):,} tensor{'' if len(value) == 1 else 's'}"


def pairs(name: str, ours: Any, theirs: Any) -> list[tuple[str, Array, Array]]:
    """Return the tensors of two results of one form, with their names."""
    others = flattened({name: theirs})
    return [(part, array, others[part]) for part, array in flattened({name: ours}).items()]

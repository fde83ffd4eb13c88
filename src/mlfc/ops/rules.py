"""Pieces that several operator families share: type rules and checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlfc.errors import TypeCheckError
from mlfc.relay.ir import TensorType, Type


def tensors(name: str, types: Sequence[Type]) -> list[TensorType]:
    """Return the types if all are tensors, else raise TypeCheckError."""
    for index, kind in enumerate(types):
        if not isinstance(kind, TensorType):
            raise TypeCheckError(f"{name}: argument {index} must be a tensor, not {kind}")
    return list(types)  # type: ignore[arg-type]  # checked just above


def broadcast_shape(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of numpy broadcasting; raise TypeCheckError where the shapes do not fit."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    result = []
    for extents in zip(*padded, strict=True):
        wide = {extent for extent in extents if extent != 1}
        if len(wide) > 1:
            raise TypeCheckError(f"{name}: shapes {' and '.join(map(str, shapes))} do not broadcast")
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def normalized_axis(name: str, axis: int, rank: int) -> int:
    """Return `axis` counted from the front; raise TypeCheckError outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise TypeCheckError(f"{name}: axis {axis} is outside a tensor of {rank} dimensions")
    return axis % rank


def normalized_axes(name: str, axis: Any, rank: int, *, exclude: bool = False) -> tuple[int, ...]:
    """Return sorted axes from None (all), an int or a sequence; `exclude` gives the others."""
    given = range(rank) if axis is None else (axis,) if isinstance(axis, int) else axis
    axes = {normalized_axis(name, item, rank) for item in given}
    return tuple(index for index in range(rank) if (index in axes) != exclude)

"""The inputs on which models are compared: random and extreme ones, or the user's from a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.errors import InputError
from mlfc.relay.ir import IRModule, TensorType
from mlfc.runtime.tensor.arrays import fill
from mlfc.runtime.tensor.npz import read_batches, read_npy, read_npz
from mlfc.support.arrays import Array
from mlfc.support.containers import ContainerInfo
from mlfc.support.dims import substituted, symbols_of
from mlfc.support.plain_file import read_small
from mlfc.support.tensor_info import TensorInfo
from mlfc.verify.indices import index_ends

_MOST_LABELS = 1 << 27  # bytes
_MOST_BYTES = 1 << 31
EXTENTS = (2, 1, 5, 16, 7)
"""Of open dimensions that are made up."""
DRAWS = ((1, None), (1, 2), (32, None), (512, None), (32, 2), (512, 2), (1, 1))
"""Pairs of a factor of `EXTENTS` and an end of integers, tried in order until the reference accepts the inputs."""
_MOST_DRAWN = 1 << 26  # bytes of one set with larger sizes
CORNERS = ("minimum", "maximum", "zero point")
_WHY = {
    "random": "seeded values over the whole range of the inputs",
    "minimum": "every element is the lowest: accumulators and saturation at their limits",
    "maximum": "every element is the highest: accumulators and saturation at their limits",
    "zero point": "every element stands for zero: sums and ranges vanish, which is where quotients go wrong",
    "empty": "sequences without tensors, optionals without a value",
}


def read_sets(path: Path, infos: Sequence[TensorInfo]) -> list[tuple[str, dict[str, Any]]]:
    """Read sets of inputs, each with a name: ``set 0``, ``set 1``, ...

    `path`: ``.npz``: an array for each input, by name or position, of the input's shape, or of as many of them along a
        leading axis. ``.npy``: the same for a model with one input. Any other name: the bytes of the inputs in order,
        row by row in the machine's byte order, one set behind the other. A model with sequences or optionals takes one
        set, from ``.npz``: the tensors of a sequence ``s`` are ``s.0``, ``s.1``, ...

    Raises InputError or ProblemsError if they do not fit.
    """
    if any(isinstance(info, ContainerInfo) for info in infos):
        if path.suffix != ".npz":
            raise InputError(
                "inputs that are sequences or optionals are read from .npz alone",
                place=str(path),
                next_step="Write .npz: numpy.savez(path, **{'s.0': array, 's.1': array}) for a sequence s",
            )
        return [("set 0", read_npz(path, infos))]
    batches: Mapping[str, Array]
    if path.suffix == ".npz":
        batches = read_batches(path, infos)
    elif path.suffix == ".npy":
        if len(infos) != 1:
            raise InputError(
                f"the model has {len(infos)} inputs, a .npy file one",
                place=str(path),
                next_step="Write .npz: numpy.savez(path, **{name: array})",
            )
        batches = {infos[0].name: read_npy(path, infos[0])}
    else:
        batches = _raw(path, infos)
    counts = {len(array) for array in batches.values()}
    if len(counts) > 1:
        found = ", ".join(f"{name}: {len(array)}" for name, array in batches.items())
        raise InputError(f"the inputs have different numbers of sets: {found}", place=str(path))
    return [(f"set {index}", {name: array[index, ...] for name, array in batches.items()}) for index in range(*counts)]


def read_labels(path: Path, count: int) -> Array:
    """Read `count` class labels: a ``.npy`` array of integers, or text with one number a line.

    Raises InputError if they are not as many, or no integers.
    """
    labels = _numbers(path) if path.suffix != ".npy" else read_npy(path, None)
    if labels.dtype.kind not in "iu" or labels.size != count:
        raise InputError(
            f"expected {count:,} integers, one for each set of inputs, got {labels.size:,} of {labels.dtype}",
            place=str(path),
        )
    return labels.reshape(-1).astype(np.int64)


def _numbers(path: Path) -> Array:
    words = read_small(path, _MOST_LABELS, partial(InputError, place=str(path))).split()
    if not all(re.fullmatch(rb"[+-]?[0-9]{1,18}", word) for word in words):
        raise InputError("labels are whole numbers, one a line", place=str(path), next_step="Or write a .npy array")
    return np.asarray([int(word) for word in words], np.int64)


def _raw(path: Path, infos: Sequence[TensorInfo]) -> Mapping[str, Array]:
    size = sum(info.nbytes for info in infos)
    read = read_small(path, _MOST_BYTES, partial(InputError, place=str(path)))
    total = len(read)
    if size == 0 or total == 0 or total % size:
        raise InputError(
            f"expected a multiple of {size:,} bytes, the size of one set of inputs, got {total:,} bytes",
            place=str(path),
            next_step="Write .npz: numpy.savez(path, **{name: array})",
        )
    data = np.frombuffer(read, np.uint8).reshape(total // size, size)
    batches, start = {}, 0
    for info in infos:
        part = np.ascontiguousarray(data[:, start : start + info.nbytes])
        batches[info.name] = part.view(info.numpy_dtype).reshape(len(data), *info.shape)
        start += info.nbytes
    return batches


def sample_inputs(
    infos: Sequence[TensorInfo],
    samples: int,
    seed: int,
    bounds: Mapping[str, tuple[int, int]] | None = None,
    module: IRModule | None = None,
    draw: tuple[int, int | None] = DRAWS[0],
) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield named sets of inputs: `samples` random ones, then the corners of the value range.

    `bounds` are the least and largest values of open extents, of which each set has others. `module` knows extents
    that follow from these, and the tables that integers are places in. `draw` is one of `DRAWS`; sets that would be
    very large are left out for factors above 1.
    """
    factor, end = draw
    ends = index_ends(module) if module else {}
    if end is not None:
        ends = {info.name: min(end, ends.get(info.name, end)) for info in infos}
    for index, title in enumerate((*(f"random {index}" for index in range(samples)), *CORNERS)):
        shaped = _shaped(infos, bounds, module, index if index < samples else index - samples, factor)
        if factor > 1 and sum(info.nbytes for info in shaped) > _MOST_DRAWN:
            continue
        yield (
            title,
            fill(shaped, "random", seed + index, ends) if index < samples else corner_arrays(shaped, title, ends),
        )


def corner_arrays(infos: Sequence[TensorInfo], title: str, ends: Mapping[str, int] | None = None) -> dict[str, Array]:
    """Return arrays that hold one of the `CORNERS` of the value range; places stay below the numbers in `ends`."""
    return {info.name: np.full(info.shape, _corner(info, title, ends or {}), info.numpy_dtype) for info in infos}


def _shaped(
    infos: Sequence[TensorInfo],
    bounds: Mapping[str, tuple[int, int]] | None,
    module: IRModule | None,
    index: int,
    factor: int,
) -> Sequence[TensorInfo]:
    if not bounds:
        return infos
    values = sample_extents(bounds, index, factor)
    types = {param.name: param.type for param in module.main.params} if module else {}
    return [_at(info, types.get(info.name), values) for info in infos]


def _at(info: TensorInfo, kind: object, values: Mapping[str, int]) -> TensorInfo:
    """Return a tensor where open extents have these values; its type knows those that follow from others."""
    if info.is_static or not isinstance(kind, TensorType):
        return info.at(values)
    known = {symbol: values[symbol.name] for symbol in symbols_of(kind.shape) if symbol.name in values}
    return replace(info, shape=tuple(substituted(extent, known) for extent in kind.shape))


def sample_extents(bounds: Mapping[str, tuple[int, int]], index: int, factor: int = 1) -> dict[str, int]:
    """Return values of dynamic dimensions for a sample: small ones, odd and even, within their bounds.

    `factor` multiplies those that are not batches by their name.
    """
    return {
        name: max(low, min(high, EXTENTS[(index + place) % len(EXTENTS)] * (1 if "batch" in name.lower() else factor)))
        for place, (name, (low, high)) in enumerate(bounds.items())
    }


def why(sample: str) -> str | None:
    """Return what a set of `sample_inputs` is for; None for sets of a user's file."""
    return _WHY.get("random" if sample.startswith("random ") else sample)


def _corner(info: TensorInfo, title: str, ends: Mapping[str, int]) -> int:
    if title == "zero point":
        return info.zero_point or 0
    kind = info.numpy_dtype.kind
    if kind not in "iu":
        return 1 if title == "maximum" else 0 if kind == "b" else -1
    if info.numpy_dtype.itemsize > 2 and info.scale is None:
        # indices: an extreme one would lie outside of what it points into
        return min(1, ends.get(info.name, 2) - 1) if title == "maximum" else 0
    limits = np.iinfo(info.numpy_dtype)
    return int(limits.max if title == "maximum" else limits.min)

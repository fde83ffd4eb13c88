"""Inputs for comparisons, tensors or sequences and optionals: generated, or read from a user's file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.archive.read.load import artifact_kind
from mlfc.errors import InputError, RunError
from mlfc.relay.ir import Call, Constant, Expr, IRModule, TensorType, Var, has_trait, operator, tensor_type
from mlfc.relay.op import Elements, Kind, Trait
from mlfc.relay.visitor import post_order
from mlfc.runtime.tensor.arrays import fill, quantized
from mlfc.runtime.tensor.npz import flattened, read_batches, read_npy, read_npz
from mlfc.support.dims import substituted, symbols_of
from mlfc.support.plain_file import read_small
from mlfc.support.tensor_info import Array, ContainerInfo, TensorInfo
from mlfc.verify.media import MEDIA, USUAL, ImageScaling, media_sets

_IN_FOLDERS = (".npz", ".npy", *MEDIA)
_FEW = 8  # elements of an input that may be a setting
_MOST_LABELS = 1 << 27  # bytes
_MOST_BYTES = 1 << 31
EXTENTS = (2, 1, 5, 16, 7)
"""Generated sizes of dynamic dimensions."""
DRAWS = ((1, None), (1, 2), (32, None), (512, None), (32, 2), (512, 2), (1, 1))
"""Pairs of a factor for `EXTENTS` and an exclusive bound for integers, tried until the reference accepts the inputs."""
_MOST_DRAWN = 1 << 26  # bytes of one set with a factor above 1
_KEEPING = (Elements.SAME, Elements.CONVERTED, Elements.MOVED)
CORNERS = ("minimum", "maximum", "zero point")
_WHY = {
    "random": "seeded values over the whole range of the inputs, or below the size of the tables they index",
    "minimum": "all elements are the lowest value: tests accumulators and saturation at their limits",
    "maximum": "all elements are the highest value: tests accumulators and saturation at their limits",
    "zero point": "all elements represent zero: sums and ranges vanish, which tests divisions",
    "empty": "sequences without tensors, optionals without a value",
}
EMPTY = "empty"
VARIED, ALIKE, EQUAL = STYLES = ("varied", "alike", "equal")
"""Generation of dynamic dimensions: all different, equal within a sequence, or all equal."""
_LENGTHS = (2, 1, 4, 3, 7)

Sets = list[tuple[str, dict[str, Any]]]


def read_sets(
    path: Path, infos: Sequence[TensorInfo], scaling: ImageScaling | None = None, *, real: bool = False
) -> list[tuple[str, dict[str, Any]]]:
    """Read named input sets: ``set 0``, ``set 1``, ...; those of images and folders have the names of their files.

    `path`: ``.npz``: an array for each input, by name or position, of the input's shape, or of as many of them along a
        leading axis. ``.npy``: the same for a model with one input. An image or WAV file, for a model with one input of
        such a shape. A folder of these files. Any other name: the bytes of the inputs in order, row-major in the
        machine's byte order, one set after another. For a model with sequences or optionals, only one set from
        ``.npz`` is supported: the tensors of a sequence ``s`` are ``s.0``, ``s.1``, ...
    `scaling`: of pixels and samples; default: `ImageScaling()`.
    `real`: arrays of files have real numbers, which are quantized for quantized inputs.

    Raises InputError or ProblemsError if the arrays do not match the inputs.
    """
    return [*iter_sets(path, infos, scaling, real=real)]


def iter_sets(
    path: Path, infos: Sequence[TensorInfo], scaling: ImageScaling | None = None, *, real: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the sets of `read_sets`; the files of a folder are read one by one."""
    if path.is_dir():
        files = sorted(item for item in path.rglob("*") if item.suffix.lower() in _IN_FOLDERS and item.is_file())
        if not files:
            cause = f"no {', '.join(_IN_FOLDERS)} file found in the folder"
            raise InputError(cause, place=str(path), next_step="Name another")
        for file in files:
            # of a file with one set, the name is enough
            sets = list(iter_sets(file, infos, scaling, real=real))
            yield from ((file.name if len(sets) == 1 else f"{file.name} {name}", given) for name, given in sets)
    elif path.suffix.lower() in MEDIA:
        yield from media_sets(path, infos, scaling or USUAL)
    else:
        known = {info.name: info for info in infos}
        for name, given in _array_sets(path, infos, real=real):
            yield name, {key: quantized(value, known[key]) for key, value in given.items()} if real else given


def _array_sets(path: Path, infos: Sequence[TensorInfo], *, real: bool) -> list[tuple[str, dict[str, Any]]]:
    if any(isinstance(info, ContainerInfo) for info in infos):
        if path.suffix != ".npz":
            raise InputError(
                "sequence and optional inputs require a .npz file",
                place=str(path),
                next_step="Write .npz: numpy.savez(path, **{'s.0': array, 's.1': array}) for a sequence s",
            )
        return [("set 0", read_npz(path, infos))]
    batches: dict[str, Array]
    if path.suffix == ".npz":
        batches = read_batches(path, infos, real=real)
    elif path.suffix == ".npy":
        if len(infos) != 1:
            raise InputError(
                f"the model has {len(infos)} inputs, but a .npy file contains one",
                place=str(path),
                next_step="Write .npz: numpy.savez(path, **{name: array})",
            )
        batches = {infos[0].name: read_npy(path, infos[0], real=real)}
    elif real:
        cause = f"expected .npz or .npy for real values, got {path.suffix or 'raw bytes'}"
        raise InputError(cause, place=str(path), next_step="Remove --real")
    else:
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
    counts = {len(array) for array in batches.values()}
    if len(counts) > 1:
        found = ", ".join(f"{name}: {len(array)}" for name, array in batches.items())
        raise InputError(f"the inputs have different numbers of sets: {found}", place=str(path))
    return [(f"set {index}", {name: array[index, ...] for name, array in batches.items()}) for index in range(*counts)]


def read_labels(path: Path, count: int | None = None) -> Array:
    """Read `count` class labels, any number if None: a ``.npy`` array of integers, or text with one number a line.

    Raises InputError if their number differs, or they are not integers.
    """
    if path.suffix == ".npy":
        labels = read_npy(path, None)
    else:
        words = read_small(path, _MOST_LABELS, partial(InputError, place=str(path))).split()
        if not all(re.fullmatch(rb"[+-]?[0-9]{1,18}", word) for word in words):
            raise InputError("expected integer labels, one a line", place=str(path), next_step="Or write a .npy array")
        labels = np.asarray([int(word) for word in words], np.int64)
    if labels.dtype.kind not in "iu" or count not in (None, labels.size):
        wanted = "" if count is None else f"{count:,} "
        raise InputError(
            f"expected {wanted}integers, one for each set of inputs, got {labels.size:,} of {labels.dtype}",
            place=str(path),
        )
    return labels.reshape(-1).astype(np.int64)


@contextmanager
def naming_inputs(path: Path, infos: Sequence[TensorInfo], *, is_generated: bool) -> Iterator[None]:
    """Add the file to the error of a run that rejects its inputs, and the generated inputs that may be settings."""
    try:
        yield
    except (InputError, RunError) as error:
        if str(path) not in (error.place or ""):
            error.place = f"{path}: {error.place}" if error.place else str(path)
        small = (info for info in infos if info.is_static and prod(info.shape) <= _FEW)
        names = [info.name for info in small if info.dtype in ("int32", "int64", "bool")]
        if is_generated and names:
            listed = ", ".join(map(repr, names))
            error.next_step = f"The values of {listed} were generated; pass accepted ones: --inputs FILE.npz"
            if artifact_kind(path) == "model":
                error.next_step += f" or --value {names[0]}=..."
        raise


def sample_inputs(
    infos: Sequence[TensorInfo],
    samples: int,
    seed: int,
    bounds: Mapping[str, tuple[int, int]] | None = None,
    module: IRModule | None = None,
    draw: tuple[int, int | None] = DRAWS[0],
    params: Mapping[str, Array] | None = None,
) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield named input sets: `samples` random ones, then the corners of the value range.

    `bounds` are the bounds of dynamic dimensions, which vary between sets. From `module` and its weights `params`,
    dependent dimensions and the tables that integers index are derived. `draw` is one of `DRAWS`; for factors above 1,
    very large sets are skipped.
    """
    factor, end = draw
    ends = index_ends(module, params) if module else {}
    if end is not None:
        ends = {info.name: min(end, ends.get(info.name, end)) for info in infos}
    types = {param.name: param.type for param in module.main.params} if module else {}
    for index, title in enumerate((*(f"random {index}" for index in range(samples)), *CORNERS)):
        shaped = infos
        if bounds:
            values = sample_extents(bounds, index if index < samples else index - samples, factor)
            shaped = [_at(info, types.get(info.name), values) for info in infos]
        if factor > 1 and sum(info.nbytes for info in shaped) > _MOST_DRAWN:
            continue
        is_random = index < samples
        yield title, fill(shaped, "random", seed + index, ends) if is_random else corner_arrays(shaped, title, ends)


def corner_arrays(infos: Sequence[TensorInfo], title: str, ends: Mapping[str, int] | None = None) -> dict[str, Array]:
    """Return arrays filled with one of the `CORNERS` of the value range; indices stay below the bounds in `ends`."""
    found = {}
    for info in infos:
        kind, is_largest = info.numpy_dtype.kind, title == "maximum"
        if title == "zero point":
            value = info.zero_point or 0
        elif kind not in "iu":
            value = 1 if is_largest else 0 if kind == "b" else -1
        elif info.numpy_dtype.itemsize > 2 and info.scale is None:
            # indices: extreme ones would be out of range
            value = min(1, (ends or {}).get(info.name, 2) - 1) if is_largest else 0
        else:
            limits = np.iinfo(info.numpy_dtype)
            value = int(limits.max if is_largest else limits.min)
        found[info.name] = np.full(info.shape, value, info.numpy_dtype)
    return found


def _at(info: TensorInfo, kind: object, values: Mapping[str, int]) -> TensorInfo:
    """Return a tensor with values for its dynamic dimensions; `kind` defines dependent ones."""
    if info.is_static or not isinstance(kind, TensorType):
        return info.at(values)
    known = {symbol: values[symbol.name] for symbol in symbols_of(kind.shape) if symbol.name in values}
    return replace(info, shape=tuple(substituted(extent, known) for extent in kind.shape))


def sample_extents(bounds: Mapping[str, tuple[int, int]], index: int, factor: int = 1) -> dict[str, int]:
    """Return small values, odd and even, of dynamic dimensions for a sample, within their bounds.

    `factor` multiplies all dimensions without ``batch`` in their name.
    """
    return {
        name: max(low, min(high, EXTENTS[(index + place) % len(EXTENTS)] * (1 if "batch" in name.lower() else factor)))
        for place, (name, (low, high)) in enumerate(bounds.items())
    }


def why(sample: str) -> str | None:
    """Return the purpose of an input set of `sample_inputs`; None for sets of a user's file."""
    return _WHY.get("random" if sample.startswith("random ") else sample)


def index_ends(module: IRModule, params: Mapping[str, Array] | None = None) -> dict[str, int]:
    """Return the index bound of inputs that index tables: the size of the smallest table, or 2 for masks.

    Inputs compared with all positions, for example to encode them one-hot, count too. Masks are recognized by the
    exporters' name: ``attention_mask``. Other inputs are omitted.
    """
    found = {param.name: 2 for param in module.main.params if "mask" in param.name.lower()}
    for node in post_order(module.main.body):
        if not isinstance(node, Call):
            continue
        places, sizes = None, []
        if has_trait(node, Trait.PICK | Trait.PUT) and isinstance(node.args[0].type, TensorType):
            table, places = node.args[0].type, _source(node.args[1])
            sizes = [size for size in table.shape[_axes(node)] if isinstance(size, int)]
        elif has_trait(node, Trait.COMPARISON):
            places = _source(node.args[0]) or _source(node.args[1])
            tables = [_data(arg, params or {}) for arg in node.args]
            sizes = [table.size for table in tables if table is not None and _are_positions(table)]
        if places is not None and sizes:
            found[places] = min(*sizes, found.get(places, sizes[0]))
    return found


def _data(expr: Expr, params: Mapping[str, Array]) -> Array | None:
    if isinstance(expr, Constant):
        return expr.data
    return params.get(expr.name) if isinstance(expr, Var) else None


def _are_positions(data: Array) -> bool:
    return data.size > 1 and np.array_equal(data.ravel(), np.arange(data.size))


def _axes(lookup: Call) -> slice:
    """Return the axes of the table that the indices address."""
    if not has_trait(lookup, Trait.TUPLES):
        axis = lookup.attrs.get("axis", 0)
        return slice(None) if axis is None else slice(axis, axis + 1 or None)
    first, places = lookup.attrs.get("batch_dims", 0), tensor_type(lookup.args[1]).shape[0]
    return slice(first, first + places if isinstance(places, int) else None)


def _source(expr: Expr) -> str | None:
    """Return the name of the input whose elements `expr` has, possibly with negative indices made positive."""
    while isinstance(expr, Call):
        called = operator(expr)
        if has_trait(expr, Trait.SELECTION):
            expr = expr.args[2]
        elif called is not None and called.elements in _KEEPING:
            expr = expr.args[0]
        else:
            return None
    return expr.name if isinstance(expr, Var) else None


@dataclass(frozen=True)
class Asked:
    """Specification of inputs to generate."""

    infos: Sequence[TensorInfo]
    bounds: Mapping[str, tuple[int, int]]  # bounds of the dynamic dimensions of tensors
    elements: Mapping[str, Sequence[int | None]]  # static dimensions of the tensors in sequences and optionals
    samples: int
    seed: int


def element_shapes(module: IRModule) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes of the tensors in sequence and optional inputs, with None for dynamic dimensions."""
    names = {container.parts[-1]: container.name for container in module.containers if not container.is_output}
    found = {}
    for node in post_order(module.main.body) if names else ():
        called = operator(node)
        if isinstance(node, Call) and called is not None and called.kind is Kind.LIST and "shape" in node.attrs:
            data, shape = node.args[-1] if node.args else None, node.attrs["shape"]
            if isinstance(data, Var) and data.name in names:
                found[names[data.name]] = tuple(extent if isinstance(extent, int) else None for extent in shape)
    return found


def made_up_sets(asked: Asked, accepts: Callable[[Mapping[str, Any]], bool]) -> tuple[Sets, int]:
    """Return generated input sets that the reference accepts, and the number that it rejects.

    The model does not declare the lengths of sequences and which dimensions must be equal, so the style with the most
    accepted sets is used. The last set has empty sequences, and optionals without a value.

    Raises InputError if no set is accepted.
    """
    best: Sets = []
    count = 0
    for style in STYLES:
        sets = [*_samples(asked, style)]
        count = len(sets)
        best = max(best, [one for one in sets if accepts(one[1])], key=len)
        if len(best) == count:
            break
    if not best and count > 1:
        info = next(info for info in asked.infos if isinstance(info, ContainerInfo))
        keys = f"{info.name}.0, {info.name}.1, ..." if info.is_sequence else info.name
        raise InputError(
            f"the reference rejects all {count} generated input sets",
            place=info.name,
            next_step=f"Provide inputs: --inputs FILE.npz, where the tensors of '{info.name}' are {keys}",
        )
    return best, count - len(best)


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
    """Return the tensors of one set, including those in sequences and optionals."""
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
            first, step = {VARIED: (index + (element or 0) + 1, 1), ALIKE: (index, 1), EQUAL: (index, 0)}[style]
            sizes = (EXTENTS[(first + step * axis) % len(EXTENTS)] for axis in range(len(known)))
            shape = tuple(size if extent is None else extent for extent, size in zip(known, sizes, strict=True))
            found.append(replace(info.element(element), shape=shape))
    return found


def _formed(infos: Sequence[TensorInfo], tensors: Mapping[str, Array]) -> dict[str, Any]:
    """Return the values of inputs from their tensors; those of a sequence ``s`` are ``s.0``, ``s.1``, ..."""
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


def unlike(ours: Any, theirs: Any) -> str:
    """Return how the forms of two results differ, such as ``2 tensors against 3``; empty if they are equal."""
    forms = ["no value" if value is None else "a tensor" for value in (ours, theirs)]
    for place, value in enumerate((ours, theirs)):
        if isinstance(value, list):
            forms[place] = f"a sequence of {len(value):,} tensor{'' if len(value) == 1 else 's'}"
    return "" if forms[0] == forms[1] else " against ".join(forms)


def pairs(name: str, ours: Any, theirs: Any) -> list[tuple[str, Array, Array]]:
    """Return the tensors of two results of equal form, with their names."""
    others = flattened({name: theirs})
    return [(part, array, others[part]) for part, array in flattened({name: ours}).items()]

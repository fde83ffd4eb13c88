"""Tensors in ``.npz`` files: untrusted on reading, deterministic on writing."""

from __future__ import annotations

import io
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from mlfc.errors import InputError, ProblemsError
from mlfc.runtime.tensor.arrays import takes_real
from mlfc.support.atomic import atomic_file
from mlfc.support.dtypes import SCALARS
from mlfc.support.plain_file import open_plain
from mlfc.support.tensor_info import Array, ContainerInfo, TensorInfo

_MAX_MEMBERS = 10_000
# limit of bytes of all sets of one input in a file
_MAX_BATCH = 1 << 31
# limits of decompressed sets: this size, or this multiple of their bytes in the file
_ALWAYS_EXPANDED = 64 << 20
_MAX_EXPANSION = 100
_LENGTHS = {(1, 0): struct.Struct("<H"), (2, 0): struct.Struct("<I")}
_LONGEST_HEADER = 4096
# zipfile raises NotImplementedError for unsupported compression and RuntimeError for encrypted files
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, TypeError, KeyError, RuntimeError, OSError)


def read_npz(path: str | os.PathLike[str], infos: Sequence[TensorInfo]) -> dict[str, Any]:
    """Read the inputs of a model.

    A sequence ``s`` is stored as the arrays ``s.0``, ``s.1``, ...; an empty one has no arrays. An optional without a
    value is omitted. An optional sequence without a value is omitted too, so an empty one cannot be stored.

    Keys are tensor names; ``arr_0``, ``arr_1``, ..., which ``numpy.savez`` writes for unnamed arrays, bind by position.
    Arrays of another dtype or shape are rejected by their headers: their data is never read. Raises InputError or
    ProblemsError with all faults at once: missing and unknown keys, dtypes, shapes, damaged members.
    """
    contained = [info for info in infos if isinstance(info, ContainerInfo)]
    elements: dict[str, list[TensorInfo]] = {}
    if contained:
        with _opened(path) as (_, members):
            elements = {info.name: _elements(info, members) for info in contained}
    tensors = [info for info in infos if not isinstance(info, ContainerInfo)]
    every = [*tensors, *(part for parts in elements.values() for part in parts)]
    arrays = {name: array.reshape(array.shape[1:]) for name, array in _arrays(path, every, batched=False).items()}
    for info in contained:
        found = [arrays.pop(part.name) for part in elements[info.name]]
        if info.is_sequence:
            arrays[info.name] = None if info.may_be_none and not found else found  # type: ignore[assignment]
        else:
            arrays[info.name] = found[0] if found else None  # type: ignore[assignment]
    return arrays


def _elements(info: ContainerInfo, names: Collection[str]) -> list[TensorInfo]:
    """Return the tensors of a sequence or optional that a file contains."""
    if not info.is_sequence:
        return [info.element()] if info.name in names else []
    count = 0
    while f"{info.name}.{count}" in names:
        count += 1
    return [info.element(index) for index in range(count)]


def flattened(values: Mapping[str, Any]) -> dict[str, Array]:
    """Return arrays by their names in a file: those of a sequence ``s`` are ``s.0``, ``s.1``, ..."""
    found: dict[str, Array] = {}
    for name, value in values.items():
        if isinstance(value, list):
            found.update((f"{name}.{index}", item) for index, item in enumerate(value))
        elif value is not None:
            found[name] = value
    return found


def read_batches(path: str | os.PathLike[str], infos: Sequence[TensorInfo], *, real: bool = False) -> dict[str, Array]:
    """Read several sets of a model's inputs, along the first axis of each array; see `read_npz`.

    In the file, sets are along an extra leading axis, or along the first axis of an input if its size is 1. With
    `real`, float and quantized inputs accept numbers of any dtype.
    """
    return _arrays(path, infos, batched=True, real=real)


def read_any_npz(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Read numeric arrays of any shape by name; raise InputError for anything else."""
    arrays: dict[str, Array] = {}
    with _opened(path) as (archive, members):
        for name, member in members.items():
            try:
                with archive.open(member) as file:
                    arrays[name] = _numbers(file, _most_bytes(member))
            except (*_BROKEN, MemoryError) as error:
                raise InputError(f"the array '{name}' cannot be read: {error}", place=str(path)) from error
    return arrays


def read_npy(path: str | os.PathLike[str], info: TensorInfo | None, *, real: bool = False) -> Array:
    """Read sets of one input from a ``.npy`` file, as `read_batches`; without `info`, any numeric array unchanged."""
    try:
        with open_plain(path) as file:
            if info is not None:
                return _read(file, info, batched=True, real=real)
            return _numbers(file, _MAX_BATCH)
    except InputError as error:  # of the array's contents, which do not match the input
        error.place = f"{path}: {error.place}"
        raise
    except (*_BROKEN, MemoryError) as error:
        raise InputError(f"cannot be read as .npy: {error}", place=str(path)) from error


def _arrays(
    path: str | os.PathLike[str], infos: Sequence[TensorInfo], *, batched: bool, real: bool = False
) -> dict[str, Array]:
    """Return the arrays of a file, each with a leading axis of sets."""
    problems: list[InputError] = []
    arrays: dict[str, Array] = {}
    with _opened(path) as (archive, members):
        named = _bound(members, infos)
        for key in members:
            if key not in named:
                known = ", ".join(str(info) for info in infos) or "none"
                problems.append(InputError("the model has no such input", place=key, next_step=f"It has: {known}"))
        by_name = {info.name: info for info in infos}
        for info in infos:
            if info.name not in named.values():
                problems.append(InputError("the input is missing", place=info.name, next_step=f"Add {info}"))
        for key, name in named.items():
            try:
                with archive.open(members[key]) as file:
                    most = _most_bytes(members[key])
                    arrays[name] = _read(file, by_name[name], batched=batched, real=real, most=most)
            except InputError as error:
                problems.append(error)
            except (*_BROKEN, MemoryError) as error:
                problems.append(InputError(f"the array cannot be read: {error}", place=key))
    if problems:
        raise ProblemsError(problems, place=str(path))
    return {info.name: arrays[info.name] for info in infos}


def _numbers(file: IO[bytes], most: int) -> Array:
    """Return the array of a .npy file of at most `most` bytes."""
    shape, is_fortran, dtype = _header(file)
    if dtype.kind not in "biuf":
        raise ValueError(f"expected numbers, got {dtype}")
    array = np.frombuffer(file.read(most), dtype)
    return array.reshape(shape, order="F" if is_fortran else "C")


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """Yield a file and its arrays by name."""
    place = str(path)
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(open_plain(path))))
        except _BROKEN as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"cannot be read as .npz: {reason}",
                place=place,
                next_step="Write one with: numpy.savez(path, **{name: array})",
            ) from error
        entries = archive.infolist()
        if len(entries) > _MAX_MEMBERS:
            raise InputError(f"{len(entries):,} arrays are too many", place=place)
        members = {entry.filename.removesuffix(".npy"): entry for entry in entries}
        if len(members) != len(entries):
            raise InputError("an array appears twice", place=place)
        yield archive, members


def _most_bytes(member: zipfile.ZipInfo) -> int:
    return max(_ALWAYS_EXPANDED, _MAX_EXPANSION * member.compress_size)


def _bound(members: Mapping[str, Any], infos: Sequence[TensorInfo]) -> dict[str, str]:
    """Return the input of each key; a tensor's own name takes precedence over a position."""
    names = {info.name for info in infos}
    named = {key: key for key in members if key in names}
    for index, info in enumerate(infos):
        if f"arr_{index}" in members and f"arr_{index}" not in named and info.name not in named:
            named[f"arr_{index}"] = info.name
    return named


def _read(file: IO[bytes], info: TensorInfo, *, batched: bool, real: bool = False, most: int = _MAX_BATCH) -> Array:
    shape, is_fortran, dtype = _header(file)
    if real and takes_real(info) and dtype.kind in "fiu" and dtype.name in SCALARS:
        info = replace(info, dtype=dtype.name)
    if not info.is_static:
        info = info.of_shape(shape) or (info.of_shape(shape[1:]) if batched else None) or info
    sets = _sets(shape, info.shape) if batched else 1 if shape == info.shape else None
    faults = []
    if dtype != info.numpy_dtype:
        faults.append(f"its dtype is {dtype}, not {info.dtype}")
    if sets is None:
        faults.append(f"its shape is {shape}, not {info.shape}")
    size = info.nbytes * (sets or 0)
    # one set takes no more memory than the model itself
    if sets != 1 and size > min(most, _MAX_BATCH):
        faults.append(f"its {size:,} bytes are more than {min(most, _MAX_BATCH):,}")
    if faults:
        is_unquantized = info.scale is not None and dtype.kind == "f"
        step = "Quantize it, or pass real numbers: mlfc run --real" if is_unquantized else None
        raise InputError(f"the input does not fit: {' and '.join(faults)}", place=info.name, next_step=step)
    data = file.read(size)
    if len(data) != size or file.read(1):
        raise InputError(f"the array does not have the {size:,} bytes of its header", place=info.name)
    array = np.frombuffer(data, info.numpy_dtype)
    whole = np.ascontiguousarray(array.reshape(shape[::-1]).T) if is_fortran else array
    return whole.reshape(sets or 0, *info.shape)


def _sets(shape: tuple[int, ...], wanted: tuple[int, ...]) -> int | None:
    """Return the number of tensors of a shape in an array; None if it does not match."""
    if shape == wanted:
        return 1
    if shape and (shape[1:] == wanted or (wanted[:1] == (1,) and shape[1:] == wanted[1:])):
        return shape[0] or None
    return None


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version not in _LENGTHS:
        raise ValueError(f"version {version[0]}.{version[1]} of the .npy format is for structured arrays")
    length = _LENGTHS[version]
    prefix = file.read(length.size)
    # numpy reads a header of any length before it checks the length
    if len(prefix) < length.size or length.unpack(prefix)[0] > _LONGEST_HEADER:
        raise ValueError(f"the header has more than {_LONGEST_HEADER:,} bytes")
    text = io.BytesIO(prefix + file.read(length.unpack(prefix)[0]))
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        return read(text)
    except (SyntaxError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise ValueError("the header is not a description of an array") from error


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, Array]) -> None:
    """Write arrays under their names; raise OutputError if that fails."""
    with atomic_file(Path(path)) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            # the default date of ZipInfo is fixed, so the bytes do not depend on the time of writing
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)

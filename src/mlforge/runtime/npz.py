"""Tensors in ``.npz`` files: read without trusting them, written the same to the byte every time."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from mlforge.errors import InputError, ProblemsError
from mlforge.runtime.arrays import Array
from mlforge.runtime.tensor_info import TensorInfo
from mlforge.support.atomic import atomic_file
from mlforge.support.plain_file import open_plain

_MAX_MEMBERS = 10_000
# NotImplementedError and RuntimeError are what zipfile raises for compressions it lacks and for passwords
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, TypeError, KeyError, RuntimeError, OSError)


def read_npz(path: str | os.PathLike[str], infos: Sequence[TensorInfo]) -> dict[str, Array]:
    """Read the inputs of a model.

    Parameters
    ----------
    path : path
        Keys are the tensors' names; keys ``arr_0``, ``arr_1``, ... (what ``numpy.savez`` writes for unnamed
        arrays) bind by position.
    infos : sequence of TensorInfo
        The inputs. An array of another dtype or shape is refused by its header: its data are never read.

    Raises
    ------
    InputError, ProblemsError
        All faults at once: missing and unknown keys, dtypes, shapes, broken members.
    """
    place = str(path)
    problems: list[InputError] = []
    arrays: dict[str, Array] = {}
    with _opened(path, place) as archive:
        members = _members(archive, place)
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
                arrays[name] = _read(archive, members[key], by_name[name])
            except InputError as error:
                problems.append(error)
            except (*_BROKEN, MemoryError) as error:
                problems.append(InputError(f"the array cannot be read: {error}", place=key))
    if problems:
        raise ProblemsError(problems, place=place)
    return {info.name: arrays[info.name] for info in infos}


@contextmanager
def _opened(path: str | os.PathLike[str], place: str) -> Iterator[zipfile.ZipFile]:
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
        yield archive


def _members(archive: zipfile.ZipFile, place: str) -> dict[str, zipfile.ZipInfo]:
    entries = archive.infolist()
    if len(entries) > _MAX_MEMBERS:
        raise InputError(f"{len(entries):,} arrays are too many", place=place)
    members = {entry.filename.removesuffix(".npy"): entry for entry in entries}
    if len(members) != len(entries):
        raise InputError("an array appears twice", place=place)
    return members


def _bound(members: Mapping[str, Any], infos: Sequence[TensorInfo]) -> dict[str, str]:
    """Return which input each key stands for; a tensor's own name goes before a position."""
    names = {info.name for info in infos}
    named = {key: key for key in members if key in names}
    for index, info in enumerate(infos):
        if f"arr_{index}" in members and f"arr_{index}" not in named and info.name not in named:
            named[f"arr_{index}"] = info.name
    return named


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, info: TensorInfo) -> Array:
    with archive.open(entry) as file:
        shape, is_fortran, dtype = _header(file)
        faults = []
        if dtype != info.numpy_dtype:
            faults.append(f"its dtype is {dtype}, not {info.dtype}")
        if shape != info.shape:
            faults.append(f"its shape is {shape}, not {info.shape}")
        if faults:
            raise InputError(f"the input does not fit: {' and '.join(faults)}", place=info.name)
        data = file.read(info.nbytes)
        if len(data) != info.nbytes or file.read(1):
            raise InputError(f"the array does not have the {info.nbytes:,} bytes of its header", place=info.name)
    order = shape[::-1] if is_fortran else shape
    array = np.frombuffer(data, info.numpy_dtype).reshape(order)
    return np.ascontiguousarray(array.T).reshape(shape) if is_fortran else array


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"version {version[0]}.{version[1]} of the .npy format is for structured arrays")


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, Array]) -> None:
    """Write arrays under their names; raise OutputError where that fails."""
    with atomic_file(Path(path)) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            # the default date of ZipInfo is fixed, so the bytes do not depend on when they are written
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)

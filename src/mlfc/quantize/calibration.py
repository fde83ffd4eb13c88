"""Calibration data: input sets from files, folders of files or images, or an iterable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.errors import InputError, MlfcError, ProblemsError, unknown
from mlfc.support.arrays import Array
from mlfc.support.tensor_info import TensorInfo
from mlfc.verify.inputs import iter_sets
from mlfc.verify.media import ImageScaling

Sets = Sequence[Mapping[str, Array]]
_SHOWN_PROBLEMS = 20


def calibration_sets(data: Any, infos: Sequence[TensorInfo], samples: int, scaling: ImageScaling) -> Sets:
    """Return at most `samples` input sets.

    Parameters
    ----------
    data : path, or iterable of mapping
        A file or folder as for ``mlfc verify --inputs``, or any iterable of arrays by input name, such as a generator.
    infos : sequence of TensorInfo
        The model's inputs, with static shapes.
    samples : int
    scaling : ImageScaling
        Of images and sound.

    Raises
    ------
    InputError or ProblemsError
        For data that do not match the shapes and dtypes of the inputs, or if there are none.
    """
    if isinstance(data, (str, Path)):
        found: Sets = [given for _, given in islice(iter_sets(Path(data), infos, scaling), samples)]
        place: str | None = str(data)
    elif isinstance(data, Iterable) and not isinstance(data, (Mapping, np.ndarray, bytes)):
        found = _checked(islice(data, samples), infos)
        place = None
    else:
        raise InputError(
            f"expected a path or an iterable of arrays by input name, got {type(data).__name__}",
            place="calibration data",
            next_step="Example: [{'input': x} for x in batches]",
        )
    if not found:
        raise InputError("no calibration samples found", place=place, next_step="Provide a hundred typical inputs")
    return found


def _checked(sets: Iterable[Any], infos: Sequence[TensorInfo]) -> list[Mapping[str, Array]]:
    """Return sets as arrays; raise all problems at once if sets do not match the inputs."""
    problems: list[MlfcError] = []
    found: list[Mapping[str, Array]] = []
    known = {info.name: info for info in infos}
    for index, given in enumerate(sets):
        place = f"calibration set {index}"
        if not isinstance(given, Mapping):
            problems.append(InputError(f"expected arrays by input name, got {type(given).__name__}", place=place))
            continue
        problems += [InputError(unknown("input", str(name), known), place=place) for name in given if name not in known]
        arrays = {}
        for name, info in known.items():
            if name not in given:
                problems.append(InputError(f"has no input '{name}'", place=place))
                continue
            array = np.asarray(given[name])
            if array.shape != info.shape or array.dtype != info.numpy_dtype:
                problems.append(InputError(f"expected {info}, got {array.dtype}{list(array.shape)}", place=place))
            arrays[name] = array
        found.append(arrays)
        if len(problems) >= _SHOWN_PROBLEMS:
            break
    if problems:
        raise problems[0] if len(problems) == 1 else ProblemsError(problems)
    return found

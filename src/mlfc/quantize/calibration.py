"""Calibration data: input sets from files, folders of files or images, or an iterable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.errors import InputError, MlfcError, OptionError, ProblemsError, ToolchainError, unknown
from mlfc.support.arrays import Array
from mlfc.support.plain_file import open_plain
from mlfc.support.tensor_info import TensorInfo
from mlfc.verify.inputs import read_sets

Sets = Sequence[Mapping[str, Array]]
ARRAYS = (".npz", ".npy")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_MOST_PIXELS = 1 << 26  # limit for images in files, which may declare any size
_SHOWN_PROBLEMS = 20


@dataclass(frozen=True)
class ImageScaling:
    """Normalization of pixels from 0 to 255 to float inputs: ``(pixel / 255 - mean) / std``, per channel.

    Attributes
    ----------
    mean, std : tuple of float
        One for all channels, or one per channel.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        numbers = np.asarray((*self.mean, *self.std), np.float64)
        if not self.mean or not self.std or not np.isfinite(numbers).all() or 0 in self.std:
            raise OptionError(
                f"expected means and deviations of channels, got mean {self.mean} and std {self.std}",
                next_step="Example: --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225",
            )


def calibration_sets(
    data: Any, infos: Sequence[TensorInfo], samples: int | None, scaling: ImageScaling
) -> Iterator[Mapping[str, Array]]:
    """Yield at most `samples` input sets, all if None.

    Parameters
    ----------
    data : path, or iterable of mapping
        A ``.npz`` or ``.npy`` file as for ``mlfc verify --inputs``, a folder of such files or of images, or any
        iterable of arrays by input name, such as a generator.
    infos : sequence of TensorInfo
        The model's inputs, with static shapes.
    samples : int or None
    scaling : ImageScaling
        For images.

    Raises
    ------
    InputError or ProblemsError
        For data that do not match the shapes and dtypes of the inputs, or if there are none.
    """
    place = str(data) if isinstance(data, (str, Path)) else None
    found: Iterator[Mapping[str, Array]]
    if place is not None:
        found = islice(_from_path(Path(place), infos, scaling), samples)
    elif isinstance(data, Iterable) and not isinstance(data, (Mapping, np.ndarray, bytes)):
        found = iter(_checked(islice(data, samples), infos))
    else:
        raise InputError(
            f"expected a path or an iterable of arrays by input name, got {type(data).__name__}",
            place="calibration data",
            next_step="Example: [{'input': x} for x in batches]",
        )
    first = next(found, None)
    if first is None:
        raise InputError("no calibration samples found", place=place, next_step="Provide a hundred typical inputs")
    return chain((first,), found)


def _from_path(path: Path, infos: Sequence[TensorInfo], scaling: ImageScaling) -> Iterator[Mapping[str, Array]]:
    if not path.is_dir():
        yield from (given for _, given in read_sets(path, infos))
        return
    files = sorted(item for item in path.rglob("*") if item.suffix.lower() in (*ARRAYS, *IMAGES) and item.is_file())
    if not files:
        raise InputError(
            f"no {', '.join((*ARRAYS, *IMAGES))} file found in the folder", place=str(path), next_step="Name another"
        )
    for file in files:
        if file.suffix.lower() in ARRAYS:
            yield from (given for _, given in read_sets(file, infos))
        else:
            yield {infos[0].name: _image(file, infos, scaling)}


def _image(path: Path, infos: Sequence[TensorInfo], scaling: ImageScaling) -> Array:
    try:
        from PIL import Image
    except ImportError:
        raise ToolchainError(
            "reading images requires Pillow, which is not installed",
            next_step='Install it in a checkout of mlfc: pip install ".[quantize]"',
        ) from None
    channels, height, width, is_first = _picture(infos, str(path))
    try:
        with open_plain(path) as file, Image.open(file) as opened:
            if opened.width * opened.height > _MOST_PIXELS:
                raise InputError(
                    f"the image has {opened.width} x {opened.height} pixels, more than {_MOST_PIXELS:,}",
                    place=str(path),
                )
            image = opened.convert("RGB" if channels == 3 else "L").resize((width, height), Image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"the image cannot be read: {error}", place=str(path)) from error
    pixels: Array = np.asarray(image, np.float32).reshape(height, width, channels)
    if infos[0].numpy_dtype.kind == "f":
        for name, numbers in (("mean", scaling.mean), ("std", scaling.std)):
            if len(numbers) not in (1, channels):
                raise OptionError(f"expected 1 or {channels} numbers, got {len(numbers)}", place=name)
        pixels = (pixels / 255 - np.asarray(scaling.mean, np.float32)) / np.asarray(scaling.std, np.float32)
    ordered = pixels.transpose(2, 0, 1) if is_first else pixels
    return np.ascontiguousarray(ordered, infos[0].numpy_dtype).reshape(infos[0].shape)


def _picture(infos: Sequence[TensorInfo], place: str) -> tuple[int, int, int, bool]:
    """Return channels, height and width of a model's image input, and whether it is channels-first."""
    shape = infos[0].shape
    if len(infos) == 1 and infos[0].numpy_dtype.kind in "fu" and len(shape) == 4 and shape[0] == 1:
        _, first, middle, last = (int(extent) for extent in shape)
        if first in (1, 3):
            return first, middle, last, True
        if last in (1, 3):
            return last, first, middle, False
    raise InputError(
        f"images require a model with one input of 1 x channels x height x width, got {', '.join(map(str, infos))}",
        place=place,
        next_step="Write .npz: numpy.savez(path, **{name: array})",
    )


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

"""Input sets from images and WAV files, for models whose only input has the shape of an image or a waveform."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.errors import InputError, OptionError, ToolchainError
from mlfc.runtime.tensor.arrays import quantized
from mlfc.support.plain_file import open_plain
from mlfc.support.tensor_info import Array, ContainerInfo, TensorInfo

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
SOUNDS = (".wav",)
MEDIA = (*IMAGES, *SOUNDS)
"""Suffixes of files that are converted to the shape and dtype of an input."""
_WRITE = "Write .npz: numpy.savez(path, **{name: array})"
_MOST_PIXELS = 1 << 26  # limit for images in files, which may declare any size
_MOST_SOUND = 1 << 29  # bytes
_CHANNELS = {1: "L", 3: "RGB"}
_TO_PCM = "Convert it: ffmpeg -i IN.wav -c:a pcm_s16le OUT.wav"


@dataclass(frozen=True)
class ImageScaling:
    """Normalization of pixels from 0 to 255 to real inputs: ``(pixel * scale - mean) / std``, per channel.

    Sound samples, from -1 to 1, are scaled in the same way.

    Attributes
    ----------
    mean, std : tuple of float
        One for all channels, or one per channel.
    scale : float, optional
        Default: 1/255 for images, 1 for sound.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float | None = None

    def __post_init__(self) -> None:
        numbers = np.asarray((*self.mean, *self.std, self.scale or 1.0), np.float64)
        if not self.mean or not self.std or not np.isfinite(numbers).all() or 0 in self.std or self.scale == 0:
            raise OptionError(
                f"expected means and deviations of channels, got mean {self.mean}, std {self.std}, scale {self.scale}",
                next_step="Example: --scale 1/255 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225",
            )

    def applied(self, values: Array, usual: float) -> Array:
        """Return scaled float32 values, whose last axis are channels; `usual` is the default scale."""
        channels = values.shape[-1]
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, channels):
                raise OptionError(f"expected 1 or {channels} numbers, got {len(numbers)}", place=name)
        scaled = values.astype(np.float64) * (usual if self.scale is None else self.scale)
        found: Array = ((scaled - np.asarray(self.mean)) / np.asarray(self.std)).astype(np.float32)
        return found


USUAL = ImageScaling()
"""The scaling without options."""


def media_sets(path: Path, infos: Sequence[TensorInfo], scaling: ImageScaling) -> list[tuple[str, dict[str, Any]]]:
    """Return the input sets of an image, which is one, or of a WAV file: one for each window of the input's length.

    Pixels of quantized 8-bit inputs are their whole range of integers unless `scaling` is set; otherwise real values
    are quantized.

    Raises InputError if the file cannot be read, or the input does not have such a shape; ToolchainError if Pillow is
    not installed.
    """
    kind = "images" if path.suffix.lower() in IMAGES else "WAV files"
    if len(infos) != 1 or isinstance(infos[0], ContainerInfo):
        cause = f"{kind} require a model with one input, got {', '.join(map(str, infos))}"
        raise _misfit(cause, str(path))
    (info,) = infos
    if kind == "images":
        return [(path.name, {info.name: _image(path, info, scaling)})]
    windows = _windows(path, info, scaling)
    return [(f"window {index}" if len(windows) > 1 else path.name, {info.name: x}) for index, x in enumerate(windows)]


def note(path: Path, info: TensorInfo, scaling: ImageScaling) -> str | None:
    """Return how values of a file, or of the first in a folder, become those of the input; None for arrays."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    suffix = next((file.suffix.lower() for file in files if file.suffix.lower() in MEDIA), None)
    if suffix is None:
        return None
    what, usual = ("pixel", "1/255") if suffix in IMAGES else ("sample", "1")
    is_integer = info.numpy_dtype.kind in "iu"
    if is_integer and scaling == USUAL and (info.scale is None or suffix in IMAGES):
        more = "" if info.scale is None else "; for other values set --scale, --mean, --std"
        return f"{path}: {what}s are passed as {info.dtype}{more}"
    text = f"{what} * {usual if scaling.scale is None else format(scaling.scale, '.6g')}"
    if (scaling.mean, scaling.std) != (USUAL.mean, USUAL.std):
        mean, std = (",".join(f"{item:g}" for item in numbers) for numbers in (scaling.mean, scaling.std))
        text = f"({text} - {mean}) / {std}"
    return f"{path}: value = {text}"


def _converted(
    values: Array, usual: float, raw: Array | None, info: TensorInfo, scaling: ImageScaling, place: Path
) -> Array:
    """Return values, channels last, with the input's dtype: `raw` if no scaling applies, which is None if undefined."""
    if info.numpy_dtype.kind in "iu" and scaling == USUAL and raw is not None:
        return raw
    if info.scale is None and info.numpy_dtype.kind != "f":
        cause = f"values cannot be scaled for the input {info}, whose quantization is not recorded"
        raise _misfit(cause, str(place))
    found: Array = quantized(scaling.applied(values, usual), info)
    return found


def _image(path: Path, info: TensorInfo, scaling: ImageScaling) -> Array:
    try:
        from PIL import Image
    except ImportError:
        raise ToolchainError(
            "reading images requires Pillow, which is not installed",
            next_step='Install it with: pip install "mlfc[quantize]"',
        ) from None
    channels, height, width, is_first = _picture(info, str(path))
    try:
        with open_plain(path) as file, Image.open(file) as opened:
            if opened.width * opened.height > _MOST_PIXELS:
                raise InputError(
                    f"the image has {opened.width} x {opened.height} pixels, more than {_MOST_PIXELS:,}",
                    place=str(path),
                )
            size = (width or opened.width, height or opened.height)
            image = opened.convert(_CHANNELS[channels]).resize(size, Image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"the image cannot be read: {error}", place=str(path)) from error
    pixels = np.asarray(image, np.float32).reshape(image.height, image.width, channels)
    dtype = info.numpy_dtype
    is_byte = dtype in (np.uint8, np.int8)
    has_raw = dtype == np.uint8 or (is_byte and info.scale is not None)
    raw = (pixels + (np.iinfo(dtype).min if is_byte else 0)).astype(dtype) if has_raw else None
    made = _converted(pixels, 1 / 255, raw, info, scaling, path)
    ordered = made.transpose(2, 0, 1) if is_first else made
    return np.ascontiguousarray(ordered).reshape(*(1,) * (len(info.shape) - 3), *ordered.shape)


def _picture(info: TensorInfo, place: str) -> tuple[int, int | None, int | None, bool]:
    """Return channels, height and width of an image input, None where dynamic, and whether it is channels-first."""
    shape = info.shape
    if len(shape) == 3 or (len(shape) == 4 and (shape[0] == 1 or isinstance(shape[0], str))):
        first, middle, last = shape[-3:]
        found = [place for place, channels in ((0, first), (2, last)) if channels in _CHANNELS]
        sizes = [size if isinstance(size, int) else None for size in (first, middle, last)]
        if len(found) == 1:
            channels = sizes.pop(found[0])
            return int(channels or 0), sizes[0], sizes[1], found[0] == 0
        if found:
            raise _misfit(f"the input {info} may be channels-first or channels-last", place)
    raise _misfit(f"images require an input of 1 x channels x height x width or channels last, got {info}", place)


def _misfit(cause: str, place: str) -> InputError:
    return InputError(cause, place=place, next_step=_WRITE)


def _windows(path: Path, info: TensorInfo, scaling: ImageScaling) -> list[Array]:
    """Return consecutive windows of a sound, mixed to mono; zeros follow the last one."""
    sizes = [(place, size) for place, size in enumerate(info.shape) if size != 1]
    if len(sizes) > 1:  # of dynamic shapes, a batch is 1
        sizes = [(place, size) for place, size in sizes if isinstance(size, int) or place > 0]
    if len(sizes) != 1:
        raise _misfit(f"WAV files require an input with one dimension of samples, got {info}", str(path))
    integers = _samples(path)
    ((place, length),) = sizes
    step = length if isinstance(length, int) else max(1, len(integers))
    missing = -len(integers) % step or (0 if len(integers) else step)
    padded = np.concatenate((integers, np.zeros(missing, np.float32)))
    dtype = info.numpy_dtype
    raw = np.rint(padded * np.float32(1 << 15)).clip(-(1 << 15), (1 << 15) - 1).astype(np.int16)
    is_raw = dtype == np.int16 and info.scale is None
    made = _converted(padded[:, None], 1.0, raw[:, None] if is_raw else None, info, scaling, path)
    shape = [1] * len(info.shape)
    shape[place] = step
    return [np.ascontiguousarray(window).reshape(shape) for window in made.reshape(-1, step)]


def _samples(path: Path) -> Array:
    """Return the samples of a WAV file from -1 to 1, the mean of its channels."""
    try:
        with open_plain(path) as file, wave.open(file) as sound:
            channels, width, frames = sound.getnchannels(), sound.getsampwidth(), sound.getnframes()
            if frames * channels * width > _MOST_SOUND:
                raise InputError(f"the sound exceeds {_MOST_SOUND:,} bytes", place=str(path))
            data = sound.readframes(frames)
    except (OSError, EOFError, wave.Error) as error:
        cause = f"the sound cannot be read: {error or 'the file is truncated'}"
        raise InputError(cause, place=str(path), next_step=_TO_PCM) from error
    whole = len(data) // (width * channels) * width * channels
    octets = np.frombuffer(data[:whole], np.uint8).reshape(-1, width)
    if width == 1:
        integers = octets[:, 0].astype(np.int64) - 128
    else:  # shifted so that the sign is that of 64 bits
        wide = np.zeros((len(octets), 8), np.uint8)
        wide[:, 8 - width :] = octets
        integers = wide.view("<i8")[:, 0] >> (64 - 8 * width)
    found: Array = (integers.reshape(-1, channels).mean(axis=1) / (1 << (8 * width - 1))).astype(np.float32)
    return found

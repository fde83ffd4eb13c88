"""Error metrics between tensors, tolerances, and classification accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.errors import InputError
from mlfc.support import dtypes
from mlfc.support.tensor_info import Array, TensorInfo
from mlfc.support.text import Displayed
from mlfc.verify.inputs import read_labels

FLOAT_TOLERANCE = 1e-5
"""Allowed |difference| of floats, relative to the largest |reference value| of the tensor."""


@dataclass(frozen=True)
class Tolerance(Displayed):
    """A tolerance set by users: ``atol + rtol * abs(reference)`` per element, as in `numpy.testing.assert_allclose`.

    Attributes
    ----------
    rtol, atol : float
    """

    rtol: float = 0.0
    atol: float = 0.0


@dataclass(frozen=True)
class Evidence(Displayed):
    """Evidence about a difference, from the model in float64 and from perturbed runs of the reference.

    Attributes
    ----------
    error : float
        Largest |difference| between the compiled model and float64.
    reference_error : float
        Largest |difference| between the reference and float64.
    rounding : float
        Largest |difference| between results of the reference for inputs and weights that differ by ulps.
    """

    error: float
    reference_error: float
    rounding: float


@dataclass(frozen=True)
class Difference(Displayed):
    """The difference of a tensor from its reference, over all input sets.

    Attributes
    ----------
    tensor : str
    dtype : str
    largest : float
        Largest absolute difference; infinite if only one of the two elements is NaN.
    tolerance : float
        The allowed difference of the element with the largest one.
    sample : str
        The input set with the largest difference.
    elements : int
        Number of elements in that set that differ by more than is allowed.
    element : int
        Index of the element that differs most, in C order.
    nodes : tuple of str
        The original nodes that compute the tensor, for operators of compiled code.
    is_unlike_host : bool
        True if a board computes another tensor than this machine from the same C code.
    cosine : float
        Cosine similarity, over the elements that are finite in both.
    snr : float
        Signal-to-noise ratio in dB: the power of the reference over that of the difference.
    nans : int
        Number of elements that are NaN in both.
    lone_nans : int
        Number of elements that are NaN in one of the two.
    excuse : str
        The reason why a difference beyond the tolerance counts as equal; empty if it does not.
    evidence : Evidence or None
        The evidence for that decision.
    note : str
        Additional information.
    """

    tensor: str
    dtype: str
    largest: float
    tolerance: float
    sample: str
    elements: int = 0
    element: int = 0
    nodes: tuple[str, ...] = ()
    is_unlike_host: bool = False
    cosine: float = 1.0
    snr: float = math.inf
    nans: int = 0
    lone_nans: int = 0
    excuse: str = ""
    evidence: Evidence | None = None
    note: str = ""

    @property
    def is_within(self) -> bool:
        """True if the tensor counts as equal to its reference."""
        return self.largest <= self.tolerance or bool(self.excuse)


def difference(name: str, ours: Array, theirs: Array, sample: str, tolerance: Tolerance | None = None) -> Difference:
    """Compare a tensor with its reference.

    Integers and booleans must be equal, and floats within `FLOAT_TOLERANCE`; a `tolerance` replaces both criteria,
    except for booleans. NaN equals NaN.
    """
    if ours.size != theirs.size:
        note = f"{ours.size:,} elements against {theirs.size:,}"
        return Difference(name, ours.dtype.name, math.inf, 0.0, sample, ours.size, cosine=0.0, snr=-math.inf, note=note)
    a, b = _comparable(ours), _comparable(theirs)
    apart = _apart(a, b)
    allowed = np.broadcast_to(_allowed(ours, b, tolerance), apart.shape)
    elements = int((apart > allowed).sum())
    # the largest excess, or if all are allowed, the largest difference
    element = int(np.argmax(apart - allowed)) if elements else int(apart.argmax()) if apart.size else 0
    cosine, snr = _likeness(a, b)
    nans, lone_nans = (int(which(_is_nan(a), _is_nan(b)).sum()) for which in (np.logical_and, np.logical_xor))
    return Difference(
        name, ours.dtype.name, float(apart[element]) if apart.size else 0.0,
        float(allowed[element]) if apart.size else 0.0, sample, elements, element,
        cosine=cosine, snr=snr, nans=nans, lone_nans=lone_nans,
    )  # fmt: skip


def largest_difference(a: Array, b: Array) -> float:
    """Return the largest |difference| of two tensors, infinite for different sizes; NaN equals only NaN."""
    return math.inf if a.size != b.size else float(_apart(_comparable(a), _comparable(b)).max(initial=0.0))


def is_real(dtype: np.dtype[Any]) -> bool:
    """Return whether elements are floats, including bfloat16, which NumPy does not classify as one."""
    return dtypes.is_float(dtypes.from_numpy(dtype))


def _comparable(array: Array) -> Array:
    # float64 represents 32-bit integers exactly
    is_exact = is_real(array.dtype) or array.dtype.itemsize <= 4
    return array.astype(np.float64 if is_exact else np.uint64 if array.dtype == np.uint64 else np.int64).ravel()


def _apart(a: Array, b: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.subtract(a, b, dtype=np.float64, casting="unsafe")
    np.abs(apart, out=apart)
    is_exact = a.dtype == b.dtype == np.float64
    if is_exact and np.isfinite(apart.max(initial=0.0)):
        return apart
    same = (a == b) | (_is_nan(a) & _is_nan(b))
    if a.dtype != np.float64:
        apart = np.maximum(apart, 1)  # float64 may map different large integers to the same number
    # infinities of the same sign are equal, though their difference is NaN
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


def _is_nan(array: Array) -> Array:
    return np.isnan(array) if array.dtype == np.float64 else np.zeros(array.shape, np.bool_)


def _allowed(ours: Array, theirs: Array, tolerance: Tolerance | None) -> Array:
    """Return the tolerance of each element, or one number for all elements."""
    if not is_real(ours.dtype) and (tolerance is None or ours.dtype.kind == "b"):
        return np.zeros(())
    sizes = np.abs(theirs.astype(np.float64, copy=False))
    if not np.isfinite(sizes.max(initial=0.0)):
        sizes = np.where(np.isfinite(sizes), sizes, 0.0)
    if tolerance is not None:
        return np.asarray(tolerance.atol + tolerance.rtol * sizes)
    return np.asarray(FLOAT_TOLERANCE * float(sizes.max(initial=0.0)))


def _likeness(a: Array, b: Array) -> tuple[float, float]:
    """Return the cosine similarity of two tensors, and the power of the second over that of the difference in dB."""
    x, y = a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)
    if not (scale := _scale(x, y)) < math.inf:
        finite = np.isfinite(x) & np.isfinite(y)
        x, y = x[finite], y[finite]
        scale = _scale(x, y)
    # squares of large values must not overflow
    x, y = x / (scale or 1.0), y / (scale or 1.0)
    signal = _dot(y, y)
    lengths = math.sqrt(_dot(x, x) * signal)
    apart = x - y
    noise = _dot(apart, apart)
    cosine = min(1.0, _dot(x, y) / lengths) if lengths else float(noise == 0)
    snr = math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal else -math.inf
    return cosine, snr


def _dot(x: Array, y: Array) -> float:
    """Return the dot product without BLAS, whose threading overhead exceeds the time for one layer's tensor."""
    return float(np.einsum("i,i->", x, y))


def _scale(x: Array, y: Array) -> float:
    """Return the largest magnitude in two arrays; not finite if any element is not."""
    ends = [end for array in (x, y) for end in (array.max(initial=0.0), -array.min(initial=0.0))]
    return float(np.max(ends))


@dataclass(frozen=True)
class Accuracy(Displayed):
    """Classification accuracy: how often the class with the highest score, or the label itself, is the expected one.

    Attributes
    ----------
    output : str
        The evaluated output, which is the model's first.
    compiled, reference : int
        Number of correct input sets.
    agreeing : int
        Number of input sets with equal predictions.
    samples : int
        Number of input sets.
    """

    output: str
    compiled: int
    reference: int
    agreeing: int
    samples: int


class Labels:
    """Counter of correct predictions."""

    def __init__(self, labels: Array, output: str) -> None:
        self._labels, self._output = labels, output
        self._answers: list[tuple[int, int]] = []

    @classmethod
    def read(cls, path: Path, count: int, outputs: Sequence[TensorInfo]) -> Labels:
        """Read the labels of `count` input sets; raise InputError if their number differs."""
        if not outputs or 0 in outputs[0].shape:
            raise InputError("the model has no output with classes or scores", place=str(path))
        return cls(read_labels(path, count), outputs[0].name)

    def count(self, ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> None:
        """Record the predictions for the next input set."""
        self._answers.append((_answer(ours[self._output]), _answer(theirs[self._output])))

    @property
    def accuracy(self) -> Accuracy:
        """The accuracy of the predictions recorded so far."""
        answers = np.asarray(self._answers, np.int64).reshape(-1, 2)
        right = (answers == self._labels[: len(answers), None]).sum(axis=0)
        agreeing = int((answers[:, 0] == answers[:, 1]).sum())
        return Accuracy(self._output, int(right[0]), int(right[1]), agreeing, len(answers))


def _answer(output: Array) -> int:
    if output.size != 1:
        return int(output.ravel().argmax())
    return int(float(output.reshape(())) > 0.5 if is_real(output.dtype) else output.reshape(()))

"""How often a classifier is right, the compiled one and the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlfc.errors import InputError
from mlfc.support.arrays import Array
from mlfc.support.tensor_info import TensorInfo
from mlfc.support.text import Displayed
from mlfc.verify.difference import is_real
from mlfc.verify.inputs import read_labels


@dataclass(frozen=True)
class Accuracy(Displayed):
    """How often the class of the highest score, or the label itself, is the given one.

    Attributes
    ----------
    output : str
        Which output was looked at: the first.
    compiled, reference : int
        How many sets are right.
    agreeing : int
        In how many both say the same.
    samples : int
        How many there are.
    """

    output: str
    compiled: int
    reference: int
    agreeing: int
    samples: int


class Labels:
    """Counts right answers."""

    def __init__(self, labels: Array, output: str) -> None:
        self._labels, self._output = labels, output
        self._answers: list[tuple[int, int]] = []

    @classmethod
    def read(cls, path: Path, count: int, outputs: Sequence[TensorInfo]) -> Labels:
        """Read the labels of `count` sets of inputs; InputError if there are not so many."""
        if not outputs or 0 in outputs[0].shape:
            raise InputError("the model has no output that could be a class", place=str(path))
        return cls(read_labels(path, count), outputs[0].name)

    def count(self, ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> None:
        """Note the answers for the next set of inputs."""
        self._answers.append((_answer(ours[self._output]), _answer(theirs[self._output])))

    @property
    def accuracy(self) -> Accuracy:
        """What the answers until now come to."""
        answers = np.asarray(self._answers, np.int64).reshape(-1, 2)
        right = (answers == self._labels[: len(answers), None]).sum(axis=0)
        agreeing = int((answers[:, 0] == answers[:, 1]).sum())
        return Accuracy(self._output, int(right[0]), int(right[1]), agreeing, len(answers))


def _answer(output: Array) -> int:
    if output.size == 1 and not is_real(output.dtype):
        return int(output.reshape(()))
    if output.size == 1:
        return int(float(output.reshape(())) > 0.5)
    return int(output.ravel().argmax())

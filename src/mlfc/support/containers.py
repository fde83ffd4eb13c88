"""Inputs and outputs that are sequences or optionals: of which tensors a compiled model has each of them.

A sequence is the extents of its elements, one row each, and their bytes, each from a multiple of 64 on. An optional
is a sequence of at most one; an optional sequence has a bool before these.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.support.tensor_info import TensorInfo, Text

SEQUENCE, OPTIONAL, OPTIONAL_SEQUENCE = KINDS = ("sequence", "optional", "optional sequence")
GIVEN, EXTENTS, BYTES = PARTS = ("given", "extents", "bytes")
"""The parts of a container, in the order in which a model has them; only an optional sequence has the first."""


ANY_RANK = ("...",)
"""The shape of tensors that differ in how many dimensions they have."""


@dataclass(frozen=True)
class Container:
    """An input or output that is no tensor."""

    name: str
    kind: str  # of KINDS
    dtype: str  # of its tensors
    is_output: bool = False
    is_mixed: bool = False  # whether its tensors differ in how many dimensions they have

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of its tensors."""
        return tuple(f"{self.name}.{part}" for part in parts_of(self.kind))


def parts_of(kind: str) -> tuple[str, ...]:
    """Return the parts that a container of a kind has."""
    return PARTS if kind == OPTIONAL_SEQUENCE else PARTS[1:]


@dataclass(frozen=True)
class ContainerInfo(TensorInfo):
    """Name and kind of an input or output that is no tensor; shape and dtype are those of its tensors.

    The shape is `ANY_RANK` if they differ in how many dimensions they have.
    """

    kind: Text = SEQUENCE

    @property
    def is_static(self) -> bool:
        """False: nobody knows how many tensors there are."""
        return False

    @property
    def is_sequence(self) -> bool:
        """Whether its value is a list of arrays, if it has one."""
        return self.kind != OPTIONAL

    @property
    def may_be_none(self) -> bool:
        """Whether there may be no value."""
        return self.kind != SEQUENCE

    def element(self, index: int | None = None) -> TensorInfo:
        """Return the description of one of its tensors."""
        name = self.name if index is None else f"{self.name}.{index}"
        return TensorInfo(name, self.shape, self.dtype)

    def __str__(self) -> str:
        return f"{self.name}: {self.kind} of {self.dtype}[{', '.join(map(str, self.shape))}]"

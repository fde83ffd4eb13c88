"""Sequence and optional inputs and outputs, and the tensors that represent them in a compiled model.

A sequence consists of the shapes of its elements, one row each, and their bytes, each aligned to 64 bytes. An optional
is a sequence of at most one element; an optional sequence has an additional leading bool.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.support.tensor_info import TensorInfo, Text

SEQUENCE, OPTIONAL, OPTIONAL_SEQUENCE = KINDS = ("sequence", "optional", "optional sequence")
GIVEN, EXTENTS, BYTES = PARTS = ("given", "extents", "bytes")
"""The parts of a container, in the order of the model's tensors; only an optional sequence has the first."""


ANY_RANK = ("...",)
"""The shape of tensors of different ranks."""


@dataclass(frozen=True)
class Container:
    """An input or output that is a sequence or optional."""

    name: str
    kind: str  # of KINDS
    dtype: str  # of its tensors
    is_output: bool = False
    is_mixed: bool = False  # whether its tensors differ in rank

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of its tensors."""
        return tuple(f"{self.name}.{part}" for part in parts_of(self.kind))


def parts_of(kind: str) -> tuple[str, ...]:
    """Return the parts of a container of a kind."""
    return PARTS if kind == OPTIONAL_SEQUENCE else PARTS[1:]


@dataclass(frozen=True)
class ContainerInfo(TensorInfo):
    """Name and kind of a sequence or optional input or output; shape and dtype are those of its tensors.

    The shape is `ANY_RANK` if its tensors differ in rank.
    """

    kind: Text = SEQUENCE

    @property
    def is_static(self) -> bool:
        """False: the number of tensors is a runtime value."""
        return False

    @property
    def is_sequence(self) -> bool:
        """True if its value, when present, is a list of arrays."""
        return self.kind != OPTIONAL

    @property
    def may_be_none(self) -> bool:
        """True if its value may be None."""
        return self.kind != SEQUENCE

    def element(self, index: int | None = None) -> TensorInfo:
        """Return the description of one of its tensors."""
        name = self.name if index is None else f"{self.name}.{index}"
        return TensorInfo(name, self.shape, self.dtype)

    def __str__(self) -> str:
        return f"{self.name}: {self.kind} of {self.dtype}[{', '.join(map(str, self.shape))}]"

"""A model that came from a library's objects instead of a file: what the importers take of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy.typing as npt

States: TypeAlias = "Mapping[str, str] | None"
StateInit: TypeAlias = "Mapping[str, npt.ArrayLike] | str | None"


@dataclass(frozen=True)
class Captured:
    """What was captured of a PyTorch model."""

    data: bytes  # an ONNX model
    name: str  # the module's class
    states: Mapping[str, str] = field(default_factory=dict)  # buffers that `forward` writes, and their next values
    state_init: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)  # those that do not begin with zeros
    shapes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # of inputs with open dimensions

    def with_own(self, states: States, state_init: StateInit) -> tuple[States, StateInit]:
        """Return states and first values that a user asks for, and the model's own."""
        if not self.states:
            return states, state_init
        begin = state_init if isinstance(state_init, str) else {**self.state_init, **(state_init or {})}
        return {**self.states, **(states or {})}, begin or None

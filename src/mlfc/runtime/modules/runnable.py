"""What every loaded model can do, whichever executor runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mlfc.errors import RunError
from mlfc.support.arrays import Array
from mlfc.support.tensor_info import TensorInfo

if TYPE_CHECKING:
    from mlfc.runtime.executors.states import ModelState

CHECK_VALUES = "Check the inputs: their values may contradict a shape that the model declares"


def require_success(status: int) -> None:
    """Raise RunError unless a model's call returned 0."""
    if status != 0:
        raise RunError(f"the model returned status {status}", next_step=CHECK_VALUES)


class Bound(Protocol):
    """A model on fixed buffers; calling it runs the model and returns 0 on success."""

    inputs: dict[str, Array]
    outputs: dict[str, Array]

    def __call__(self) -> int:
        """Run the model on what the inputs hold now."""


class Computes(Protocol):
    """Something with inputs and outputs that computes, wherever it runs."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Its inputs, in order."""

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Its outputs, in order."""

    def run(self, *inputs: Any) -> dict[str, Array]:
        """Run one inference, on a mapping by name or on arrays in order."""


class Runnable(Computes, Protocol):
    """A model in this process."""

    def bind(
        self, inputs: Mapping[str, Any] | Sequence[Any], outputs: Mapping[str, Any] | Sequence[Any] | None = None
    ) -> Bound:
        """Return a callable that runs on these very buffers."""

    def new_outputs(self) -> dict[str, Array]:
        """Return fresh arrays for the outputs."""

    @property
    def state(self) -> ModelState:
        """What it keeps from one run to the next, by name."""

    def reset_state(self) -> None:
        """Set all states to what they begin with."""


class HasModel(ABC):
    """Something that holds a model and runs like it."""

    @property
    @abstractmethod
    def model(self) -> Runnable:
        """The model."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The model's inputs, in order."""
        return self.model.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The model's outputs, in order."""
        return self.model.outputs

    def run(self, *inputs: Any) -> dict[str, Array]:
        """Run one inference; as `AotModule.run`."""
        return self.model.run(*inputs)

    def bind(
        self, inputs: Mapping[str, Any] | Sequence[Any], outputs: Mapping[str, Any] | Sequence[Any] | None = None
    ) -> Bound:
        """Return a callable that runs on these very buffers; as `AotModule.bind`."""
        return self.model.bind(inputs, outputs)

    def new_outputs(self) -> dict[str, Array]:
        """Return fresh arrays for the outputs."""
        return self.model.new_outputs()

    @property
    def state(self) -> ModelState:
        """What the model keeps from one run to the next, by name; `ModelState` is a mapping."""
        return self.model.state

    def reset_state(self) -> None:
        """Set all states to what they begin with."""
        self.model.reset_state()

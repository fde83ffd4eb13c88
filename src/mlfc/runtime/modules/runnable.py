"""Interface of loaded models for all executors: running, and pickling and copying by origin."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from mlfc.errors import InputError, RunError
from mlfc.runtime.ffi.library_names import file_identity
from mlfc.support.tensor_info import Array, TensorInfo

if TYPE_CHECKING:
    from mlfc.runtime.executors.states import ModelState
    from mlfc.runtime.tensor.arrays import Values

CHECK_VALUES = "Check the inputs: their values may contradict a shape that the model declares"


def require_success(status: int) -> None:
    """Raise RunError unless a model's call returned 0."""
    if status != 0:
        raise RunError(f"the model returned status {status}", next_step=CHECK_VALUES)


class Bound(Protocol):
    """A model bound to fixed buffers; calling it runs the model and returns 0 on success."""

    inputs: dict[str, Array]
    outputs: dict[str, Array]

    def __call__(self) -> int:
        """Run the model on the current contents of the inputs."""


class Computes(Protocol):
    """A model with inputs and outputs that can run, locally or on a device."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Its inputs, in order."""

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Its outputs, in order."""

    def run(self, *inputs: Any) -> dict[str, Array]:
        """Run one inference and return the outputs by name; `inputs` are a mapping by name, or arrays in order."""


class Runnable(Computes, Protocol):
    """A model in this process."""

    def bind(self, inputs: Values, outputs: Values | None = None) -> Bound:
        """Return a callable that runs on these buffers."""

    def run(self, *inputs: Any, real: bool = False) -> dict[str, Array]:
        """Run one inference; with `real`, on real numbers, which are quantized, and dequantize the outputs."""

    def new_outputs(self) -> dict[str, Array]:
        """Return fresh arrays for the outputs."""

    @property
    def state(self) -> ModelState:
        """States of the model by name, which persist between runs."""

    def reset_state(self) -> None:
        """Reset all states to their initial values."""


class HasModel(ABC):
    """Base class of objects that hold a model and run like it."""

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

    def run(self, *inputs: Any, real: bool = False) -> dict[str, Array]:
        """Run one inference; see `AotModule.run`."""
        return self.model.run(*inputs, real=real)

    def bind(self, inputs: Values, outputs: Values | None = None) -> Bound:
        """Return a callable that runs on these buffers; see `AotModule.bind`."""
        return self.model.bind(inputs, outputs)

    def new_outputs(self) -> dict[str, Array]:
        """Return fresh arrays for the outputs."""
        return self.model.new_outputs()

    @property
    def state(self) -> ModelState:
        """States of the model by name, which persist between runs, as the mapping `ModelState`."""
        return self.model.state

    def reset_state(self) -> None:
        """Reset all states to their initial values."""
        self.model.reset_state()


Reduced: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any] | None]


@dataclass(frozen=True, repr=False)
class LoadedOrigin:
    """Origin of a loaded object: a file or its content, and the function that loads it with `arguments`."""

    opener: Callable[..., Any]
    source: str | bytes
    arguments: tuple[Any, ...] = ()
    identity: tuple[int, ...] | None = None  # of the file
    exporter: Callable[..., Path] | None = None  # takes the origin, a path and options; writes a library
    members: int = 0  # of the tree of modules when it was loaded

    @classmethod
    def of(cls, opener: Callable[..., Any], source: Any, *arguments: Any) -> LoadedOrigin | None:
        """Return the origin of a path or bytes; None for memory that may change."""
        if isinstance(source, bytes):
            return cls(opener, source, arguments)
        if not isinstance(source, (str, os.PathLike)):
            return None
        path = Path(source).absolute()
        return cls(opener, str(path), arguments, file_identity(path))

    def opened(self) -> Any:
        """Load the object again."""
        self.check()
        return self.opener(self.source, *self.arguments)

    def reduced(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return an origin by content, which other processes can load."""
        self.check()
        data = self.source if isinstance(self.source, bytes) else Path(self.source).read_bytes()
        return self.opener, (data, *self.arguments)

    def check(self) -> None:
        """Raise InputError if the file has changed since it was loaded."""
        if isinstance(self.source, str) and file_identity(self.source) != self.identity:
            raise InputError(
                "the file was changed or removed since it was loaded", place=self.source, next_step="Load it again"
            )


class Restorable:
    """A loaded model, which can be pickled and copied if its origin is known.

    Restoring loads the content again, with all checks of loading, and restores the model's states. A copy has its own
    states.
    """

    origin: LoadedOrigin | None = None

    def __reduce__(self) -> Reduced:
        return (*self._known_origin().reduced(), kept_by(self))

    def __setstate__(self, kept: Mapping[str, Any]) -> None:
        restore(self, kept)

    def __copy__(self) -> Any:
        return restore(self._known_origin().opened(), kept_by(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__copy__()

    def _known_origin(self) -> LoadedOrigin:
        if self.origin is None:
            raise TypeError(
                f"cannot pickle or copy this {type(self).__name__}, which was not loaded from a file or bytes. "
                "Pickle what mlfc.compile or mlfc.load returned"
            )
        return self.origin


def kept_by(model: Any) -> dict[str, Any]:
    """Return the state of a model besides its code: its states and limits."""
    kept: dict[str, Any] = {"state": dict(model.state)} if len(model.state) else {}
    limits = getattr(model, "limits", None)
    return {**kept, "limits": limits} if limits is not None else kept


def restore(model: Any, kept: Mapping[str, Any]) -> Any:
    """Set the states and limits of `kept_by` in a model; return the model."""
    if "limits" in kept:
        model.set_limits(**kept["limits"])
    if "state" in kept:
        model.state.update(kept["state"])
    return model

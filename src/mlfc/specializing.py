"""Models that specialize themselves: code for recurring shapes is generated in the background."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from mlfc.errors import MlfcError
from mlfc.runtime.executors.vm.vm_model import VmModel
from mlfc.runtime.modules.runnable import Bound, Runnable
from mlfc.runtime.tensor.arrays import run_real
from mlfc.support.tensor_info import Array, TensorInfo
from mlfc.support.text import Displayed

Extents: TypeAlias = tuple[int, ...]
_AFTER = 2  # runs with the same shapes before code is generated for them
_MOST = 8  # number of shape sets whose code is kept


class SpecializingModel(Displayed):
    """A model for the virtual machine that is compiled again, in the background, for shapes that recur.

    Parameters
    ----------
    general : VmModel
        The model for any shapes.
    make : callable
        Returns the model for given values of the dynamic dimensions, by name. Any MlfcError disables specialization for
        these values.

    Attributes
    ----------
    inputs, outputs : tuple of TensorInfo
    """

    _shows = ("inputs", "outputs", "special")

    def __init__(self, general: VmModel, make: Callable[[Mapping[str, int]], Runnable]) -> None:
        self._general = general
        self._make = make
        self._guard = threading.Lock()
        self._seen: Counter[Extents] = Counter()
        self._ready: OrderedDict[Extents, Runnable] = OrderedDict()
        self._working: threading.Thread | None = None
        self._symbols = [symbol.name for symbol in general.executable.symbols]

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Inputs of the model, in order."""
        return self._general.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Outputs of the model, in order."""
        return self._general.outputs

    @property
    def special(self) -> list[dict[str, int]]:
        """The dynamic dimensions of each set of shapes with specialized code."""
        with self._guard:
            return [dict(zip(self._symbols, key, strict=True)) for key in self._ready]

    @property
    def state(self) -> Any:
        """Empty: models with state are not specialized."""
        return self._general.state

    def reset_state(self) -> None:
        """Do nothing."""

    def new_outputs(self) -> dict[str, Array]:
        """Return fresh arrays; as `VmModel.new_outputs`."""
        return self._general.new_outputs()

    def bind(
        self, inputs: Mapping[str, Any] | Sequence[Any], outputs: Mapping[str, Any] | Sequence[Any] | None = None
    ) -> Bound:
        """Return a callable that runs on these buffers, with the best code that currently exists for their shapes."""
        model = self._model_for(self._general.in_order(inputs))
        return model.bind(inputs, outputs)

    def run(self, *inputs: Any, real: bool = False) -> dict[str, Array]:
        """Run one inference, on a mapping by name or on arrays in order; `real` is as for `AotModule.run`."""
        if real:
            return run_real(self, inputs)
        given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], Mapping) else inputs
        model = self._model_for(self._general.in_order(given))
        return model.run(given) if isinstance(given, Mapping) else model.run(*given)

    def wait(self) -> None:
        """Wait until no code is being generated."""
        with self._guard:
            working = self._working
        if working is not None:
            working.join()

    def _model_for(self, arrays: Sequence[Any]) -> Runnable:
        key = self._key(arrays)
        if key is None:
            return self._general
        with self._guard:
            if key in self._ready:
                self._ready.move_to_end(key)
                return self._ready[key]
            self._seen[key] += 1
            if self._seen[key] >= _AFTER and self._working is None:
                self._working = threading.Thread(target=self._specialize, args=(key,), daemon=True)
                self._working.start()
        return self._general

    def _key(self, arrays: Sequence[Any]) -> Extents | None:
        """Return the values of the dynamic dimensions; None for invalid inputs, which the general code reports."""
        found: dict[str, int] = {}
        for value, array in zip(self._general.executable.inputs, arrays, strict=True):
            shape = np.shape(array)
            if len(shape) != len(value.extents):
                return None
            for extent, actual in zip(value.extents, shape, strict=True):
                wanted = found.setdefault(extent, actual) if isinstance(extent, str) else extent
                if wanted not in (actual, None):
                    return None
        # a dimension that only occurs in an expression is computed by the code, not here
        is_complete = len(found) == len(self._symbols) > 0
        return tuple(found[name] for name in self._symbols) if is_complete else None

    def _specialize(self, key: Extents) -> None:
        try:
            made = self._make(dict(zip(self._symbols, key, strict=True)))
        except MlfcError:
            made = self._general
        with self._guard:
            self._ready[key] = made
            while len(self._ready) > _MOST:
                self._ready.popitem(last=False)
            self._seen.pop(key, None)
            self._working = None

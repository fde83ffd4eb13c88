"""Models that get faster for the shapes that they are run on: code for these is made while the general code runs."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from mlfc.errors import MlfcError
from mlfc.runtime.executors.vm.vm_model import VmModel
from mlfc.runtime.modules.runnable import Bound, Runnable
from mlfc.support.arrays import Array
from mlfc.support.tensor_info import TensorInfo
from mlfc.support.text import Displayed

Extents: TypeAlias = tuple[int, ...]
_AFTER = 2  # runs on the same shapes, before code is made for these
_MOST = 8  # sets of shapes whose code is kept


class SpecializingModel(Displayed):
    """A model for the virtual machine that is compiled anew, in the background, for shapes that come back.

    Parameters
    ----------
    general : VmModel
        Runs any shapes.
    make : callable
        Takes values of the open dimensions by name and returns the model for these; what it raises ends the attempt for
        them.

    Attributes
    ----------
    inputs, outputs : tuple of TensorInfo
    """

    def __init__(self, general: VmModel, make: Callable[[Mapping[str, int]], Runnable]) -> None:
        self._general = general
        self._make = make
        self._guard = threading.Lock()
        self._seen: Counter[Extents] = Counter()
        self._ready: OrderedDict[Extents, Runnable] = OrderedDict()
        self._working: threading.Thread | None = None
        self._symbols = [symbol.name for symbol in general.executable.symbols]

    def _facts(self) -> Mapping[str, object]:
        return {"inputs": self.inputs, "outputs": self.outputs, "special": self.special}

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Its inputs, in order."""
        return self._general.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Its outputs, in order."""
        return self._general.outputs

    @property
    def special(self) -> list[dict[str, int]]:
        """The open dimensions of each set of shapes that has code of its own."""
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
        """Return a callable that runs on these buffers, by the code that there is now for their shapes."""
        model = self._model_for(self._general.in_order(inputs))
        return model.bind(inputs, outputs)

    def run(self, *inputs: Any) -> dict[str, Array]:
        """Run one inference, on a mapping by name or on arrays in order."""
        given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], Mapping) else inputs
        model = self._model_for(self._general.in_order(given))
        return model.run(given) if isinstance(given, Mapping) else model.run(*given)

    def wait(self) -> None:
        """Wait until no code is being made."""
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
        """Return the values of the open dimensions, None where the inputs do not fit: then the general code says so."""
        found: dict[str, int] = {}
        for value, array in zip(self._general.executable.inputs, arrays, strict=True):
            shape = np.shape(array)
            if len(shape) != len(value.extents):
                return None
            for extent, actual in zip(value.extents, shape, strict=True):
                wanted = found.setdefault(extent, actual) if isinstance(extent, str) else extent
                if wanted not in (actual, None):
                    return None
        # a dimension that is only part of another one is found in the code
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

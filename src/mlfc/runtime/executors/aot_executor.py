"""A model compiled ahead of time behind the functions of TVM's executors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlfc.errors import InputError
from mlfc.runtime.modules.runnable import Runnable, require_success
from mlfc.runtime.tensor.arrays import by_name, counts
from mlfc.support.arrays import Array
from mlfc.support.c_names import names_in_tables
from mlfc.support.tensor_info import TensorInfo
from mlfc.support.text import Displayed


class AotExecutor(Displayed):
    """Inputs are set, the model run, outputs fetched.

    Parameters
    ----------
    model : Runnable
        What computes. Inputs are zeros until they are set.
    """

    def __init__(self, model: Runnable) -> None:
        self.model = model
        zeros = {info.name: np.zeros(info.shape, info.numpy_dtype) for info in model.inputs}
        self._call = model.bind(zeros)

    def _facts(self) -> Mapping[str, object]:
        return {"inputs": self.model.inputs, "outputs": self.model.outputs}

    def _input(self, key: str | int) -> TensorInfo:
        infos = self.model.inputs
        index = self.get_input_index(key) if isinstance(key, str) else key
        if not counts(index, len(infos)):
            known = ", ".join(map(str, infos)) or "none"
            raise InputError("the model has no such input", place=str(key), next_step=f"It has: {known}")
        return infos[index]

    def set_input(self, key: str | int | None = None, value: Any = None, /, **inputs: Any) -> None:
        """Copy values into inputs: one by its name or number, and others by their names."""
        given: list[tuple[str | int, Any]] = [*inputs.items()]
        if key is not None:
            given.append((key, value))
        for name, array in given:
            info = self._input(name)
            self._call.inputs[info.name][...] = by_name({info.name: array}, [info], "input")[info.name]

    def get_input(self, key: str | int) -> Array:
        """Return a copy of an input."""
        return self._call.inputs[self._input(key).name].copy()

    def run(self, **inputs: Any) -> None:
        """Set `inputs`, if there are any, and run; raise RunError if the model reports failure."""
        if inputs:
            self.set_input(**inputs)
        require_success(self._call())

    def get_output(self, index: int, out: Array | None = None) -> Array:
        """Return a copy of output `index`, in `out` if that is given."""
        infos = self.model.outputs
        if not counts(index, len(infos)):
            raise InputError(f"output {index} is out of range: the model has {len(infos)}")
        result = self._call.outputs[infos[index].name]
        if out is None:
            return result.copy()
        by_name([out], [infos[index]], "output")[infos[index].name][...] = result
        return out

    def get_num_inputs(self) -> int:
        """Return how many inputs there are."""
        return len(self.model.inputs)

    def get_num_outputs(self) -> int:
        """Return how many outputs there are."""
        return len(self.model.outputs)

    def get_input_index(self, name: str) -> int:
        """Return the number of an input, -1 if there is none of this name.

        As in TVM's executor, only letters and digits are compared unless a name matches exactly.
        """
        names = [info.name for info in self.model.inputs]
        if name not in names:
            names, (name,) = names_in_tables(names), names_in_tables([name])
        return names.index(name) if name in names else -1

    def get_input_name(self, index: int) -> str:
        """Return the name of an input."""
        return self._input(index).name

    def get_input_info(self) -> dict[str, TensorInfo]:
        """Return what each input is."""
        return {info.name: info for info in self.model.inputs}

    def get_output_info(self) -> dict[str, TensorInfo]:
        """Return what each output is."""
        return {info.name: info for info in self.model.outputs}

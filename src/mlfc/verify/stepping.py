"""References of models that keep state: what is compared are steps of one sequence of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlfc.support.arrays import Array
from mlfc.support.module_info import StateInfo
from mlfc.verify.reference import Reference, WrappedReference


class Stepping(WrappedReference):
    """A reference that keeps the states of a compiled model.

    Parameters
    ----------
    reference : Reference
        Keeps variables of the model itself; of what was tied, it takes the old values and gives the new ones.
    states : sequence of StateInfo
        Of the compiled model.
    initial : mapping of str to ndarray
        What they begin with, by name.
    always_new : bool
        Whether every run is the first of a sequence, as those of firmware that is started anew.
    """

    def __init__(
        self,
        reference: Reference,
        states: Sequence[StateInfo],
        initial: Mapping[str, Array],
        *,
        always_new: bool = False,
    ) -> None:
        self._next = {info.name: info.next for info in states if info.name in reference.input_names}
        super().__init__(reference, self._next)
        self._initial = {name: initial[name] for name in self._next}
        self.knows_all = len(self._next) == len(states)  # whether none is a variable of the reference's own
        self._always_new = always_new
        self.begin()

    def begin(self) -> None:
        """Begin a sequence."""
        super().begin()
        self._held = dict(self._initial)

    @property
    def output_names(self) -> frozenset[str]:
        """The outputs of the model, but for the next values of states."""
        return self._reference.output_names - set(self._next.values())

    @property
    def held(self) -> Mapping[str, Array]:
        """What was tied, by the names of inputs: their values in the next run."""
        return self._held

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return tensors by name, and go one step further."""
        if self._always_new:
            self.begin()
        found = self._reference.run({**inputs, **self._held})
        self._held = {name: found[output] for name, output in self._next.items()}
        return found

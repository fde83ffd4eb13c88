"""Branches that stand for an If whose branches give values of different ranks: those that fit the rest of the model.

Exporters ask for extents where they could not know them: whether a dimension is 1, and so may be dropped. Nodes behind
such an If take one of the ranks alone. One is tried after the other, and the run checks that the condition says so. A
Squeeze without axes is such a node, too: whether it drops a dimension depends on the run.
"""

from __future__ import annotations

from mlfc.errors import InternalError, LimitError, MlfcError, OptionError

_TRY_LIMIT = 8  # of which each is an import


class Chosen(Exception):  # noqa: N818  (not an error: the import restarts)
    """A branch was chosen, or the other one: the import begins anew with that."""


class Choices:
    """What is tried for the conditions of one model, by the names of the nodes."""

    def __init__(self) -> None:
        self._taken: dict[str, bool] = {}
        self._tries = 0
        self.is_over = False  # nothing fits: these nodes are refused

    def taken(self, name: str) -> bool | None:
        """Return whether the condition of a node is to hold; None where nothing is chosen."""
        return self._taken.get(name)

    def chosen(self, may_restart: bool, name: str) -> bool:
        """Return whether a node is imported in the first of two ways, which it is until that does not fit."""
        if name not in self._taken and may_restart and not self.is_over:
            self.choose(name)
        return self._taken.get(name, True)

    def choose(self, name: str) -> None:
        """Choose the first branch, or way, of a node; raise `Chosen`."""
        self._taken[name] = True
        raise Chosen

    def misfit(self, problem: Exception) -> None:
        """Raise `Chosen` with the next branches to be tried where a problem may be one of those that were chosen."""
        is_of_model = isinstance(problem, MlfcError) and not isinstance(
            problem, (InternalError, LimitError, OptionError)
        )
        if not self._taken or not is_of_model:
            return
        while self._taken:
            name, holds = self._taken.popitem()
            if holds:
                self._taken[name] = False
                break
        self._tries += 1
        if not self._taken or self._tries >= _TRY_LIMIT:
            self._taken.clear()
            self.is_over = True
        raise Chosen from problem

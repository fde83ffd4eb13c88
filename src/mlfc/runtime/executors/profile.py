"""What profiling a model gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlfc.support.display import Displayed, html_table

if TYPE_CHECKING:
    from mlfc.support.module_info import OperatorInfo


@dataclass(frozen=True)
class OperatorTime(Displayed):
    """The time of one operator of a model: of one call of a generated function.

    Attributes
    ----------
    index : int
        Its place in the order of execution.
    function : str
        The generated C function.
    nodes : tuple of str
        The nodes of the original model that it computes.
    macs : int
        Multiply-accumulates.
    nanoseconds : float
        The median over the runs. It includes reading the clock, some 20 to 50 ns.
    share : float
        Its part of the time of all operators together, 0 to 1.
    """

    index: int
    function: str
    nodes: tuple[str, ...]
    macs: int
    nanoseconds: float
    share: float

    @property
    def gmacs_per_second(self) -> float | None:
        """Billions of multiply-accumulates a second; None for an operator without any."""
        return self.macs / self.nanoseconds if self.macs and self.nanoseconds else None


@dataclass(frozen=True, repr=False)
class Profile(Displayed):
    """What `profile` measured.

    Attributes
    ----------
    operators : tuple of OperatorTime
        In the order of execution.
    runs : tuple of float
        Seconds of each run as a whole, as the caller sees it.
    outputs : dict of str to ndarray
        Of the last run.
    """

    operators: tuple[OperatorTime, ...]
    runs: tuple[float, ...]
    outputs: Mapping[str, Any]

    def _facts(self) -> Mapping[str, object]:
        median = f"{float(np.median(self.runs)) * 1e3:.4g} ms" if self.runs else "-"
        return {"operators": len(self.operators), "runs": len(self.runs), "median": median}

    def _repr_html_(self) -> str:
        header = ("", "function", "nodes", "MACs", "median us", "share")
        rows = [
            (item.index, item.function, item.nodes, item.macs, f"{item.nanoseconds / 1e3:.4g}", f"{item.share:.1%}")
            for item in self.operators
        ]
        return html_table("Profile", header, rows)


def operator_times(operators: Sequence[OperatorInfo], nanoseconds: Any) -> tuple[OperatorTime, ...]:
    """Return the median time of each operator.

    Parameters
    ----------
    operators : sequence of OperatorInfo
        In order.
    nanoseconds : array_like
        A row for each run, a column for each operator.
    """
    medians = np.median(np.asarray(nanoseconds).reshape(-1, len(operators)), axis=0) if len(operators) else []
    total = float(sum(medians)) or 1.0
    return tuple(
        OperatorTime(index, entry.function, entry.nodes, entry.macs, float(median), float(median) / total)
        for index, (entry, median) in enumerate(zip(operators, medians, strict=True))
    )

"""The table of operators of ``mlfc run --profile``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlfc.cli.tables import print_table

if TYPE_CHECKING:
    from mlfc.runtime import OperatorTime

_COLUMNS = ("#", "function", "nodes", "MACs", "median us", "share %", "GMAC/s")


def as_rows(operators: Sequence[OperatorTime], top: int) -> list[dict[str, Any]]:
    """Return the slowest `top` operators for JSON, all of them where `top` is 0; the slowest comes first."""
    return [
        {
            "index": item.index,
            "function": item.function,
            "nodes": list(item.nodes),
            "macs": item.macs,
            "median_us": item.nanoseconds / 1e3,
            "share": item.share,
            "gmacs_per_second": item.gmacs_per_second,
        }
        for item in _slowest(operators, top)
    ]


def print_profile(operators: Sequence[OperatorTime], top: int) -> None:
    """Print the slowest `top` operators, all of them where `top` is 0; the slowest comes first."""
    shown = _slowest(operators, top)
    total = sum(item.nanoseconds for item in operators) / 1e3
    title = f"operators: {len(operators)} take {total:.6g} us together"
    if len(shown) < len(operators):
        title += f"; the slowest {len(shown)} take {sum(item.share for item in shown):.1%}"
    print_table(title, _COLUMNS, [_cells(item) for item in shown])


def _slowest(operators: Sequence[OperatorTime], top: int) -> list[OperatorTime]:
    # operators of equal time stay in the order of execution
    return sorted(operators, key=lambda item: -item.nanoseconds)[: top or None]


def _cells(item: OperatorTime) -> tuple[object, ...]:
    rate = item.gmacs_per_second
    return (
        item.index,
        item.function,
        ", ".join(item.nodes),
        item.macs,
        round(item.nanoseconds / 1e3, 2),
        round(item.share * 100, 1),
        None if rate is None else round(rate, 2),
    )

"""The table of operators by the instructions that they took on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlfc.cli.tables import print_table

if TYPE_CHECKING:
    from mlfc.runtime.executors.profile import OperatorTime
    from mlfc.support.module_info import OperatorInfo

_COLUMNS = ("#", "function", "nodes", "MACs", "instructions", "share %", "per MAC")


def instruction_rows(
    operators: Sequence[OperatorInfo | OperatorTime], counts: Sequence[int], top: int
) -> list[dict[str, Any]]:
    """Return the operators with most instructions, all of them where `top` is 0.

    Parameters
    ----------
    operators : sequence of OperatorInfo or OperatorTime
        In the order of execution.
    counts : sequence of int
        The instructions of each; empty where nobody counted.
    top : int
    """
    total = sum(counts) or 1
    rows: list[dict[str, Any]] = [
        {
            "index": index,
            "function": entry.function,
            "nodes": list(entry.nodes),
            "macs": entry.macs,
            "instructions": count,
            "share": count / total,
            "per_mac": count / entry.macs if entry.macs else None,
        }
        for index, (entry, count) in enumerate(zip(operators, counts, strict=False))
    ]
    # operators of equal cost stay in the order of execution
    return sorted(rows, key=lambda row: -row["instructions"])[: top or None]


def print_instructions(rows: Sequence[Mapping[str, Any]], count: int) -> None:
    """Print rows of `instruction_rows` out of `count` operators."""
    cells = [
        (row["index"], row["function"], ", ".join(row["nodes"]), row["macs"], row["instructions"],
         round(row["share"] * 100, 1), row["per_mac"] and round(row["per_mac"], 2))
        for row in rows
    ]  # fmt: skip
    print_table(f"operators: {count}", _COLUMNS, cells)

"""Tables and JSON of a run: outputs, operators by time, operators by instructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlfc.cli.tables import describe_tensor, print_table

if TYPE_CHECKING:
    from mlfc.runtime import OperatorTime, TensorInfo
    from mlfc.support.arrays import Array
    from mlfc.support.module_info import OperatorInfo

_TIMES = ("#", "function", "nodes", "MACs", "median us", "share %", "GMAC/s")
_COUNTS = ("#", "function", "nodes", "MACs", "instructions", "share %", "per MAC")


def summaries(infos: Sequence[TensorInfo], results: Mapping[str, Array], top: int) -> list[dict[str, Any]]:
    """Return a summary of each output for tables and JSON, with its largest `top` values."""
    return [_summary(info, results[info.name], top) for info in infos]


def print_outputs(tensors: Sequence[dict[str, Any]]) -> None:
    """Print what `summaries` returned."""
    print_table(
        "outputs",
        ("name", "type", "smallest", "largest", "mean"),
        [(item["name"], describe_tensor(item), item["min"], item["max"], item["mean"]) for item in tensors],
    )
    for item in tensors:
        if item["top"]:
            rows = [(entry["index"], entry["value"], entry["real"]) for entry in item["top"]]
            print_table(f"largest of {item['name']}", ("index", "value", "real value"), rows)


def _summary(info: TensorInfo, array: Array, top: int) -> dict[str, Any]:
    import numpy as np

    values = array.astype(np.float64).ravel()
    # stable: of equal values the first comes first
    order = np.argsort(-values, kind="stable")[:top]
    scale, zero = info.scale, info.zero_point or 0
    return {
        "name": info.name,
        "dtype": info.dtype,
        "shape": list(info.shape),
        "min": float(values.min()) if values.size else None,
        "max": float(values.max()) if values.size else None,
        "mean": float(values.mean()) if values.size else None,
        "top": [
            {
                "index": int(index),
                "value": array.ravel()[index].item(),
                "real": None if scale is None else scale * (float(values[index]) - zero),
            }
            for index in order
        ],
    }


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
    print_table(title, _TIMES, [_cells(item) for item in shown])


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


def instruction_rows(
    operators: Sequence[OperatorInfo | OperatorTime], counts: Sequence[int], top: int
) -> list[dict[str, Any]]:
    """Return the `top` operators with most instructions, all if 0; `counts` is empty if nothing was counted."""
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
    print_table(f"operators: {count}", _COUNTS, cells)

"""Tables and JSON of a run: outputs, operators by time, operators by instructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mlfc.cli.tables import cell_text, describe_tensor, distinct, print_table, terminal_width
from mlfc.errors import ToolchainError
from mlfc.support.progress import stage

if TYPE_CHECKING:
    from mlfc.library.peaks import Peaks, Roofline
    from mlfc.runtime import OperatorTime, Profile, TensorInfo
    from mlfc.runtime.devices.device import Device
    from mlfc.support.module_info import OperatorInfo
    from mlfc.support.tensor_info import Array

# columns in the order in which narrow terminals drop them: names and times stay
_LOST = ("function", "GB/s", "GMAC/s", "bytes", "MACs", "balance %")
_LEAST_NAME, _NAME = 24, 64
_TOP = {"inputs": "inputs", "index": "index", "value": "value", "real": "real value", "label": "label"}
_MOST_SETS = 20
_COUNTS = ("#", "function", "nodes", "MACs", "instructions", "share %", "per MAC")


def summaries(
    infos: Sequence[TensorInfo], results: Mapping[str, Array], top: int, labels: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return a summary of each output for tables and JSON, with its largest `top` values.

    `labels`: of the values of outputs with as many values.
    """
    return [_summary(info, results[info.name], top, labels) for info in infos]


def print_outputs(tensors: Sequence[dict[str, Any]]) -> None:
    """Print the result of `summaries`."""
    print_table(
        "outputs",
        ("name", "type", "smallest", "largest", "mean"),
        [(item["name"], describe_tensor(item), item["min"], item["max"], item["mean"]) for item in tensors],
    )
    for item in tensors:
        if item["top"]:
            _print_top(f"largest of {item['name']}", item["top"])


def print_sets(sets: Sequence[Mapping[str, Any]]) -> None:
    """Print the largest values of each output for several sets of inputs: ``inputs``, and the values by output."""
    for name in [name for name in sets[0] if name != "inputs"]:
        rows = [{"inputs": item["inputs"], **entry} for item in sets[:_MOST_SETS] for entry in item[name]]
        _print_top(f"largest of {name}", rows)
    if len(sets) > _MOST_SETS:
        typer.echo(f"{len(sets) - _MOST_SETS} more sets: --json")


def _print_top(title: str, entries: Sequence[Mapping[str, Any]]) -> None:
    keys = [key for key in _TOP if any(entry.get(key) is not None for entry in entries)]
    print_table(title, [_TOP[key] for key in keys], [[entry.get(key) for key in keys] for entry in entries])


def _summary(info: TensorInfo, array: Array, top: int, labels: Sequence[str] | None) -> dict[str, Any]:
    import numpy as np

    values = array.astype(np.float64).ravel()
    # stable: equal values keep their order
    order = np.argsort(-values, kind="stable")[:top]
    scale, zero = info.scale, info.zero_point or 0
    is_labelled = labels is not None and len(labels) == array.size
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
                **({"label": labels[index]} if labels is not None and is_labelled else {}),
            }
            for index in order
        ],
    }


def as_rows(operators: Sequence[OperatorTime], top: int, peaks: Peaks | None = None) -> list[dict[str, Any]]:
    """Return the slowest `top` operators for JSON, the slowest first; all of them if `top` is 0."""
    from mlfc.archive.describe.profile_page import operator_row

    return [operator_row(item, peaks) for item in _slowest(operators, top)]


def print_profile(operators: Sequence[OperatorTime], top: int, peaks: Peaks | None = None) -> None:
    """Print the slowest `top` operators, the slowest first; all of them if `top` is 0."""
    shown = _slowest(operators, top)
    total = sum(item.nanoseconds for item in operators) / 1e3
    title = f"operators: {len(operators)} take {total:.6g} us in total"
    if len(shown) < len(operators):
        title += f"; the slowest {len(shown)} take {sum(item.share for item in shown):.1%}"
    rows = [_cells(item, None if peaks is None else peaks.limit(item)) for item in shown]
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)] if rows else ["#"]
    width = terminal_width()
    for name in _LOST if width is not None else ():
        if _room(columns, rows, width or 0) < _LEAST_NAME and name in columns:
            columns.remove(name)
    room = _NAME if width is None else max(8, min(_NAME, _room(columns, rows, width)))
    for name in {"function", "nodes"} & {*columns}:
        for row, text in zip(rows, distinct([str(row[name]) for row in rows], room), strict=True):
            row[name] = text
    print_table(title, columns, [[row[name] for name in columns] for row in rows])
    if peaks is not None:
        threads = f"{peaks.threads} threads" if peaks.threads > 1 else "one thread"
        typer.echo(
            f"  peaks with {threads}: {peaks.float32 / 1e9:,.0f} G float32 and {peaks.int8 / 1e9:,.0f} G int8 MAC/s,"
            f" {peaks.bandwidth[0][1] / 1e9:,.0f} GB/s from cache, {peaks.bandwidth[-1][1] / 1e9:,.0f} GB/s from memory"
        )
        for text in peaks.explanations(shown):
            typer.echo(f"  shares {text}")


def _room(columns: Sequence[str], rows: Sequence[Mapping[str, object]], width: int) -> int:
    """Return the width of columns of names in a table of all columns with a given width."""
    names = [name for name in columns if name in ("function", "nodes")]
    others = (max(len(name), *(len(cell_text(row[name])) for row in rows)) + 3 for name in columns if name not in names)
    return (width - 1 - sum(others)) // max(1, len(names)) - 3


def _slowest(operators: Sequence[OperatorTime], top: int) -> list[OperatorTime]:
    # operators of equal time stay in the order of execution
    return sorted(operators, key=lambda item: -item.nanoseconds)[: top or None]


def _cells(item: OperatorTime, limit: Roofline | None) -> dict[str, object]:
    return {
        "#": item.index,
        "function": item.function,
        "nodes": ", ".join(item.nodes),
        "MACs": item.macs,
        "bytes": item.nbytes,
        "median us": round(item.nanoseconds / 1e3, 2),
        "share %": round(item.share * 100, 1),
        "GMAC/s": _rounded(item.gmacs_per_second, 1, 2),
        "GB/s": _rounded(item.gbytes_per_second, 1, 2),
        "of peak %": limit and _rounded(limit.share, 100, 1),
        "peak of": limit and limit.bound,
        "balance %": _rounded(item.balance, 100, 0),
    }


def _rounded(value: float | None, factor: int, digits: int) -> float | None:
    return None if value is None else round(value * factor, digits)


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
    print_table(f"operators: {count}", _COUNTS, cells, optional=("function", "per MAC"))


def known_peaks(devices: Sequence[Device]) -> Peaks | None:
    """Return this machine's peak performance; None for a device, or without a C compiler to measure it."""
    from mlfc.library.peaks import machine_peaks
    from mlfc.runtime.threads import get_num_threads, pool_function

    if any(device.kind != "cpu" for device in devices):
        return None
    with stage("measuring this machine, once"):
        try:
            # without a pool, no loaded code distributes its work
            return machine_peaks(1 if pool_function() is None else get_num_threads())
        except ToolchainError as error:
            typer.echo(f"shares of the machine's peak are unknown: {error}", err=True)
            return None


def write_profile(page: Path | None, trace: Path | None, model: str, profile: Profile, peaks: Peaks | None) -> None:
    """Write the profile files that the user requested."""
    from mlfc.archive.describe.profile_page import profile_page, trace_text
    from mlfc.support.atomic import write_bytes

    for path, make in ((page, profile_page), (trace, trace_text)):
        if path is not None:
            write_bytes(path, make(model, profile, peaks).encode())

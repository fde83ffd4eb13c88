"""The tables of a model's outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlfc.cli.tables import describe_tensor, print_table

if TYPE_CHECKING:
    from mlfc.runtime import TensorInfo
    from mlfc.support.arrays import Array


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

"""Effect of prefetching weights: ``python -m benchmarks prefetches``."""

from __future__ import annotations

from unittest.mock import patch

from rich.table import Table

import mlfc
from benchmarks.latency import TARGET, interleaved
from benchmarks.models import Model, random_inputs
from mlfc.kernels import conv_tile


def table(models: list[Model], seconds: float) -> Table:
    """Return the times of whole models with and without prefetches, alternating; outputs must be the same."""
    made = Table("model", "without, ms", "with, ms", "ratio", title="Prefetches of weights")
    for model in models:
        made.add_row(model.name, *_cells(model, seconds))
    return made


def _cells(model: Model, seconds: float) -> tuple[str, ...]:
    with patch.object(conv_tile, "MOST_TILES", 0):
        without = mlfc.compile(model.path, TARGET)
    ours = mlfc.compile(model.path, TARGET)
    inputs = random_inputs(ours.inputs)
    before, after = (next(iter(each.run(inputs).values())).tobytes() for each in (without, ours))
    if before != after:
        raise SystemExit(f"{model.name}: prefetches change the results")
    times = interleaved({"off": without.bind(inputs), "on": ours.bind(inputs)}, seconds)
    return f"{times['off'] * 1e3:,.2f}", f"{times['on'] * 1e3:,.2f}", f"{times['on'] / times['off']:.2f}"

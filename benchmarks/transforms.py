"""What 3x3 convolutions by transforms save, and how far off they are: ``python -m benchmarks winograd``."""

from __future__ import annotations

import numpy as np
from rich.table import Table

import mlfc
from benchmarks.latency import TARGET, interleaved
from benchmarks.models import Model, random_inputs

OFF = f"{TARGET} -winograd=off"


def table(models: list[Model], seconds: float) -> Table:
    """Return the times of whole models both ways, in turn, and the largest difference of their outputs."""
    made = Table(
        "model", "direct ms", "transforms ms", "ratio", "largest difference", title="Convolutions by transforms"
    )
    for model in models:
        if not model.integer:
            made.add_row(model.name, *_cells(model, seconds))
    return made


def _cells(model: Model, seconds: float) -> tuple[str, ...]:
    compiled = [mlfc.compile(model.path, target) for target in (OFF, TARGET)]
    inputs = random_inputs(compiled[0].inputs)
    direct, ours = (next(iter(each.run(inputs).values())) for each in compiled)
    scale = float(np.abs(direct).max()) or 1.0
    times = interleaved({name: each.bind(inputs) for name, each in zip(("off", "on"), compiled, strict=True)}, seconds)
    return (
        f"{times['off'] * 1e3:,.2f}",
        f"{times['on'] * 1e3:,.2f}",
        f"{times['on'] / times['off']:.2f}",
        f"{float(np.abs(direct - ours).max()) / scale:.1e}",
    )

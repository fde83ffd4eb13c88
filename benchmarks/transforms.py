"""Speed and accuracy of 3x3 convolutions by Winograd transforms: ``python -m benchmarks winograd``."""

from __future__ import annotations

import numpy as np
from rich.table import Table

import mlfc
from benchmarks.latency import TARGET, interleaved
from benchmarks.models import Model, random_inputs

OFF = f"{TARGET} -winograd=off"


def table(models: list[Model], seconds: float) -> Table:
    """Return the alternating times of whole models with and without transforms, and the largest output difference."""
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

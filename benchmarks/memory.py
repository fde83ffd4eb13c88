"""Workspace compared with its lower bound, and with other runtimes' memory for the same model."""

from __future__ import annotations

from rich.table import Table

import mlfc
from benchmarks.models import Model

# Bytes of RAM of a whole inference on Cortex-M4 (arena or buffers, data, stack), measured under QEMU in November 2026
# with TFLite Micro + CMSIS-NN and with microTVM of TVM 0.14.
PEERS = {
    "pretrainedResnet_quant": (57_356, 119_772),
    "kws_ref_model": (25_180, 106_020),
    "vww_96_int8": (103_068, 249_260),
    "ad01_int8": (3_564, 2_048),
}


def measure(model: Model, target: str) -> tuple[str, ...]:
    """Return the table row of one model."""
    mod, params = mlfc.import_model(model.path)
    factory = mlfc.build(mod, target=target, params=params, module_name=model.name)
    sizes = factory.code.sizes
    plan = factory.plan
    peer = PEERS.get(model.name)
    return (
        model.name,
        target,
        f"{plan.size:,}",
        f"{plan.lower_bound:,}",
        f"{plan.size / plan.lower_bound:.3f}" if plan.lower_bound else "-",
        f"{sizes.io:,}",
        f"{sizes.constants:,}",
        f"{peer[0]:,}" if peer else "",
        f"{peer[1]:,}" if peer else "",
    )


def table(models: list[Model]) -> Table:
    """Return the table of all models, for the host and for a microcontroller."""
    result = Table(title="Memory in bytes; peers' figures are whole RAM on Cortex-M4")
    headings = (
        "model", "target", "workspace", "lower bound", "ratio", "in + out", "constants", "TFLM+CMSIS-NN", "microTVM",
    )  # fmt: skip
    for name in headings:
        result.add_column(name, justify="left" if name in ("model", "target") else "right")
    for model in models:
        for target in ("c", "c -mcpu=cortex-m4") if model.integer else ("c",):
            result.add_row(*measure(model, target))
    return result

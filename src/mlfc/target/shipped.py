"""What was measured for the kernels of well-known models, by processor: it comes with mlfc and is the default."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from mlfc.target.features import CPUS
from mlfc.target.target import Target
from mlfc.target.tuning_log import TuningLog, opened_log

FOLDER = Path(__file__).parent / "tuned_kernels"
"""A log for each processor, ``x86-64-v4.jsonl``, which `benchmarks/tuning.py` writes."""


def shipped_log(target: Target) -> TuningLog | None:
    """Return the log for a target's processor, or the highest of its levels; None where nobody measured."""
    if target.kind != "c" or not target.features.vector_bytes:
        return None
    name = target.mcpu if target.levels is None else target.levels.levels[-1].name
    return _log(name) or _log(CPUS.get(name).base if name in CPUS else "")


@cache
def _log(processor: str) -> TuningLog | None:
    path = FOLDER / f"{processor}.jsonl"
    return opened_log(path) if path.is_file() else None

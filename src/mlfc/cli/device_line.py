"""What of a model runs on a device, as commands tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlfc.support.text import shortened

_COPY = "__copy"
_SHOWN = 5


def device_line(operators: Sequence[Mapping[str, Any]], wanted: str | None = None) -> str | None:
    """Return how many operators run on a device and which do not; None for a model of the host alone.

    Parameters
    ----------
    operators : sequence of mapping
        ``function``, ``nodes`` and, in models for devices, ``device`` of each, copies among them.
    wanted : str, optional
        The kind of device that the model was compiled for: nothing of it may run there.
    """
    kinds = sorted({item["device"] for item in operators if item.get("device") not in (None, "cpu")})
    if not kinds:
        none = f"no operator of {len(operators)} runs on {wanted}: the host computes the model alone"
        return none if wanted else None
    computed = [item for item in operators if item["function"] != _COPY]
    there = [item for item in computed if item["device"] != "cpu"]
    text = f"{len(there)} of {len(computed)} operators run on {', '.join(kinds)}"
    copies = len(operators) - len(computed)
    if copies:
        text += f", with {copies} {'copies' if copies > 1 else 'copy'} between devices"
    here = [", ".join(item["nodes"] or ()) or item["function"] for item in computed if item["device"] == "cpu"]
    if here:
        more = f" and {len(here) - _SHOWN} more" if len(here) > _SHOWN else ""
        text += f"; on the host: {'; '.join(map(shortened, here[:_SHOWN]))}{more}"
    return text

"""Which of several modules is meant."""

from __future__ import annotations

from collections.abc import Iterable

from mlfc.errors import OptionError, unknown


def pick_module(modules: Iterable[str], name: str | None, place: str) -> str:
    """Return the module that is meant; raise OptionError if that is not clear."""
    known = sorted(modules)
    names = ", ".join(known)
    if name is None and len(known) != 1:
        raise OptionError(f"expected one module, got {len(known)}", place=place, next_step=f"Name one of: {names}")
    chosen = known[0] if name is None else name
    if chosen not in known:
        raise OptionError(unknown("module", chosen, known), place=place)
    return chosen

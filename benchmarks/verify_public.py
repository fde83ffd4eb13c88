"""Results of ``mlfc verify`` on models from the package index, for C and LLVM."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from benchmarks.public_models import MODELS, PublicModel, UnavailableError, collect
from mlfc.cli.options import parse_values
from mlfc.errors import MlfcError
from mlfc.frontend.shapes import parse_shapes
from mlfc.verify import Comparison, verify

TARGETS = ("c", "llvm")
SAMPLES = 2


def table(words: Sequence[str] = ()) -> Table:
    """Return a table of the models with one of these words in their names, or of all."""
    result = Table(title="Models from packages compared with their reference: the worst output")
    for title in ("model", "target", "verdict", "output", "inputs", "of the allowed difference", "SNR dB"):
        result.add_column(title)
    for model in MODELS:
        if not words or any(word in model.name for word in words):
            for target in TARGETS:
                result.add_row(model.name, target, *row(model, target))
    return result


def row(model: PublicModel, target: str) -> list[str]:
    """Return the result for a model, and its worst output."""
    try:
        collect([model])
        shapes, values = parse_shapes(model.shapes), parse_values(model.values)
        found = verify(model.path, samples=SAMPLES, target=target, shapes=shapes, values=values)
    except (UnavailableError, MlfcError) as error:
        return [str(error).splitlines()[0][:100], "", "", "", ""]
    return _worst(found)


def _worst(found: Comparison) -> list[str]:
    item = max(found.outputs, key=lambda one: (not one.is_within, bool(one.excuse), -one.snr))
    verdict = f"equal except for {item.excuse}" if item.excuse else "equal" if item.is_within else "DIFFERS"
    if item.nans:
        verdict += f", {item.nans} NaN in both"
    part = item.largest / item.tolerance if item.tolerance else float(item.largest > 0)
    return [verdict, item.tensor[:24], item.sample, f"{part:.2g}", f"{item.snr:.1f}"]

"""The quantities that readers limit, in archives of real models; ``docs/explanation/trust.md`` quotes them."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from rich.table import Table

import mlfc
from benchmarks.models import Model
from mlfc.archive.validate.parsed_files import MAX_TOKENS as MAX_C
from mlfc.archive.validate.parsed_files import defined_symbols
from mlfc.compiler import build
from mlfc.relay.text_literals import SECTION
from mlfc.relay.text_source import MAX_CODE, TOKEN
from mlfc.relay.text_source import MAX_TOKENS as MAX_RELAY
from mlfc.support.json_text import MAX_TOKENS as MAX_VALUES
from mlfc.support.json_text import values_of
from mlfc.support.tar import MAX_MEMBERS

LIMITS = {
    "members": MAX_MEMBERS, "metadata values": MAX_VALUES, "graph values": MAX_VALUES, "C words": MAX_C,
    "Relay characters": MAX_CODE, "Relay words": MAX_RELAY,
}  # fmt: skip


def counted(path: Path) -> dict[str, int]:
    """Return an archive's quantities; for graphs and Relay, whose limits apply per module, the largest."""
    with tarfile.open(path) as tar:
        found = tar.getmembers()
        files = {info.name: file.read() for info in found if (file := tar.extractfile(info)) is not None}
    return {"members": len(found), **_values(files), "C words": _c_words(files), **_relay(files)}


def _values(files: Mapping[str, bytes]) -> dict[str, int]:
    graphs = [values_of(data) for name, data in files.items() if name.endswith(".graph")]
    return {"metadata values": values_of(files["./metadata.json"]), "graph values": max(graphs, default=0)}


def _c_words(files: Mapping[str, bytes]) -> int:
    sources = [data for name, data in files.items() if name.startswith("./codegen/") and name.endswith(".c")]
    return sum(defined_symbols(data).tokens for data in sources)


def _relay(files: Mapping[str, bytes]) -> dict[str, int]:
    texts = [data.decode().partition(SECTION)[0] for name, data in files.items() if name.endswith(".relay")]
    return {
        "Relay characters": max(map(len, texts)),
        "Relay words": max(sum(1 for _ in TOKEN.finditer(text)) for text in texts),
    }


def table(models: list[Model], folder: Path, together: int = 100) -> Table:
    """Return a table of each model alone, of many small ones in one archive, and of the limits."""
    result = Table(title="What archives have, and what readers take at most")
    for title in ("archive", *LIMITS):
        result.add_column(title, justify="left" if title == "archive" else "right")
    path = folder / "counted.tar"
    for model in models:
        module, params = mlfc.import_model(model.path)
        counts = (1, together) if model.path.stat().st_size < 1 << 20 else (1,)
        for count, executor in product(counts, ("aot", "graph")):
            names = [f"m{index:03}" for index in range(count)]
            made = [build(module, params=params, executor=executor, module_name=name) for name in names]
            mlfc.export_model_library_format(made, path)
            title = model.name if count == 1 else f"{count} of {model.name}"
            result.add_row(f"{title}, {executor}", *(f"{number:,}" for number in counted(path).values()))
            path.unlink()
    result.add_row("limit", *(f"{number:,}" for number in LIMITS.values()))
    return result

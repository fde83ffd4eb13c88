"""What would make a model fit boards that it does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlfc.archive.write.budget import largest_text, peak_text
from mlfc.errors import MlfcError
from mlfc.micro.fit.setting import Setting
from mlfc.support.module_info import ModuleInfo

if TYPE_CHECKING:
    from mlfc.micro.fit.boards import BoardBudget
    from mlfc.micro.fit.builds import Builds

_FLOAT, _PART = "float32", 0.75  # of four bytes, one is left


@dataclass(frozen=True)
class Advice:
    """Something to do, and the bytes that it saves where these are computed."""

    text: str
    ram_bytes: int | None = None
    flash_bytes: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as an object of JSON."""
        return {"text": self.text, "ram_bytes": self.ram_bytes, "flash_bytes": self.flash_bytes}

    def __str__(self) -> str:
        saved = {"RAM": self.ram_bytes, "flash": self.flash_bytes}
        texts = [f"{nbytes:,} bytes of {kind}" for kind, nbytes in saved.items() if nbytes]
        return f"{self.text}: saves about {' and '.join(texts)}" if texts else self.text


def advice(rows: Sequence[BoardBudget], builds: Builds) -> tuple[Advice, ...]:
    """Return what would help where boards are too small, what saves most first."""
    compiled = _first_details(rows, builds)
    if compiled is None:
        return ()
    found = [*_quantizing(compiled), *_tiling(rows, builds, compiled)]
    if compiled.peak is not None and compiled.peak.tensors:
        found.append(Advice(f"Smaller inputs or layers for RAM: {peak_text(compiled.peak)}"))
    if compiled.constants:
        found.append(Advice(f"Smaller layers for flash: of the constants, {largest_text(compiled.constants)}"))
    return tuple(found)


def _first_details(rows: Sequence[BoardBudget], builds: Builds) -> ModuleInfo | None:
    for row in rows:
        try:
            return builds.get(row.board, Setting()).details
        except MlfcError:
            continue
    return None


def _quantizing(details: ModuleInfo) -> list[Advice]:
    """Advise to quantize a model whose weights are floats; what it computes with are floats as well then."""
    constants = details.constants or ()
    floats = sum(item.nbytes for item in constants if item.dtype == _FLOAT)
    if 2 * floats <= sum(item.nbytes for item in constants) or not floats:
        return []
    workspace = round(_PART * details.memory.workspace_bytes)
    text = "Quantize the model to int8 (mlfc quantize MODEL --calibrate DATA)"
    return [Advice(text, workspace, round(_PART * floats))]


def _tiling(rows: Sequence[BoardBudget], builds: Builds, details: ModuleInfo) -> list[Advice]:
    """Say what tiling saves at most, where boards were too small without."""
    tried = [row for row in rows if row.setting.ram is not None]
    found = [(builds.get(row.board, row.setting).details, row.setting) for row in tried]
    if not found:
        return []
    tiled, setting = min(found, key=lambda item: item[0].memory.workspace_bytes)
    if tiled.tiling is None:
        return []
    saved = details.memory.workspace_bytes + details.memory.io_bytes - tiled.memory.workspace_bytes
    layers = f"{len(tiled.tiling.nodes)} layers tiled by rows" if len(tiled.tiling.nodes) > 1 else "a tiled layer"
    return [Advice(f"With {setting.options} ({layers}, inputs in the workspace), as was tried", saved)]

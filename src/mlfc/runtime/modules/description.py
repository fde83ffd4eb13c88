"""What mlfc wrote into a library of its models, read without trusting it: the file may be damaged."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from mlfc.errors import ArchiveError
from mlfc.support import dtypes
from mlfc.support.json_text import parse_json
from mlfc.support.module_info import ModuleInterface

DESCRIPTION_SYMBOL = "mlfc_description"
"""JSON of what mlfc knows of the models in a library, which their code alone does not say."""

_MOST_BYTES = 1 << 48
_SHOWN = 60
_AGAIN = "The library is damaged: export it again"


def read_description(text: bytes, place: str) -> Mapping[str, ModuleInterface]:
    """Return what is said of each model, by its name.

    Parameters
    ----------
    text : bytes
        JSON; objects may have more keys than are known here.
    place : str
        The library, for messages.

    Raises
    ------
    ArchiveError
        If it is not what mlfc writes.
    """
    place = f"{place}: {DESCRIPTION_SYMBOL}"
    found = parse_json(text, place)
    modules = found.get("modules") if isinstance(found, dict) else None
    if not isinstance(modules, dict):
        raise ArchiveError("it has no modules", place=place, next_step=_AGAIN)
    return {name: _interface(name, module, place) for name, module in modules.items()}


def _interface(name: str, module: object, place: str) -> ModuleInterface:
    place = f"{place}: module '{name[:_SHOWN]}'"
    info = ModuleInterface.read(module, place, _AGAIN)
    if info.executor == "aot" and info.entry is None:
        raise ArchiveError("its entry has no name", place=place, next_step=_AGAIN)
    for tensors in (info.inputs, info.outputs):
        if len({tensor.name for tensor in tensors}) < len(tensors):
            raise ArchiveError("two of its inputs or outputs have one name", place=place, next_step=_AGAIN)
        for tensor in tensors:
            if prod(tensor.shape) * dtypes.nbytes(tensor.dtype) > _MOST_BYTES:
                raise ArchiveError(f"'{tensor.name[:_SHOWN]}' is too large", place=place, next_step=_AGAIN)
    if any(pool.nbytes > _MOST_BYTES for pool in info.pools) or info.memory.workspace_bytes > _MOST_BYTES:
        raise ArchiveError("its memory is too large", place=place, next_step=_AGAIN)
    return info

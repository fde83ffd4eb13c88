"""What mlfc wrote into a library of its models, read without trusting it: the file may be damaged."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from mlfc.errors import ArchiveError
from mlfc.support import dtypes
from mlfc.support.json_text import parse_json

DESCRIPTION_SYMBOL = "mlfc_description"
"""JSON of what mlfc knows of the models in a library, which their code alone does not say."""

_EXECUTORS = ("aot", "graph")
_MOST_BYTES = 1 << 48
_SHOWN = 60


def read_description(text: bytes, place: str) -> Mapping[str, Any]:
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
        raise _fault("it has no modules", place)
    for name, module in modules.items():
        fault = _fault_of(module)
        if fault:
            raise _fault(f"module '{name[:_SHOWN]}': {fault}", place)
    return modules


def _fault(cause: str, place: str) -> ArchiveError:
    return ArchiveError(cause, place=place, next_step="The library is damaged: export it again")


def _fault_of(module: Any) -> str | None:
    """Say what is wrong with the description of a module; None if nothing is."""
    if not isinstance(module, dict):
        return "it is not described"
    executor = module.get("executor")
    if executor not in _EXECUTORS:
        return f"there is no executor {str(executor)[:_SHOWN]!r}"
    if executor == "aot" and not isinstance(module.get("entry"), str):
        return "its entry has no name"
    for kind in ("inputs", "outputs"):
        tensors = module.get(kind)
        if not isinstance(tensors, list) or not all(map(_is_tensor, tensors)):
            return f"its {kind} are not described"
        if len({tensor["name"] for tensor in tensors}) < len(tensors):
            return f"two of its {kind} have one name"
    operators = module.get("operators", [])
    if not isinstance(operators, list) or not all(map(_is_operator, operators)):
        return "its operators are not described"
    peers = module.get("workspace_peers", [])
    if not isinstance(peers, list) or not all(isinstance(peer, str) for peer in peers):
        return "the modules that share its workspace are not named"
    memory, pools = module.get("memory"), module.get("pools", [])
    if not isinstance(memory, dict) or not _is_size(memory.get("workspace_bytes")):
        return "its memory is not described"
    if not isinstance(pools, list) or not all(isinstance(pool, dict) and _is_size(pool.get("bytes")) for pool in pools):
        return "its pools are not described"
    return None


def _is_operator(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("function"), str) or not _is_size(value.get("macs")):
        return False
    nodes = value.get("nodes")
    return isinstance(nodes, list) and all(isinstance(node, str) for node in nodes)


def _is_tensor(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return False
    shape, dtype = value.get("shape"), value.get("dtype")
    if not isinstance(shape, list) or not all(map(_is_size, shape)) or dtype not in dtypes.SCALARS:
        return False
    return prod(shape) * dtypes.nbytes(dtype) <= _MOST_BYTES and all(
        isinstance(value.get(key), (int, float, list, type(None))) for key in ("scale", "zero_point")
    )


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST_BYTES

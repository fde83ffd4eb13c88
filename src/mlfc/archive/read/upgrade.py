"""Metadata of every version and form, brought into the shape that version 7 has.

Older documents describe one module in a flat object. Its keys become those of the module's object, under today's names;
keys that we do not know stay, so nothing is lost. What an archive of ours has under ``mlfc`` in a flat object is the
module's own object, with the archive's one inside it as ``archive`` and, where the version has no place for them,
``memory.functions`` as ``functions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlfc.archive.read.layout import VERSION
from mlfc.archive.read.model import FULL_MODEL, OPERATOR

Document = dict[str, Any]


def is_operator_style(document: Mapping[str, Any]) -> bool:
    """Tell the flat style of single operators, which version 7 has too."""
    return document.get("style") == OPERATOR


def upgraded(document: Mapping[str, Any]) -> Document:
    """Return a document of version 7 that says the same as one of any version and form.

    `document` fits its schema and stays as it is.
    """
    if "modules" in document:
        return dict(document)
    module = {key: value for key, value in document.items() if key not in _RENAMED and key != "version"}
    for old, key in _RENAMED.items():
        if old in document:
            module[key] = document[old]
    module["target"] = _targets(document["target"])
    if is_operator_style(document):
        return {"executors": [], **module, "version": VERSION}
    module["style"] = FULL_MODEL
    module["memory"] = _memory(document["memory"])
    result: Document = {"version": VERSION, "modules": {document["model_name"]: module}}
    if "mlfc" in document:
        details = dict(document["mlfc"])
        if "archive" in details:
            result["mlfc"] = details.pop("archive")
        if "functions" in details:
            module["memory"]["functions"] = details.pop("functions")
        module["mlfc"] = details
    return result


_RENAMED = {"runtimes": "executors", "export_datetime_utc": "export_datetime"}


def _targets(target: str | list[str] | Mapping[str, str]) -> list[str]:
    if isinstance(target, str):
        return [target]
    if isinstance(target, Mapping):
        return [target[device] for device in sorted(target, key=int)]
    return list(target)


def _memory(memory: list[Any] | Mapping[str, Any]) -> Document:
    """Return the memory of a full model; version 1 lists the graph executor's blocks and no more."""
    functions: Document = {"functions": {"main": [], "operator_functions": []}}
    if isinstance(memory, Mapping):
        return {**functions, **memory}
    return {"sids": memory, **functions} if memory else functions

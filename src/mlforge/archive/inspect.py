"""What an archive says of itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mlforge.archive.read import Archive, open_archive
from mlforge.support.hashing import sha256_stream


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describe an archive.

    Returns
    -------
    dict
        ``version``, ``modules`` by name (``executor``, ``target``, ``inputs``, ``outputs``, ``memory``,
        ``operators``, ``peak``, ``source``) and ``files``. What archives of other writers do not say is None.

    Raises
    ------
    ArchiveError
        If it is not an archive of version 7.
    """
    with open_archive(path) as archive:
        return {
            "version": archive.metadata["version"],
            "modules": {name: _module(module) for name, module in sorted(archive.modules.items())},
            "files": _files(archive),
        }


def _files(archive: Archive) -> list[dict[str, Any]]:
    files = []
    for name, size in sorted(archive.tar.sizes.items()):
        with archive.tar.open(name) as file:
            files.append({"path": name, "bytes": size, "sha256": sha256_stream(file)})
    return files


def _module(module: Mapping[str, Any]) -> dict[str, Any]:
    main = module["memory"]["functions"]["main"][0]
    details = module.get("mlforge", {})
    workspaces = {
        entry["function_name"]: sum(item["workspace_size_bytes"] for item in entry["workspace"])
        for entry in module["memory"]["functions"]["operator_functions"]
    }
    return {
        "executor": module["executors"][0],
        "target": module["target"],
        "inputs": details.get("inputs") or _tensors(main.get("inputs", {})),
        "outputs": details.get("outputs") or _tensors(main.get("outputs", {})),
        "memory": details.get("memory") or _memory(main),
        "operators": details.get("operators")
        or [
            {"function": name, "nodes": None, "workspace_bytes": size, "macs": None}
            for name, size in workspaces.items()
        ],
        "peak": details.get("peak"),
        "source": details.get("source"),
    }


def _tensors(sizes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "shape": None, "dtype": entry["dtype"], "scale": None, "zero_point": None}
        for name, entry in sizes.items()
    ]


def _memory(main: Mapping[str, Any]) -> dict[str, Any]:
    tensors = [entry["size"] for kind in ("inputs", "outputs") for entry in main.get(kind, {}).values()]
    return {
        "workspace_bytes": main["workspace_size_bytes"],
        "workspace_lower_bound_bytes": None,
        "constants_bytes": main["constants_size_bytes"],
        # TVM counts intermediates of AOT models among the inputs and outputs; the tensors' own sizes are right
        "io_bytes": sum(tensors) if tensors else main["io_size_bytes"],
    }

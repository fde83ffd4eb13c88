"""Archives of every version, assembled by hand from TVM's own archives of version 7.

TVM's releases from 2021 and 2022 are no longer available, so these archives follow the description of the format: the
files of a real archive at their old paths, the metadata in their old structure. Nothing here uses the code that reads
archives.
"""

from __future__ import annotations

import copy
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Files = dict[str, bytes]
Document = dict[str, Any]

VERSIONS = (1, 2, 3, 4, 5, 6, 7)
# paths of a module's files by version; the columns are those of the format's description
PLACES: Mapping[int, Mapping[str, str]] = {
    1: {"code": "lib", "relay": "relay.txt", "graph": "runtime-config/graph/graph.json"},
    2: {"code": "lib", "relay": "relay.txt", "graph": "runtime-config/graph/graph.json"},
    3: {"code": "{m}_lib", "relay": "relay.txt", "graph": "runtime-config/graph/graph.json"},
    4: {"code": "{m}_lib", "relay": "src/relay.txt", "graph": "runtime-config/graph/graph.json"},
    5: {"code": "{m}_lib", "relay": "src/relay.txt", "graph": "executor-config/graph/graph.json"},
    6: {"code": "{m}_lib", "relay": "src/relay.txt", "graph": "executor-config/graph/graph.json"},
    7: {"code": "{m}_lib", "relay": "src/{m}.relay", "graph": "executor-config/graph/{m}.graph"},
}


def members(path: Path) -> Files:
    """Return the files of an archive, without the leading ``./`` of their names."""
    with tarfile.open(path) as tar:
        return {info.name.removeprefix("./"): tar.extractfile(info).read() for info in tar if info.isfile()}  # type: ignore[union-attr]


def write_as_tvm(files: Mapping[str, bytes], path: Path) -> Path:
    """Write a plain tar like TVM's use of Python's ``tarfile``: with folders, and names that start with ``./``."""
    folders = {parent.as_posix() for name in files for parent in Path(name).parents}
    with tarfile.open(path, "w") as tar:
        for name in sorted({*files, *folders}):
            info = tarfile.TarInfo(f"./{name}" if name != "." else ".")
            info.mtime = 1_626_800_000
            if name in files:
                info.size = len(files[name])
                tar.addfile(info, io.BytesIO(files[name]))
            else:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
    return path


def older_files(files: Files, name: str, version: int) -> Files:
    """Return the files of an archive of one module at the paths of `version`, without metadata."""
    new, old = PLACES[7], PLACES[version]
    moved = {new[kind].format(m=name): old[kind] for kind in ("relay", "graph")}
    result = {}
    for path, data in files.items():
        folder, _, last = path.rpartition("/")
        if folder in ("codegen/host/src", "codegen/host/lib"):
            result[f"{folder}/{old['code'].format(m=name)}{last.removeprefix(new['code'].format(m=name))}"] = data
        elif path != "metadata.json" and (folder != "codegen/host/include" or version >= 5):
            result[moved.get(path, path)] = data
    return result


def older_document(document: Document, version: int) -> Document:
    """Return the metadata of one module in the form of `version`, without later fields."""
    ((name, module),) = copy.deepcopy(document["modules"]).items()
    functions = module["memory"]["functions"]
    for entry in functions["main"]:
        # since TVM 0.11
        entry.pop("inputs", None)
        entry.pop("outputs", None)
    flat = {
        "version": version,
        "model_name": name,
        "export_datetime": module["export_datetime"],
        "memory": module["memory"].get("sids", []) if version == 1 else module["memory"],
        # with the trailing space that TVM leaves
        "target": module["target"] if version >= 6 else {"1": f"{module['target'][0].strip()} "},
        "executors" if version >= 5 else "runtimes": module["executors"],
    }
    if version >= 4:
        flat["style"] = "full-model"
    if version >= 6 and "external_dependencies" in module:
        flat["external_dependencies"] = module["external_dependencies"]
    return flat


def older_archive(path: Path, version: int, target: Path) -> Path:
    """Convert the archive of one module at `path` from version 7 to `version`."""
    files = members(path)
    document = json.loads(files["metadata.json"])
    if version < 7:
        (name,) = document["modules"]
        files = older_files(files, name, version)
        files["metadata.json"] = text(older_document(document, version))
    return write_as_tvm(files, target)


def proposed_archive(path: Path, target: Path) -> Path:
    """Convert the archive of one module at `path` from version 7 to the form of the proposal of 2021."""
    files = members(path)
    document = json.loads(files["metadata.json"])
    (name,) = document["modules"]
    flat = older_document(document, 1)
    flat["export_datetime_utc"] = flat.pop("export_datetime")
    (flat["target"],) = flat["target"].values()
    laid = older_files(files, name, 1)
    laid |= {"metadata-1.json": text(flat), "README.md": b"# a model\n", "crt/include/crt.h": b"int crt;\n"}
    return write_as_tvm(laid, target)


def operator_archive(version: int, target: Path) -> Path:
    """Write an archive of operator style: one matrix product of TVM's `tvm.build`, metadata compact and unsorted."""
    buffers = [
        {"size_bytes": 8, "shape": [2], "dtype": "float32", "input_binding": "A" if version < 7 else None},
        {"size_bytes": 6, "shape": [2, 3], "dtype": "int8", "input_binding": None},
    ]
    document = {
        "version": version,
        "model_name": "default",
        "export_datetime": "2021-07-20 17:00:01Z",
        "memory": {"add": buffers},
        "target": {"1": "c -keys=cpu "} if version < 6 else ["c -keys=cpu "],
        "runtimes" if version < 5 else "executors": [],
        "style": "operator",
    }
    files = {
        "metadata.json": json.dumps(document).encode(),
        "codegen/host/src/lib0.c": b"int add(void) { return 0; }\n",
        "src/tir-1.txt": b"# loop code\n",
    }
    return write_as_tvm(files, target)


def text(document: Document) -> bytes:
    """Return metadata as TVM writes those of full models."""
    return json.dumps(document, indent=2, sort_keys=True).encode()

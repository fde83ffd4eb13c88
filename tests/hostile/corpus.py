"""The hostile corpus: archives with one named fault each, generated on demand.

A fault is a function that returns the bytes of its file, or that writes a file too large for that. The families
(`corpus_tar`, `corpus_json`, ...) register their faults here. Everything else in a file is valid, including its hashes,
so that only the named fault can be the reason for a rejection.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

Files = dict[str, bytes]


@dataclass(frozen=True)
class Fault:
    """One file of the corpus.

    Attributes
    ----------
    name : str
        Its name without the suffix.
    expected : str
        A regular expression for a fault listed by `validate`, or for the error message.
    refused : bool
        Whether all readers must reject the file; otherwise only `validate` must find the fault.
    write : callable
        Writes the file.
    """

    name: str
    expected: str
    refused: bool
    write: Callable[[Path], object]


FAULTS: dict[str, Fault] = {}

Build = Callable[[], bytes]


def fault(expected: str, *, refused: bool = True) -> Callable[[Build], Build]:
    """Register a function that returns the bytes of a file; its name is the file's name."""

    def register(build: Build) -> Build:
        add(build.__name__, expected, build, refused=refused)
        return build

    return register


def add(name: str, expected: str, build: Build, *, refused: bool = True) -> None:
    """Register a fault."""
    add_large(name, expected, lambda path: path.write_bytes(build()), refused=refused)


def add_large(name: str, expected: str, write: Callable[[Path], object], *, refused: bool = True) -> None:
    """Register a fault whose file is written in pieces."""
    if name in FAULTS:
        raise ValueError(f"two files of the corpus have the name {name}")
    FAULTS[name] = Fault(name, expected, refused, write)


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return a tar of files, without the checks of mlfc's writer."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as out:
        for name, data in files.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return file.getvalue()


def encoded(document: Any) -> bytes:
    """Return JSON in the form that archives contain."""
    return json.dumps(document, indent=2, sort_keys=True).encode()


def with_manifest(files: Mapping[str, bytes], document: Mapping[str, Any]) -> Files:
    """Return files with a ``metadata.json`` that lists them correctly."""
    listed = {
        name: {"bytes": len(data), "sha256": sha256(data).hexdigest()}
        for name, data in sorted(files.items())
        if name != "metadata.json"
    }
    complete = {**document, "mlfc": {**document["mlfc"], "files": listed}}
    return {**files, "metadata.json": encoded(complete)}


def set_at(document: Any, path: str, value: Any) -> Any:
    """Return a copy of a document with the value at ``a/b/0`` replaced or added."""
    copy = json.loads(json.dumps(document))
    *keys, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    holder = copy
    for key in keys:
        holder = holder[key]
    holder[last] = value
    return copy

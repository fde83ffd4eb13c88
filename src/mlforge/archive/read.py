"""Opening an archive: its metadata checked, its members at hand."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

from mlforge.archive.layout import HEADERS, METADATA, SOURCES, VERSION, is_module_name
from mlforge.archive.schema import faults, load_schema
from mlforge.errors import ArchiveError
from mlforge.support import dtypes
from mlforge.support.hashing import sha256_stream
from mlforge.support.tar import TarReader, open_tar

MAX_METADATA = 64 << 20
_AGAIN = "Export the archive again"


@dataclass(frozen=True)
class Archive:
    """An open archive whose metadata fit the schema.

    Attributes
    ----------
    tar : TarReader
    metadata : dict
        The whole document.
    """

    tar: TarReader
    metadata: dict[str, Any]

    @property
    def path(self) -> str:
        """Where the archive lies, for messages."""
        return self.tar.path

    @property
    def modules(self) -> dict[str, Any]:
        """The modules' objects by name."""
        modules: dict[str, Any] = self.metadata["modules"]
        return modules

    def file_faults(self) -> Iterator[str]:
        """Yield how the members differ from the list of them in the metadata; nothing where there is no list."""
        if "mlforge" not in self.metadata:
            return
        listed: dict[str, Any] = self.metadata["mlforge"]["files"]
        for name in sorted({*listed, *self.tar.sizes} - {METADATA}):
            if name not in self.tar.sizes:
                yield f"{name}: the file is missing"
            elif name not in listed:
                yield f"{name}: the file is not in the list of files of {METADATA}"
            else:
                yield from self._content_faults(name, listed[name])

    def _content_faults(self, name: str, expected: Mapping[str, Any]) -> Iterator[str]:
        if self.tar.sizes[name] != expected["bytes"]:
            yield f"{name}: {METADATA} says {expected['bytes']:,} bytes, but it has {self.tar.sizes[name]:,}"
            return
        with self.tar.open(name) as file:
            if sha256_stream(file) != expected["sha256"]:
                yield f"{name}: its content is not what {METADATA} says (SHA-256 differs)"


@contextmanager
def open_archive(path: str | os.PathLike[str]) -> Iterator[Archive]:
    """Open an archive of version 7, full-model style.

    Raises
    ------
    ArchiveError
        If it is not one; the message names the first fault.
    """
    with open_tar(path) as tar:
        if METADATA not in tar.sizes:
            raise ArchiveError(
                f"this is a tar but not a Model Library Format archive: it has no {METADATA}", place=tar.path
            )
        metadata = parse_metadata(tar.read(METADATA, MAX_METADATA), f"{tar.path}: {METADATA}")
        yield Archive(tar, metadata)


def parse_metadata(data: bytes, place: str) -> dict[str, Any]:
    """Return the document of ``metadata.json``; raise ArchiveError for the first fault."""
    document = parse_json(data, place)
    if not isinstance(document, dict):
        raise ArchiveError("it must hold a JSON object", place=place, next_step=_AGAIN)
    if document.get("version") != VERSION or document.get("style") == "operator":
        shown = document.get("version") if isinstance(document.get("version"), int) else "without a number"
        style = ", operator style" if document.get("style") == "operator" else ""
        raise ArchiveError(
            f"this is version {shown}{style} of the format; mlforge reads version {VERSION}, full-model style",
            place=place,
        )
    for fault in (*faults(load_schema("metadata-7"), document), *module_faults(document)):
        raise ArchiveError(fault, place=place, next_step=_AGAIN)
    return document


def parse_json(data: bytes, place: str) -> Any:
    """Return the value of a JSON text; raise ArchiveError for what is not strict JSON."""
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except RecursionError:
        raise ArchiveError("it is nested too deeply", place=place, next_step=_AGAIN) from None
    except ValueError as error:
        raise ArchiveError(f"it is not JSON: {error}", place=place, next_step=_AGAIN) from None


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has a key twice")
    return result


def module_faults(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield where modules contradict themselves; where they break the schema, nothing or little."""
    modules = document.get("modules")
    if not isinstance(modules, dict):
        return
    if not modules:
        yield "$.modules: there is no module"
    for name, module in modules.items():
        place = f"$.modules.{name[:80]}"
        if not is_module_name(name) or next(faults({"$ref": "#/$defs/module"}, module, place, _schema()), None):
            continue
        if module["model_name"] != name:
            yield f"{place}.model_name: expected '{name}', found '{module['model_name'][:80]}'"
        if "mlforge" in module:
            yield from _details_faults(module["mlforge"], module["memory"]["functions"]["main"][0], place)


def _schema() -> Mapping[str, Any]:
    return load_schema("metadata-7")


def _details_faults(details: Mapping[str, Any], main: Mapping[str, Any], place: str) -> Iterator[str]:
    for key in ("workspace", "constants", "io"):
        ours, theirs = details["memory"][f"{key}_bytes"], main[f"{key}_size_bytes"]
        if ours != theirs:
            yield f"{place}.mlforge.memory.{key}_bytes: {ours} is not {key}_size_bytes of main, {theirs}"
    for kind in ("inputs", "outputs"):
        names = [tensor["name"] for tensor in details[kind]]
        if len(set(names)) != len(names) or set(names) != set(main.get(kind, {})):
            yield f"{place}.mlforge.{kind}: the names are not those of main.{kind}"
            continue
        for index, tensor in enumerate(details[kind]):
            size = prod(tensor["shape"]) * dtypes.nbytes(tensor["dtype"])
            if main[kind][tensor["name"]] != {"dtype": tensor["dtype"], "size": size}:
                yield f"{place}.mlforge.{kind}[{index}]: shape and dtype do not give the size in main.{kind}"
    total = sum(entry["size"] for kind in ("inputs", "outputs") for entry in main.get(kind, {}).values())
    if total != main["io_size_bytes"]:
        yield f"{place}: inputs and outputs have {total} bytes together, io_size_bytes says {main['io_size_bytes']}"


def missing_code(archive: Archive, module: str) -> Iterator[str]:
    """Yield what a module needs for being compiled and the archive lacks."""
    header = f"{HEADERS}/tvmgen_{module.lower()}.h"
    if header not in archive.tar.sizes:
        yield f"{header}: the file is missing"
    if not any(name.startswith(f"{SOURCES}/{module}_lib") for name in archive.tar.sizes):
        yield f"{SOURCES}/{module}_lib0.c: the file is missing"

"""Opening an archive of any version: its metadata checked, its members at hand."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mlfc.archive.read.layout import OPERATOR_VERSIONS, VERSION, ArchiveLayout, find_metadata, layout_of
from mlfc.archive.read.model import FULL_MODEL, OPERATOR, RFC, ArchiveRecord
from mlfc.archive.read.record import archive_record, is_operator_style, module_faults, upgraded
from mlfc.archive.read.schema import faults
from mlfc.errors import ArchiveError
from mlfc.support.content import sha256_stream
from mlfc.support.former_name import current_keys
from mlfc.support.json_text import parse_json
from mlfc.support.module_info import FileInfo
from mlfc.support.tar import TarReader, open_tar

MAX_METADATA = 16 << 20
_AGAIN = "Export the archive again"
_OBJECT = ".o"


@dataclass(frozen=True)
class Archive:
    """An open archive whose metadata fit their schema and do not contradict themselves."""

    tar: TarReader
    metadata_path: str  # of the member with the metadata
    document: Mapping[str, Any]  # the metadata as they are in the archive
    metadata: Mapping[str, Any]  # the same in the shape of version 7
    layout: ArchiveLayout
    record: ArchiveRecord

    @property
    def path(self) -> str:
        """Where the archive lies, for messages."""
        return self.tar.path

    @property
    def modules(self) -> Mapping[str, Any]:
        """The modules' objects by name; none for operator style."""
        modules: Mapping[str, Any] = self.metadata.get("modules", {})
        return modules

    def file_faults(self) -> Iterator[str]:
        """Yield how the members differ from the list of them in the metadata; nothing where there is no list."""
        listed = self.record.manifest
        if listed is None:
            return
        for name in sorted({*listed, *self.tar.sizes} - {self.metadata_path}):
            if name not in self.tar.sizes:
                yield f"{name}: the file is missing"
            elif name not in listed:
                yield f"{name}: the file is not in the list of files of {self.metadata_path}"
            else:
                yield from self._content_faults(name, listed[name])

    def _content_faults(self, name: str, expected: FileInfo) -> Iterator[str]:
        if self.tar.sizes[name] != expected.nbytes:
            said = f"{self.metadata_path} says {expected.nbytes:,} bytes"
            yield f"{name}: {said}, but it has {self.tar.sizes[name]:,}"
            return
        with self.tar.open(name) as file:
            if sha256_stream(file) != expected.sha256:
                yield f"{name}: its content is not what {self.metadata_path} says (SHA-256 differs)"


@contextmanager
def open_archive(path: str | os.PathLike[str]) -> Iterator[Archive]:
    """Open an archive of any version, style and form; ArchiveError names the first fault of what is none."""
    with open_tar(path) as tar:
        yield read_archive(tar)


def read_archive(tar: TarReader) -> Archive:
    """Return the archive in an open tar; raise ArchiveError for the first fault of its metadata."""
    name, form, document = _document(tar)
    for fault in _document_faults(document, name, form):
        raise ArchiveError(fault, place=f"{tar.path}: {name}", next_step=_AGAIN)
    metadata = upgraded(document)
    version = document["version"]
    layout = layout_of(version, form, OPERATOR if is_operator_style(document) else FULL_MODEL)
    try:
        record = archive_record(metadata, tar.sizes, version=version, form=form, layout=layout)
    except ArchiveError as error:
        raise ArchiveError(error.cause, place=tar.path, next_step=_AGAIN) from None
    return Archive(tar, name, document, metadata, layout, record)


def metadata_faults(tar: TarReader) -> Iterator[str]:
    """Yield every fault of the metadata in an open tar; nothing for what `read_archive` takes."""
    try:
        name, form, document = _document(tar)
    except ArchiveError as error:
        yield str(error)
        return
    for fault in _document_faults(document, name, form):
        yield f"{name}: {fault}"


def _document(tar: TarReader) -> tuple[str, str, dict[str, Any]]:
    """Return the path of the metadata, the form that it tells, and the document, if its version is known."""
    found = find_metadata(tar.sizes)
    if found is None:
        raise ArchiveError(
            "this is a tar of objects, a library, not a Model Library Format archive"
            if any(name.endswith(_OBJECT) for name in tar.sizes)
            else "this is a tar but not a Model Library Format archive: it has no metadata.json",
            place=tar.path,
            next_step="Compile a model to one with: mlfc compile MODEL",
        )
    name, form = found
    return name, form, parse_metadata(tar.read(name, MAX_METADATA), form, f"{tar.path}: {name}")


def _document_faults(document: dict[str, Any], name: str, form: str) -> Iterator[str]:
    sound = True
    for fault in faults(schema_name(document, form), document):
        sound = False
        yield fault
    if form == RFC and name != layout_of(document["version"], RFC).metadata:
        yield f"$.version: {document['version']} is not the one in the file's name"
    if sound:
        # a document that breaks its schema may lack what these look at
        yield from module_faults(upgraded(document))


def parse_metadata(data: bytes, form: str, place: str) -> dict[str, Any]:
    """Return the document of an archive's metadata; ArchiveError unless it is an object of a version that we know."""
    document = parse_json(data, place)
    if not isinstance(document, dict):
        raise ArchiveError("it must hold a JSON object", place=place, next_step=_AGAIN)
    document = current_keys(document)
    version = document.get("version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise ArchiveError("the format version is missing", place=place, next_step=_AGAIN)
    if not 1 <= version <= VERSION:
        raise ArchiveError(
            f"this is version {version if abs(version) < 10**9 else 'beyond all'} of the format; "
            f"mlfc reads versions 1 to {VERSION}",
            place=place,
            next_step="Use a newer mlfc" if version > VERSION else _AGAIN,
        )
    if form != RFC and is_operator_style(document) and version not in OPERATOR_VERSIONS:
        raise ArchiveError(f"version {version} of the format has no operator style", place=place, next_step=_AGAIN)
    return document


def schema_name(document: Mapping[str, Any], form: str) -> str:
    """Return the name of the schema for a document that `parse_metadata` took."""
    if form == RFC:
        return "metadata-rfc"
    return "metadata-operator" if is_operator_style(document) else f"metadata-{document['version']}"

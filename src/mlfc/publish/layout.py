"""An OCI image layout: a folder with the documents and blobs of a repository."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from mlfc.errors import ArchiveError, RegistryError
from mlfc.publish import documents as oci
from mlfc.publish.reference import DIGEST, ArtifactReference
from mlfc.publish.store import checked, read_document
from mlfc.support.atomic import atomic_file, output_error, write_bytes
from mlfc.support.content import Data, chunks_of
from mlfc.support.json_text import parse_json
from mlfc.support.plain_file import open_plain, read_small

_MARK, _INDEX, _BLOBS = "oci-layout", "index.json", "blobs/sha256"
_VERSION = b'{"imageLayoutVersion":"1.0.0"}'
_MAX_MARK = 4096
_PIECE = 1 << 20


class LayoutStore:
    """A folder with OCI's image layout. Pushed artifacts stay until a user removes them."""

    def __init__(self, reference: ArtifactReference) -> None:
        self.reference = reference
        self._folder = Path(reference.name)

    def document(self, wanted: str) -> oci.Document | None:
        """Return the manifest or index of a tag or digest, or None."""
        place = str(self.reference)
        entries = self._entries()
        if DIGEST.fullmatch(wanted):
            data = self._read(self._blob(wanted), oci.MAX_DOCUMENT)
            if data is not None and oci.digest_of(data) != wanted:
                raise self._fault(f"expected a manifest with the digest {wanted}, got {oci.digest_of(data)}")
            return None if data is None else oci.parse_document(data, place)
        described = next((item for item in entries if item.annotations.get(oci.REF_NAME) == wanted), None)
        return None if described is None else read_document(self, described)

    def put_document(self, name: str, document: oci.Document) -> None:
        """Store a manifest or index under a tag, or under its digest."""
        self.put_blob(document.described(), document.data)
        if DIGEST.fullmatch(name):
            return
        with self._locked():
            others = [item for item in self._entries() if item.annotations.get(oci.REF_NAME) != name]
            self._write_index([*others, document.described({oci.REF_NAME: name})])

    def pieces(self, blob: oci.Descriptor) -> Iterator[bytes]:
        """Yield the bytes of a blob."""
        try:
            with open_plain(self._blob(blob.digest)) as file:
                while piece := file.read(_PIECE):
                    yield piece
        except OSError as error:
            raise self._fault(f"the blob {blob.digest} cannot be read: {error.strerror}") from error

    def put_blob(self, blob: oci.Descriptor, data: Data) -> None:
        """Store a blob unless it exists."""
        try:
            (self._folder / _BLOBS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise output_error(self._folder, error) from error
        if not (self._folder / _MARK).exists():
            write_bytes(self._folder / _MARK, _VERSION)
        path = self._blob(blob.digest)
        # existing blobs were checked when they were written; one that was truncated since is written again
        with suppress(OSError):
            if path.stat().st_size == blob.size:
                return
        with atomic_file(path) as file:
            for piece in checked(map(bytes, chunks_of(data)), blob, str(self.reference)):
                file.write(piece)

    def tags(self) -> list[str]:
        """Return the sorted tags."""
        if not self._folder.exists():
            raise self._fault("the folder is missing")
        return sorted({item.annotations[oci.REF_NAME] for item in self._entries() if oci.REF_NAME in item.annotations})

    def attach(self, document: oci.Document) -> None:
        """Store a manifest that has a subject in the list of manifests, without a tag."""
        self.put_blob(document.described(), document.data)
        with self._locked():
            others = [item for item in self._entries() if item.digest != document.digest]
            self._write_index([*others, document.described(document.annotations)])

    def attached(self, subject: oci.Descriptor) -> list[oci.Descriptor]:
        """Return the manifests that are attached to another one."""
        found = []
        for item in self._entries():
            if item.media_type == oci.MANIFEST and oci.REF_NAME not in item.annotations:
                document = read_document(self, item)
                if document.subject is not None and document.subject.digest == subject.digest:
                    found.append(item)
        return found

    def _blob(self, digest: str) -> Path:
        return self._folder / _BLOBS / digest.removeprefix("sha256:")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the list of documents against other processes."""
        try:
            import fcntl
        except ImportError:  # Windows: concurrent pushes may lose a tag
            yield
            return
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # file systems without locks
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _entries(self) -> tuple[oci.Descriptor, ...]:
        """Return the entries of the list of documents; none in a folder that is empty or missing."""
        mark = self._read(self._folder / _MARK, _MAX_MARK)
        if mark is None:
            with suppress(OSError):
                if any(self._folder.iterdir()):
                    raise self._fault("the folder is not an OCI layout: the file 'oci-layout' is missing")
            return ()
        with suppress(ArchiveError):
            value = parse_json(mark, "")
            if isinstance(value, dict) and str(value.get("imageLayoutVersion", "")).startswith("1."):
                data = self._read(self._folder / _INDEX, oci.MAX_DOCUMENT)
                place = f"{self.reference.repository}: {_INDEX}"
                return () if data is None else oci.parse_document(data, place, oci.INDEX).manifests
        raise self._fault("the file 'oci-layout' does not declare version 1 of the layout")

    def _write_index(self, entries: Sequence[oci.Descriptor]) -> None:
        if len(entries) > oci.MAX_ENTRIES:
            raise self._fault(f"the folder has {oci.MAX_ENTRIES:,} entries", "Choose another folder")
        write_bytes(
            self._folder / _INDEX,
            oci.index(sorted(entries, key=lambda item: (item.annotations.get(oci.REF_NAME, ""), item.digest))).data,
        )

    def _read(self, path: Path, limit: int) -> bytes | None:
        """Return the bytes of a small file; None if it is missing."""
        try:
            return read_small(path, limit, self._fault, path.name)
        except RegistryError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def _fault(self, cause: str, next_step: str | None = None) -> RegistryError:
        return RegistryError(
            cause, place=str(self.reference), next_step=next_step or "Name another folder, or push the artifact again"
        )

"""Common interface of registries and layout folders, and the checks that apply to both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias

from mlfc.errors import RegistryError
from mlfc.publish.documents import MAX_DOCUMENT, Descriptor, Document

if TYPE_CHECKING:
    from mlfc.publish.layout import LayoutStore
    from mlfc.publish.remote import RemoteStore


ArtifactStore: TypeAlias = "LayoutStore | RemoteStore"
"""Stores of artifacts. Results of `document` and `pieces` are not verified yet."""


def checked(pieces: Iterable[bytes], blob: Descriptor, place: str) -> Iterator[bytes]:
    """Yield the bytes of a blob; raise RegistryError as soon as there are too many, or if the digest does not match."""
    found, digest = 0, sha256()
    for piece in pieces:
        found += len(piece)
        if found > blob.size:
            raise _lie(place, f"expected {blob.size:,} bytes of {blob.digest}, got more")
        digest.update(piece)
        yield piece
    if found != blob.size:
        raise _lie(place, f"expected {blob.size:,} bytes of {blob.digest}, got {found:,}")
    if f"sha256:{digest.hexdigest()}" != blob.digest:
        raise _lie(place, f"expected bytes with the digest {blob.digest}, got sha256:{digest.hexdigest()}")


def read_document(store: ArtifactStore, described: Descriptor) -> Document:
    """Return a manifest or index by its descriptor; raise RegistryError if it does not match the descriptor."""
    place = str(store.reference)
    if described.size > MAX_DOCUMENT:
        raise _lie(place, f"the manifest {described.digest} exceeds {MAX_DOCUMENT:,} bytes")
    found = store.document(described.digest)
    if found is None:
        raise _lie(place, f"the manifest {described.digest} is listed, but missing")
    if (len(found.data), found.media_type) != (described.size, described.media_type):
        raise _lie(
            place,
            f"expected {described.size:,} bytes of '{described.media_type}' as {described.digest},"
            f" got {len(found.data):,} of '{found.media_type}'",
        )
    return found


def required_document(store: ArtifactStore, wanted: str) -> Document:
    """Return the manifest or index of a tag or digest; raise RegistryError if it does not exist."""
    found = store.document(wanted)
    if found is None:
        raise RegistryError(
            f"'{wanted}' does not exist",
            place=store.reference.repository,
            next_step=f"List the tags: mlfc list {store.reference.repository}",
        )
    return found


def _lie(place: str, cause: str) -> RegistryError:
    return RegistryError(cause, place=place, next_step="Nothing was written. Pull again, or push the artifact again")

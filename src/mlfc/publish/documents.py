"""Documents of OCI registries: descriptors, manifests and indexes, serialized as bytes and parsed as untrusted.

`docs/reference/media-types.md` describes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from mlfc.errors import ArchiveError, RegistryError
from mlfc.publish.reference import DIGEST
from mlfc.support.json_text import parse_json
from mlfc.support.text import shortened

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"

MODEL = "application/vnd.mlfc.model.v1"
CONFIG = "application/vnd.mlfc.config.v1+json"
ARTIFACTS = {
    "archive": "application/vnd.mlfc.archive.v1",
    "library": "application/vnd.mlfc.library.v1",
    "objects": "application/vnd.mlfc.objects.v1",
}
"""Media types of artifacts, by their kind."""
SIGNATURE = "application/vnd.dev.sigstore.bundle.v0.3+json"
BILL_OF_MATERIALS = "application/vnd.cyclonedx+json"

TITLE = "org.opencontainers.image.title"
CREATED = "org.opencontainers.image.created"
REF_NAME = "org.opencontainers.image.ref.name"
TARGET = "vnd.mlfc.target"
KIND = "vnd.mlfc.kind"

MAX_DOCUMENT = 4 << 20
"""Maximum bytes of a manifest or an index: registries may reject larger ones."""
MAX_ENTRIES = 1000
_MAX_SIZE = (1 << 53) - 1
_MAX_TEXT = 4096
EMPTY_CONTENT = b"{}"


def digest_of(data: bytes) -> str:
    """Return the digest of bytes in the notation of registries."""
    return f"sha256:{sha256(data).hexdigest()}"


@dataclass(frozen=True)
class Descriptor:
    """Description of bytes stored elsewhere: media type, digest and size."""

    media_type: str
    digest: str
    size: int
    artifact_type: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the descriptor's JSON object in documents."""
        found: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.artifact_type:
            found["artifactType"] = self.artifact_type
        if self.annotations:
            found["annotations"] = dict(self.annotations)
        return found

    @classmethod
    def of(cls, media_type: str, data: bytes, **more: Any) -> Descriptor:
        """Return the descriptor of these bytes."""
        return cls(media_type, digest_of(data), len(data), **more)


@dataclass(frozen=True)
class Document:
    """A manifest (with `layers`) or an index (with `manifests`), and its exact bytes."""

    data: bytes
    media_type: str
    artifact_type: str | None = None
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()
    manifests: tuple[Descriptor, ...] = ()
    subject: Descriptor | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Digest of the bytes."""
        return digest_of(self.data)

    def described(self, annotations: Mapping[str, str] | None = None) -> Descriptor:
        """Return a descriptor of the document."""
        return Descriptor(self.media_type, self.digest, len(self.data), self.artifact_type, annotations or {})


@dataclass(frozen=True)
class Published:
    """An artifact in a registry."""

    target: str
    kind: str
    manifest: Descriptor
    artifact: Descriptor
    signature: Descriptor | None

    @property
    def title(self) -> str:
        """File name of the artifact, chosen by its publisher."""
        return self.artifact.annotations.get(TITLE, "")

    def to_json(self) -> dict[str, Any]:
        """Return the artifact's entry in lists of artifacts."""
        return {
            "target": self.target,
            "kind": self.kind,
            "file": self.title,
            "digest": self.manifest.digest,
            "bytes": self.artifact.size,
            "signed": self.signature is not None,
        }


def manifest(
    artifact_type: str,
    config: Descriptor,
    layers: Sequence[Descriptor],
    annotations: Mapping[str, str],
    subject: Descriptor | None = None,
) -> Document:
    """Return a manifest; equal arguments produce equal bytes."""
    parts: dict[str, Any] = {"config": config.to_json(), "layers": [item.to_json() for item in layers]}
    if subject is not None:
        parts["subject"] = Descriptor(subject.media_type, subject.digest, subject.size).to_json()
    return _written(MANIFEST, artifact_type, annotations, parts)


def index(manifests: Sequence[Descriptor], artifact_type: str | None = None) -> Document:
    """Return an index of manifests."""
    return _written(INDEX, artifact_type, {}, {"manifests": [item.to_json() for item in manifests]})


def _written(
    media_type: str, artifact_type: str | None, annotations: Mapping[str, str], parts: dict[str, Any]
) -> Document:
    head: dict[str, Any] = {"schemaVersion": 2, "mediaType": media_type}
    if artifact_type:
        head["artifactType"] = artifact_type
    if annotations:
        head["annotations"] = dict(annotations)
    data = json.dumps({**head, **parts}, sort_keys=True, separators=(",", ":")).encode()
    return parse_document(data, "a document that was about to be written")


def parse_document(data: bytes, place: str, media_type: str | None = None) -> Document:
    """Return the manifest or index encoded in bytes, which must be of `media_type` if given.

    Raises RegistryError for anything else, and for descriptors with invalid digests, sizes or media types.
    """
    if len(data) > MAX_DOCUMENT:
        raise _fault(place, f"the document exceeds {MAX_DOCUMENT:,} bytes")
    try:
        value = parse_json(data, place)
    except ArchiveError as error:
        raise _fault(place, f"invalid document: {error.cause}") from None
    if not isinstance(value, dict) or value.get("schemaVersion") != 2:
        raise _fault(place, "the document is neither a manifest nor an index of OCI")
    declared = value.get("mediaType", media_type)
    if declared not in (MANIFEST, INDEX):
        raise _fault(place, f"expected a manifest or an index of OCI, got '{_shown(declared)}'")
    if media_type is not None and media_type != declared:
        raise _fault(place, f"expected media type '{_shown(media_type)}', the document declares '{declared}'")
    items: dict[str, tuple[Descriptor, ...]] = {}
    for key in ("layers", "manifests"):
        listed = value.get(key, [])
        if not isinstance(listed, list) or len(listed) > MAX_ENTRIES:
            raise _fault(place, f"expected at most {MAX_ENTRIES:,} entries of '{key}'")
        items[key] = tuple(_descriptor(item, key, place) for item in listed)
    if (declared == MANIFEST) == ("manifests" in value) or (declared == INDEX and ("layers" in value)):
        raise _fault(place, f"a document of type '{declared}' has fields of the other type")
    return Document(
        data,
        declared,
        _text(value.get("artifactType"), "artifactType", place),
        _descriptor(value["config"], "config", place) if "config" in value else None,
        items["layers"],
        items["manifests"],
        _descriptor(value["subject"], "subject", place) if "subject" in value else None,
        _annotations(value.get("annotations"), place),
    )


def _descriptor(value: Any, key: str, place: str) -> Descriptor:
    found = value if isinstance(value, dict) else {}
    digest, size = found.get("digest"), found.get("size")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise _fault(place, f"expected a digest like sha256:... in '{key}', got '{_shown(digest)}'")
    if type(size) is not int or not 0 <= size <= _MAX_SIZE:
        raise _fault(place, f"expected a number of bytes in '{key}', got '{_shown(size)}'")
    media_type = _text(found.get("mediaType"), "mediaType", place)
    if not media_type:
        raise _fault(place, f"expected a media type in '{key}'")
    kind = _text(found.get("artifactType"), "artifactType", place)
    return Descriptor(media_type, digest, size, kind, _annotations(found.get("annotations"), place))


def _annotations(value: Any, place: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_ENTRIES:
        raise _fault(place, "annotations must be strings by name")
    return {key: _text(item, key, place) or "" for key, item in value.items()}


def _text(value: Any, key: str, place: str) -> str | None:
    if value is not None and (not isinstance(value, str) or len(value) > _MAX_TEXT):
        raise _fault(place, f"expected a string of at most {_MAX_TEXT:,} characters as '{_shown(key)}'")
    return value


def _shown(value: object) -> str:
    return shortened(str(value))


def _fault(place: str, cause: str) -> RegistryError:
    return RegistryError(
        cause, place=place, next_step="Nothing was written. Push the artifact again, or ask its author"
    )

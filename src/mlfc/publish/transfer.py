"""Pushing and pulling: artifacts for several targets under one tag, each with its signature and bill of materials.

The artifact for one target is verified before it gets its file name.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mlfc.archive.read.load import may_be
from mlfc.errors import OptionError, OutputError, RegistryError
from mlfc.objfile.head import HEAD
from mlfc.publish import documents as oci
from mlfc.publish.signing import MAX_SIGNATURE, SUFFIX, read_signature
from mlfc.publish.store import ArtifactStore, checked, read_document, required_document
from mlfc.publish.subject import ArtifactSubject, bill_of_materials, read_subject
from mlfc.support.atomic import atomic_file, check_writable, write_bytes
from mlfc.support.content import FileContent, sha256_of
from mlfc.support.text import shortened

MAX_TARGETS = 256
_LONGEST_TARGET = 512
_KEY = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)+")
_ATTEMPTS = 3
MAX_BILL = 16 << 20
_KIND_OF = {media_type: kind for kind, media_type in oci.ARTIFACTS.items()}
# a title is a file name in the current folder. Suffixes that a shell, a build, Python or the loader reads by itself are
# excluded, such as .so, .dll and .dylib, which `import` and the search for libraries find there
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}\.(tar|tar\.gz|tgz|tar\.xz|wasm|a|o|lib)")
_TARS = ("tar", "tar.gz", "tgz", "tar.xz")
_SUFFIXES = {"archive": _TARS, "library": ("a", "lib", "wasm"), "objects": ("o", *_TARS)}


def push(
    store: ArtifactStore,
    artifacts: Sequence[tuple[str, Path]],
    *,
    annotations: Mapping[str, str] | None = None,
    add: bool = False,
    sbom: bool = True,
) -> tuple[oci.Document, list[oci.Published]]:
    """Push artifacts to the tag of a store's reference; the tag changes only after the push is complete.

    Parameters
    ----------
    store : Store
        Store of a registry or a folder.
    artifacts : sequence of (str, path)
        Target names, empty for those that the artifacts declare, and files. A signature beside an artifact
        (``kws.tar.sig``) is pushed with it.
    annotations : mapping of str to str, optional
        Additional annotations of each artifact, such as ``org.opencontainers.image.source``.
    add : bool
        Keep the tag's artifacts for other targets; default: replace them.
    sbom : bool
        Attach a bill of materials to each artifact.

    Returns
    -------
    Document, list of Published
        The index that the tag refers to, and the artifacts in it.

    Raises
    ------
    OptionError
        If two artifacts are for the same target, or the name of an annotation is invalid.
    ArchiveError, SignatureError
        If a file is not an artifact, or its signature is that of another one.
    RegistryError
        If the registry rejects them.
    """
    reference = store.reference
    if reference.digest:
        raise OptionError("cannot push to a digest", place=str(reference), next_step="Push to a tag")
    for key in annotations or ():
        if not _KEY.fullmatch(key) or key in (oci.TITLE, oci.CREATED, oci.TARGET, oci.KIND):
            raise OptionError(
                f"the annotation '{key}' cannot be set",
                place="--annotation",
                next_step="Names are like org.opencontainers.image.source",
            )
    named = _named(artifacts)
    signatures = {target: read_signature(subject) for target, subject in named.items()}
    done: list[oci.Published] = []
    for target, subject in named.items():
        document = _push_one(store, target, subject, signatures[target], annotations or {})
        if sbom:
            _attach_bill(store, document, subject)
        described = document.described({oci.TARGET: target, oci.TITLE: subject.path.name, oci.KIND: subject.kind})
        artifact, *signed = document.layers
        done.append(oci.Published(target, subject.kind, described, artifact, signed[0] if signed else None))
    return _put_index(store, done, add), done


def _named(artifacts: Sequence[tuple[str, Path]]) -> dict[str, ArtifactSubject]:
    """Return the artifacts by target name; raise OptionError for duplicates."""
    named: dict[str, ArtifactSubject] = {}
    for name, path in artifacts:
        subject = read_subject(path)
        target = " ".join(name.split()) or subject.target
        if target in named:
            raise OptionError(
                f"{named[target].path} and {subject.path} are both for the target '{target}'",
                next_step=f"Name one of them: NAME={subject.path}",
            )
        if len(target) > _LONGEST_TARGET or not target.isprintable():
            raise OptionError(f"the target name of {subject.path} is too long, or not printable")
        named[target] = subject
    return named


def _push_one(
    store: ArtifactStore, target: str, subject: ArtifactSubject, signature: bytes | None, annotations: Mapping[str, str]
) -> oci.Document:
    """Push an artifact and its manifest, without a tag."""
    title = subject.path.name
    layer = oci.Descriptor(oci.ARTIFACTS[subject.kind], subject.digest, subject.size, annotations={oci.TITLE: title})
    store.put_blob(layer, FileContent(subject.path))
    layers = [layer]
    if signature is not None:
        layers.append(oci.Descriptor.of(oci.SIGNATURE, signature, annotations={oci.TITLE: title + SUFFIX}))
        store.put_blob(layers[-1], signature)
    config = subject.config()
    described = oci.Descriptor.of(oci.CONFIG, config)
    store.put_blob(described, config)
    own = {oci.TITLE: title, oci.TARGET: target, oci.KIND: subject.kind}
    if subject.created:
        own[oci.CREATED] = subject.created
    document = oci.manifest(oci.MODEL, described, layers, {**annotations, **own})
    store.put_document(document.digest, document)
    return document


def _attach_bill(store: ArtifactStore, document: oci.Document, subject: ArtifactSubject) -> None:
    bill = bill_of_materials(subject)
    layer = oci.Descriptor.of(oci.BILL_OF_MATERIALS, bill, annotations={oci.TITLE: f"{subject.path.name}.cdx.json"})
    store.put_blob(layer, bill)
    empty = oci.Descriptor.of(oci.EMPTY, oci.EMPTY_CONTENT)
    store.put_blob(empty, oci.EMPTY_CONTENT)
    annotations = {oci.CREATED: subject.created} if subject.created else {}
    store.attach(oci.manifest(oci.BILL_OF_MATERIALS, empty, [layer], annotations, document.described()))


def _put_index(store: ArtifactStore, done: Sequence[oci.Published], add: bool) -> oci.Document:
    """Point the tag to the pushed artifacts; with `add` keep its artifacts for other targets."""
    tag = store.reference.wanted
    ours = {item.target: item.manifest for item in done}
    for _ in range(_ATTEMPTS):
        found = store.document(tag) if add else None
        others = found.manifests if found is not None else ()
        if found is not None and (
            found.media_type != oci.INDEX
            or not all(item.media_type == oci.MANIFEST and item.annotations.get(oci.TARGET) for item in others)
        ):
            raise RegistryError(
                "the tag contains documents that are not artifacts of mlfc",
                place=str(store.reference),
                next_step="Choose another tag, or leave out --add to replace it",
            )
        entries = {**{item.annotations[oci.TARGET]: item for item in others}, **ours}
        if len(entries) > MAX_TARGETS:
            raise RegistryError(
                f"a tag has at most {MAX_TARGETS} targets", place=str(store.reference), next_step="Choose another tag"
            )
        made = oci.index([entries[target] for target in sorted(entries)], oci.MODEL)
        store.put_document(tag, made)
        if not add:
            return made
        # registries have no compare-and-swap: a concurrent push is detected here, and merged with this one
        seen = required_document(store, tag)
        if {item.digest for item in seen.manifests} >= {item.digest for item in made.manifests}:
            return seen
    raise RegistryError(
        "other pushes to the tag replace this one",
        place=str(store.reference),
        next_step="Push again, or push all targets at once: mlfc push A B oci://HOST/NAME:TAG",
    )


@dataclass(frozen=True)
class IndexEntry:
    """An index's entry for an artifact."""

    manifest: oci.Descriptor
    document: oci.Document | None = None  # the manifest itself, if it was read

    @property
    def target(self) -> str:
        """Target of the artifact."""
        return self.manifest.annotations.get(oci.TARGET, "unknown")


def entries(store: ArtifactStore) -> list[IndexEntry]:
    """Return the entries under the tag or digest of a store's reference."""
    found = required_document(store, store.reference.wanted)
    if found.media_type == oci.MANIFEST:
        return [IndexEntry(found.described(found.annotations), found)]
    for item in found.manifests:
        if item.media_type != oci.MANIFEST:
            raise RegistryError(
                f"expected manifests in the index, got '{shortened(item.media_type)}'", place=str(store.reference)
            )
    return [IndexEntry(item) for item in found.manifests]


def read_entry(store: ArtifactStore, entry: IndexEntry) -> oci.Published:
    """Return an artifact with the content of its manifest; raise RegistryError if it is not an artifact of mlfc."""
    document = entry.document or read_document(store, entry.manifest)
    artifacts = [layer for layer in document.layers if layer.media_type in _KIND_OF]
    signatures = [layer for layer in document.layers if layer.media_type == oci.SIGNATURE]
    if len(artifacts) != 1 or len(signatures) > 1:
        kinds = ", ".join(sorted({layer.media_type for layer in document.layers})) or "nothing"
        cause = f"expected one artifact of mlfc, got {shortened(kinds, 200)}"
        raise RegistryError(cause, place=str(store.reference), next_step="Check the name and the tag")
    kind = _KIND_OF[artifacts[0].media_type]
    return oci.Published(entry.target, kind, entry.manifest, artifacts[0], signatures[0] if signatures else None)


def choose(found: list[IndexEntry], target: str | None, place: str) -> IndexEntry:
    """Return the entry for a target, or the only one; otherwise raise OptionError with a list of the targets.

    A target is given in full, or by a part that identifies it: ``cortex-m4`` for ``c -mcpu=cortex-m4``.
    """
    targets = [item.target for item in found]
    if target is None:
        if len(found) == 1:
            return found[0]
        cause = f"there are artifacts for {len(found)} targets: {_listed(targets)}"
        raise OptionError(cause, place=place, next_step="Choose one: --target NAME")
    wanted = " ".join(target.split())
    fitting = [item for item in found if item.target == wanted] or [
        item for item in found if wanted in re.split(r"[ =,]+", item.target)
    ]
    if not fitting:
        raise OptionError(f"unknown target '{shortened(wanted)}'; available: {_listed(targets)}", place=place)
    if len(fitting) > 1:
        cause = f"'{wanted}' matches several targets: {_listed([item.target for item in fitting])}"
        raise OptionError(cause, place=place, next_step="Give one in full")
    return fitting[0]


def pull(
    store: ArtifactStore, output: Path | None = None, target: str | None = None, *, force: bool = False
) -> tuple[oci.Published, Path, Path | None]:
    """Fetch an artifact, and its signature (``kws.tar.sig``) if it has one.

    Parameters
    ----------
    store : Store
        Store of a registry or a folder.
    output : path, optional
        Default: the name under which it was pushed, in the current folder, unless that file exists.
        Required for shared libraries, because Python imports, and loaders find, files with such names.
    target : str, optional
        Target of the artifact, required if there are several.
    force : bool
        Without `output`: replace an existing file.

    Returns
    -------
    Published, path, path or None
        The artifact, its file, and the signature's. `verify_signature` checks the signer.

    Raises
    ------
    RegistryError
        If the registry does not answer, denies access, or sends unexpected data. No file is written.
    OptionError
        If there are several artifacts, or none for the target.
    OutputError
        If the file cannot be written, or a file of that name exists.
    """
    chosen = read_entry(store, choose(entries(store), target, str(store.reference)))
    file = output or _default_output(chosen, force, str(store.reference))
    check_writable(file)
    size, free = chosen.artifact.size, None
    with suppress(OSError):
        free = shutil.disk_usage(file.parent).free
    if free is not None and size > free:  # checked before the download
        cause = f"the artifact has {size:,} bytes, {size - free:,} more than the free space"
        raise OutputError(cause, place=str(file), next_step="Free some space or choose another place")
    beside, signature = None, b""
    if chosen.signature is not None and (not file.exists() or file.is_file()):
        if chosen.signature.size > MAX_SIGNATURE:
            raise RegistryError(f"the signature exceeds {MAX_SIGNATURE:,} bytes", place=str(store.reference))
        beside, signature = file.with_name(file.name + SUFFIX), _small(store, chosen.signature)
    with atomic_file(file) as part:
        _fetch(store, chosen, part)
        if beside is not None:
            write_bytes(beside, signature)
    return chosen, file, beside


def _default_output(chosen: oci.Published, force: bool, place: str) -> Path:
    found = _NAME.fullmatch(chosen.title)
    suffixes = _SUFFIXES[chosen.kind]
    if found is None or found[1] not in suffixes:
        raise OptionError(
            f"expected a file name with .{', .'.join(suffixes)} that is safe to write here, got "
            f"'{shortened(chosen.title)}'",
            place=place,
            next_step="Name the file: -o FILE",
        )
    file = Path(chosen.title)
    if file.is_symlink() or file.exists():
        is_same = file.is_file() and f"sha256:{sha256_of(FileContent(file))}" == chosen.artifact.digest
        if not (is_same or force):
            raise OutputError(
                "a file of this name exists", place=str(file), next_step="Choose another one: -o FILE, or add --force"
            )
    return file


def _small(store: ArtifactStore, blob: oci.Descriptor) -> bytes:
    return b"".join(checked(store.pieces(blob), blob, str(store.reference)))


def _fetch(store: ArtifactStore, chosen: oci.Published, part: BinaryIO) -> None:
    """Write the bytes of an artifact; raise RegistryError if they do not match, or are not an artifact of its kind."""
    blob, place = chosen.artifact, str(store.reference)
    start = b""
    for piece in checked(store.pieces(blob), blob, place):
        start += piece[: HEAD - len(start)]
        part.write(piece)
    if not may_be(chosen.kind, start):
        cause = f"the bytes are not of the declared media type '{blob.media_type}'"
        raise RegistryError(cause, place=place, next_step="Nothing was written. Ask its publisher")


def attached_bill(store: ArtifactStore, target: str | None = None) -> bytes:
    """Return the bill of materials that is attached to an artifact; raise RegistryError if it is missing."""
    place = str(store.reference)
    entry = choose(entries(store), target, place)
    for item in store.attached(entry.manifest):
        if item.artifact_type == oci.BILL_OF_MATERIALS:
            layers = read_document(store, item).layers
            if len(layers) == 1 and layers[0].media_type == oci.BILL_OF_MATERIALS and layers[0].size <= MAX_BILL:
                return _small(store, layers[0])
    raise RegistryError(
        "the artifact has no bill of materials", place=place, next_step="Pull it, then create one: mlfc sbom ARTIFACT"
    )


def _listed(targets: list[str]) -> str:
    return ", ".join(f"'{shortened(item)}'" for item in targets)

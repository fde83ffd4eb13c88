"""Pushing: artifacts for several targets under one tag, each with its signature and its bill of materials."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlfc.errors import OptionError, RegistryError
from mlfc.publish import documents as oci
from mlfc.publish.signing import SUFFIX, read_signature
from mlfc.publish.store import ArtifactStore, required_document
from mlfc.publish.subject import ArtifactSubject, bill_of_materials, read_subject
from mlfc.support.content import FileContent

MAX_TARGETS = 256
_LONGEST_TARGET = 512
_KEY = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)+")
_ATTEMPTS = 3


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

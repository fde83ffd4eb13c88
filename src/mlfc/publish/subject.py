"""Published metadata of an artifact: its kind, its target, and its interface."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mlfc.archive.describe.inspect import inspect
from mlfc.archive.describe.inspect_library import inspect_library
from mlfc.archive.read.load import artifact_kind
from mlfc.errors import ArchiveError
from mlfc.support.content import FileContent, sha256_of
from mlfc.support.tar import open_tar, source_date
from mlfc.support.version import __version__

_PUBLIC = ("executor", "target", "inputs", "outputs", "states", "memory", "levels", "source")
_DATE = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}) ([0-9]{2}:[0-9]{2}:[0-9]{2})Z")
# only for files with these licences, as an archive may claim any
_LICENSES = frozenset({"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT"})
_SPDX = re.compile(rb"SPDX-License-Identifier: ([A-Za-z0-9.+-]+)")
_HEAD = 4096
_RUNTIME, _CODE = "runtime/", (".c", ".h", ".S")
_NAMESPACE = uuid.UUID("5f3a0f5e-6a0e-5b0c-9d5c-6d1f0b8f4d11")


@dataclass(frozen=True)
class ArtifactSubject:
    """An artifact and its description of itself."""

    path: Path
    kind: str  # archive, library or objects
    description: Mapping[str, Any]  # output of `mlfc inspect --json`
    digest: str
    size: int

    modules: Mapping[str, Any]  # the description of each module, by name
    target: str  # the targets of an archive, the machine of a library
    writer: str | None  # the program that created it, with its version; None if not recorded
    # creation time in UTC; None if an archive does not record it. Independent of the time of a push, so the same
    # artifact produces the same documents
    created: str | None

    def config(self) -> bytes:
        """Return the interface as JSON, which can be read without the artifact."""
        modules = {
            name: {key: module[key] for key in _PUBLIC if module.get(key) is not None}
            for name, module in self.modules.items()
        }
        value = {"kind": self.kind, "target": self.target, "modules": modules}
        if self.writer:
            value["writer"] = self.writer
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


def read_subject(path: str | os.PathLike[str]) -> ArtifactSubject:
    """Read an artifact: an archive of any version, or a library of any form; raise ArchiveError for anything else."""
    kind = artifact_kind(path)
    if kind == "model":
        raise ArchiveError(
            "expected an archive or a library, got another file",
            place=str(path),
            next_step="Compile a model first with: mlfc compile MODEL",
        )
    description = inspect(path) if kind == "archive" else inspect_library(path)
    content, modules = FileContent(Path(path)), description["modules"]
    if kind == "archive":
        texts = (" ".join(str(target).split()) for module in modules.values() for target in module["target"])
        target = ", ".join(dict.fromkeys(texts)) or "unknown"
        found = _DATE.fullmatch(max((str(module.get("exported")) for module in modules.values()), default=""))
        created = f"{found[1]}T{found[2]}Z" if found else None
    else:
        target = str(description["library"]["machine"])
        # `SOURCE_DATE_EPOCH`, else 1970
        created = datetime.fromtimestamp(source_date(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    digest, writer = f"sha256:{sha256_of(content)}", description.get("writer")
    return ArtifactSubject(Path(path), kind, description, digest, content.nbytes, modules, target, writer, created)


def bill_of_materials(subject: ArtifactSubject) -> bytes:
    """Return the bill of materials of an artifact as JSON; the same artifact produces the same bytes.

    Its components are the program that created it, each model with the hash of its source, the C runtime with the
    licence and hash of each file, and external code generators.
    """
    digest = subject.digest.removeprefix("sha256:")
    facts = [{"name": "mlfc:kind", "value": subject.kind}, {"name": "mlfc:target", "value": subject.target}]
    artifact = _component("library", "artifact", subject.path.name, hashes=_hashes(digest), properties=facts)
    components = []
    name, _, version = (subject.writer or "").partition(" ")
    if name:
        ours = {"licenses": _licenses({"Apache-2.0"}), "purl": f"pkg:pypi/mlfc@{version}"} if name == "mlfc" else {}
        components.append(_component("application", "compiler", name, version=version, **ours))
    for name, module in subject.modules.items():
        source: Mapping[str, Any] = module.get("source") or {}
        hashes = _hashes(str(source["sha256"])) if source.get("sha256") else None
        form = [{"name": "mlfc:format", "value": str(source["format"])}] if source.get("format") else None
        title = str(source.get("name") or name)
        components.append(_component("machine-learning-model", f"model/{name}", title, hashes=hashes, properties=form))
    components += _runtime(subject)
    # dependencies of external generators' code, whose versions the artifact does not record
    modules = (module.get("build") or {} for module in subject.modules.values())
    for name in sorted({str(item) for build in modules for item in build.get("byoc") or ()}):
        components.append(_component("library", f"generator/{name}", name))
    metadata: dict[str, Any] = {
        "tools": {"components": [{"type": "application", "name": "mlfc", "version": __version__}]},
        "component": artifact,
    }
    if subject.created:
        metadata["timestamp"] = subject.created
    value = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, digest)}",
        "version": 1,
        "metadata": metadata,
        "components": components,
        "dependencies": [{"ref": "artifact", "dependsOn": [item["bom-ref"] for item in components]}],
    }
    return json.dumps(value, indent=2).encode() + b"\n"


def _runtime(subject: ArtifactSubject) -> Iterator[dict[str, Any]]:
    """Yield the C runtime of an archive, with its files."""
    if subject.kind != "archive":
        return
    hashes = {item["path"]: item["sha256"] for item in subject.description["files"]}
    names = [name for name in sorted(hashes) if name.startswith(_RUNTIME) and name.endswith(_CODE)]
    if not names:
        return
    files, used = [], set()
    with open_tar(subject.path) as tar:
        for name in names:
            with tar.open(name) as file:
                declared = _SPDX.search(file.read(_HEAD))
            known = {declared[1].decode()} & _LICENSES if declared else set()
            used |= known
            files.append(_component("file", name, name, hashes=_hashes(hashes[name]), licenses=_licenses(known)))
    version = (subject.writer or "").partition(" ")[2]
    yield _component("library", "runtime", "C runtime", version=version, licenses=_licenses(used), components=files)


def _component(kind: str, ref: str, name: str, **facts: Any) -> dict[str, Any]:
    """Return a component with the facts that are known."""
    return {"type": kind, "bom-ref": ref, "name": name, **{key: value for key, value in facts.items() if value}}


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]


def _licenses(ids: Iterable[str]) -> list[dict[str, Any]]:
    return [{"license": {"id": item}} for item in sorted(ids)]

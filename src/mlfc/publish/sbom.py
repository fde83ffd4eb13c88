"""A bill of materials of an artifact: CycloneDX 1.6, written as plain JSON, since it is two screens of one format."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from mlfc.publish.subject import ArtifactSubject
from mlfc.support.tar import open_tar
from mlfc.support.version import __version__

# of files under these only, as an archive may claim anything
_LICENSES = ("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT")
_SPDX = re.compile(rb"SPDX-License-Identifier: ([A-Za-z0-9.+-]+)")
_HEAD = 4096
_RUNTIME, _CODE = "runtime/", (".c", ".h", ".S")
_NAMESPACE = uuid.UUID("5f3a0f5e-6a0e-5b0c-9d5c-6d1f0b8f4d11")


def bill_of_materials(subject: ArtifactSubject) -> bytes:
    """Return the bill of materials of an artifact as JSON; the same artifact gives the same bytes.

    Its components are the program that made it, each model with the hash of its source, the C runtime with the licence
    and hash of each file, and external code generators.
    """
    digest = subject.digest.removeprefix("sha256:")
    artifact: dict[str, Any] = {
        "type": "library",
        "bom-ref": "artifact",
        "name": subject.path.name,
        "hashes": _hashes(digest),
        "properties": [
            {"name": "mlfc:kind", "value": subject.kind},
            {"name": "mlfc:target", "value": subject.target},
        ],
    }
    components = [*_writer(subject), *_models(subject), *_runtime(subject), *_generators(subject)]
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


def _writer(subject: ArtifactSubject) -> Iterator[dict[str, Any]]:
    """Yield the program that made the artifact."""
    name, _, version = (subject.writer or "").partition(" ")
    if not name:
        return
    found: dict[str, Any] = {"type": "application", "bom-ref": "compiler", "name": name}
    if version:
        found["version"] = version
    if name == "mlfc":
        found |= {"licenses": _licenses("Apache-2.0"), "purl": f"pkg:pypi/mlfc@{version}"}
    yield found


def _models(subject: ArtifactSubject) -> Iterator[dict[str, Any]]:
    """Yield each module's model."""
    for name, module in subject.modules.items():
        source: Mapping[str, Any] = module.get("source") or {}
        found: dict[str, Any] = {
            "type": "machine-learning-model",
            "bom-ref": f"model/{name}",
            "name": str(source.get("name") or name),
        }
        if source.get("sha256"):
            found["hashes"] = _hashes(str(source["sha256"]))
        if source.get("format"):
            found["properties"] = [{"name": "mlfc:format", "value": str(source["format"])}]
        yield found


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
            item: dict[str, Any] = {"type": "file", "bom-ref": name, "name": name, "hashes": _hashes(hashes[name])}
            with tar.open(name) as file:
                stated = _SPDX.search(file.read(_HEAD))
            if stated and (license_id := stated[1].decode()) in _LICENSES:
                item["licenses"] = _licenses(license_id)
                used.add(license_id)
            files.append(item)
    found: dict[str, Any] = {"type": "library", "bom-ref": "runtime", "name": "C runtime"}
    version = (subject.writer or "").partition(" ")[2]
    if version:
        found["version"] = version
    if used:
        found["licenses"] = [entry for license_id in sorted(used) for entry in _licenses(license_id)]
    yield {**found, "components": files}


def _generators(subject: ArtifactSubject) -> Iterator[dict[str, Any]]:
    """Yield what the code of external generators calls, of which the artifact does not state the version."""
    modules = (module.get("build") or {} for module in subject.modules.values())
    for name in sorted({str(item) for build in modules for item in build.get("byoc") or ()}):
        yield {"type": "library", "bom-ref": f"generator/{name}", "name": name}


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]


def _licenses(license_id: str) -> list[dict[str, Any]]:
    return [{"license": {"id": license_id}}]

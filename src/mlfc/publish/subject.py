"""What is published of an artifact besides its bytes: its kind, what it was compiled for, and its interface."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mlfc.archive.describe.inspect import inspect
from mlfc.archive.describe.inspect_library import inspect_library
from mlfc.archive.read.load import artifact_kind
from mlfc.errors import ArchiveError
from mlfc.support.content import FileContent, sha256_of
from mlfc.support.tar import source_date

_PUBLIC = ("executor", "target", "inputs", "outputs", "states", "memory", "levels", "source")
_DATE = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}) ([0-9]{2}:[0-9]{2}:[0-9]{2})Z")


@dataclass(frozen=True)
class ArtifactSubject:
    """An artifact and what it says of itself."""

    path: Path
    kind: str  # archive, library or objects
    description: Mapping[str, Any]  # as `mlfc inspect --json` prints it
    digest: str
    size: int

    @property
    def modules(self) -> Mapping[str, Any]:
        """The description of each module, by name."""
        found: Mapping[str, Any] = self.description["modules"]
        return found

    @property
    def target(self) -> str:
        """What it was compiled for: the targets of an archive, the machine of a library."""
        if self.kind != "archive":
            return str(self.description["library"]["machine"])
        targets = (target for module in self.modules.values() for target in module["target"])
        return ", ".join(dict.fromkeys(" ".join(str(target).split()) for target in targets)) or "unknown"

    @property
    def writer(self) -> str | None:
        """The program that made it, with its version; None where it does not say."""
        return self.description.get("writer")

    @property
    def created(self) -> str | None:
        """When, in UTC: as the archive says, of others `SOURCE_DATE_EPOCH`, else 1970; None where the archive does not.

        Nothing depends on the moment of a push, so the same artifact gives the same documents.
        """
        if self.kind != "archive":
            moment = datetime.fromtimestamp(source_date(), timezone.utc)
            return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        times = {str(module.get("exported")) for module in self.modules.values()}
        found = _DATE.fullmatch(max(times, default=""))
        return f"{found[1]}T{found[2]}Z" if found else None

    def config(self) -> bytes:
        """Return the interface as JSON, which may be read without the artifact."""
        modules = {
            name: {key: module[key] for key in _PUBLIC if module.get(key) is not None}
            for name, module in self.modules.items()
        }
        value = {"kind": self.kind, "target": self.target, "modules": modules}
        if self.writer:
            value["writer"] = self.writer
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


def read_subject(path: str | os.PathLike[str]) -> ArtifactSubject:
    """Return an artifact: an archive of any version, or a library in any form; ArchiveError for anything else."""
    kind = artifact_kind(path)
    if kind == "model":
        raise ArchiveError(
            "expected an archive or a library, got another file",
            place=str(path),
            next_step="Compile a model first with: mlfc compile MODEL",
        )
    description = inspect(path) if kind == "archive" else inspect_library(path)
    content = FileContent(Path(path))
    return ArtifactSubject(Path(path), kind, description, f"sha256:{sha256_of(content)}", content.nbytes)

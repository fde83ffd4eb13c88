"""Whether the Relay text of a module can be read back."""

from __future__ import annotations

from collections.abc import Iterator

from mlfc.archive.read.model import ModuleRecord
from mlfc.archive.read.opening import Archive
from mlfc.archive.read.source import read_source
from mlfc.archive.validate.fault import Fault, fault_of_error
from mlfc.archive.validate.parsed_files import ParsedFiles
from mlfc.errors import ArchiveError, MlfcError
from mlfc.relay.text import from_text
from mlfc.relay.text_source import MAX_TEXT

_VERSION_LINE = "#[version"


def relay_faults(parsed: ParsedFiles) -> Iterator[Fault]:
    """Yield texts that do not parse.

    TVM's archives hold ``str(module)``, which TVM's own parser does not take: it has no line with a version, and the
    values of its constants are nowhere. Such a text must be text, and no more can be asked of it.
    """
    archive = parsed.archive
    from mlfc import ops  # noqa: F401  (registers the operators)

    for name, module in archive.record.modules.items():
        path = module.files.relay
        if path is None:
            continue
        try:
            _read(archive, name, module, path)
        except MlfcError as error:
            yield fault_of_error("relay", path, error)


def _read(archive: Archive, name: str, module: ModuleRecord, path: str) -> None:
    try:
        text = archive.tar.read(path, MAX_TEXT).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArchiveError(f"it is not UTF-8 at byte {error.start}", place=path) from None
    if not text.startswith(_VERSION_LINE):
        return
    if module.details is not None and module.files.source_params is not None:
        read_source(archive, name)
    else:
        from_text(text, path)

"""Whether an archive has the files that its version, style and executors ask for, and none that belong to no module."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from mlfc.archive.read.layout import header_path
from mlfc.archive.read.model import FULL_MODEL, RFC, ModuleRecord
from mlfc.archive.read.opening import Archive, missing_code
from mlfc.archive.templates.demo import vector_paths
from mlfc.archive.validate.parsed_files import Fault, ParsedFiles

_PARAMETERS = "parameters"
_GRAPHS = ("executor-config", "runtime-config")
_RUNTIME_URL = "mlf_path"


def layout_faults(parsed: ParsedFiles) -> Iterator[Fault]:
    """Yield what is missing and what should not be there."""
    archive = parsed.archive
    if archive.record.style == FULL_MODEL:
        yield from _stray_files(archive)
        yield from _shared_headers(archive)
    else:
        yield from _operator_style_faults(archive)
    present = sorted(archive.tar.sizes)
    for name, module in archive.record.modules.items():
        for text in _missing(archive, name, module, present):
            yield Fault("layout", text, "the file is missing")


def _missing(archive: Archive, name: str, module: ModuleRecord, present: Sequence[str]) -> Iterator[str]:
    layout, files = archive.layout, module.files
    if not files.sources and not files.objects:
        yield f"codegen/host/src/{layout.code.format(module=name)}0.c"
    elif module.executor == "aot" and module.details is not None and not files.objects:
        yield from (text.partition(": ")[0] for text in missing_code(archive, name))
    expected = [(layout.relay, files.relay), (layout.params, files.params)]
    if module.executor == "graph":
        expected.append((layout.graph, files.graph))
    for place, found in expected:
        if place is not None and found is None:
            yield place.format(module=name)
    if module.details is not None:
        yield from _missing_extras(archive, name, module, present)


def _missing_extras(archive: Archive, name: str, module: ModuleRecord, present: Sequence[str]) -> Iterator[str]:
    """Yield what metadata of ours promise beyond the format: the C runtime, test vectors."""
    for dependency in module.external_dependencies:
        url = dependency.get("url")
        if dependency.get("url_type") == _RUNTIME_URL and isinstance(url, str):
            folder = f"{PurePosixPath(url)}/"
            # of sorted paths, those that begin with the folder stand together
            at = bisect_left(present, folder)
            if not any(path.startswith(folder) for path in present[at : at + 1]):
                yield folder
    build = module.details and module.details.build
    if build and build.test_vectors:
        yield from (path for path in vector_paths(name) if path not in archive.tar.sizes)


def _stray_files(archive: Archive) -> Iterator[Fault]:
    """Yield files in the modules' folders that no module claims: a reader of another version would take them."""
    records = archive.record.modules.values()
    known = {path for module in records for path in (module.files.graph, module.files.params) if path}
    stems = {path.removesuffix(PurePosixPath(path).suffix) for path in known}
    folders = (_PARAMETERS, *_GRAPHS)
    for path in archive.tar.sizes:
        if path.partition("/")[0] not in folders or path in known:
            continue
        # parameters may be there in several forms
        if not (path.startswith(f"{_PARAMETERS}/") and path.removesuffix(PurePosixPath(path).suffix) in stems):
            yield Fault("layout", path, "no module of the metadata has this file")
    for name, module in archive.record.modules.items():
        if module.executor == "aot" and module.files.graph:
            yield Fault("layout", module.files.graph, f"module '{name}' is of the AOT executor, which has no graph")


def _shared_headers(archive: Archive) -> Iterator[Fault]:
    """Yield modules that one header would have to serve, for headers have names in lower case."""
    owners: dict[str, str] = {}
    for name in archive.record.modules:
        owner = owners.setdefault(header_path(name), name)
        if owner != name:
            yield Fault("layout", header_path(name), f"the modules '{owner}' and '{name}' have one header")


def _operator_style_faults(archive: Archive) -> Iterator[Fault]:
    if archive.record.form != RFC and not any(re.fullmatch(r"src/tir-[0-9]+\.txt", path) for path in archive.tar.sizes):
        yield Fault("layout", "src/tir-1.txt", "the file is missing")
    for path in archive.tar.sizes:
        if path.partition("/")[0] in (_PARAMETERS, *_GRAPHS):
            yield Fault("layout", path, "archives of operator style have no such file")

"""Archives of other layouts: versions 5 and 6, the form of the 2021 proposal, and their migration to version 7."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlfc.archive.read.layout import CODE, METADATA, VERSION, ArchiveLayout, layout_of, moved, params_path
from mlfc.archive.read.model import FULL_MODEL, RFC, TVM
from mlfc.archive.read.module_parts import executable_of
from mlfc.archive.read.opening import Archive, export_seconds, open_archive
from mlfc.archive.read.params_forms import WRITERS, read_params
from mlfc.archive.write.options import ExportOptions
from mlfc.errors import ArchiveError, OptionError
from mlfc.support.atomic import atomic_file, check_writable
from mlfc.support.content import Data, nbytes_of, sha256_of, to_bytes
from mlfc.support.params import load_params, params_content
from mlfc.support.platforms import TYPE_CODES
from mlfc.support.tar import source_date, write_tar
from mlfc.support.version import __version__

RFC_VERSION = 1
_LAST_WITH_TARGETS_BY_DEVICE = 5
# DLDeviceType by the first word of a target; Hexagon's is that of the TVM release that wrote version 5
_DEVICES = {**TYPE_CODES, "c": 1, "llvm": 1, "hexagon": 14}
Document = dict[str, Any]
# our texts that contain paths of other files
_TEXTS = ("Makefile", "CMakeLists.txt", "README.md", "demo/demo.c")
_WRITTEN_VERSION = re.compile(rb"(Model Library Format archive \(version )[0-9](?=\))")
# a path starts a word, or follows a compiler option or CMake's folder: it does not end a longer path
_BEFORE, _AFTER = rb"(?:(?<![A-Za-z0-9_./-])|(?<=-I)|(?<=\}/))", rb"(?![A-Za-z0-9_-])"
# the count of functions is one character, in C syntax; since 0.9 a zero follows, in earlier versions a name
_ONE_BYTE_COUNT = re.compile(
    rb"TVMFuncRegistry\s+\w+\s*=\s*\{\s*\"(?:\\[0-7]{1,3}|\\x[0-9a-fA-F]{2}|\\[^0-7x]|[^\"\\])[A-Za-z_]"
)


def metadata_path(options: ExportOptions) -> str:
    """Return the path of the metadata in an archive of the version and form in `options`."""
    return layout_of(*_version_and_form(options)).metadata


def convert(
    files: Mapping[str, Data], document: Mapping[str, Any], options: ExportOptions
) -> tuple[dict[str, Data], Document]:
    """Convert files and metadata of version 7 to the version and form in `options`.

    `files` are all but the metadata, `document` the metadata of version 7. The caller writes the returned metadata to
    the path `metadata_path(options)`.
    Raises OptionError if the version supports one module and there are several, or cannot represent the module.
    """
    forms = sorted({*options.params_forms} - {"params"})
    made: dict[str, Data] = {}
    for module in document["modules"] if forms else ():
        path = f"parameters/{module}.params"
        params = load_params(to_bytes(files[path]), place=path)
        made.update({f"parameters/{module}.{form}": WRITERS[form](params) for form in forms})
    result = {**files, **made}
    version, form = _version_and_form(options)
    if version == VERSION:
        return result, with_manifest(result, document, manifest_of(document))
    if len(document["modules"]) != 1:
        said = "the proposal's form" if form == RFC else f"version {version}"
        raise OptionError(
            f"{said} holds one module, got {len(document['modules'])}",
            next_step="Write version 7, or one archive per module",
        )
    moved_files, moved_document = relocated(result, document, layout_of(VERSION), layout_of(version, form), version)
    return moved_files, _flat(moved_document, version, form)


def _version_and_form(options: ExportOptions) -> tuple[int, str]:
    return (RFC_VERSION, RFC) if options.rfc else (options.format_version, TVM)


def _flat(document: Mapping[str, Any], version: int, form: str) -> Document:
    """Return the flat object of one module, the inverse of `record.upgraded`."""
    (module,) = document["modules"].values()
    flat = {**module, "version": version}
    flat["mlfc"] = {**module.get("mlfc", {}), "archive": document["mlfc"]}
    if form == RFC:
        del flat["style"]
        flat["runtimes"] = flat.pop("executors")
        flat["export_datetime_utc"] = flat.pop("export_datetime")
        flat["mlfc"]["functions"] = module["memory"]["functions"]
        flat["memory"] = module["memory"].get("sids", [])
        if len(targets := module["target"]) != 1:
            cause = f"the RFC layout supports one target, got {len(targets)}"
            raise OptionError(cause, next_step="Write version 6 or 7")
        flat["target"] = targets[0]
    elif version <= _LAST_WITH_TARGETS_BY_DEVICE:
        by_device: dict[str, str] = {}
        for target in module["target"]:
            kind = target.partition(" ")[0]
            device = str(_DEVICES.get(kind, ""))
            if not device or device in by_device:
                cause = f"version 5 names targets by device, and '{kind}' has no distinct device"
                raise OptionError(cause, next_step="Write version 6 or 7")
            by_device[device] = target
        flat["target"] = by_device
    return flat


def relocated(
    files: Mapping[str, Data], document: Mapping[str, Any], old: ArchiveLayout, new: ArchiveLayout, version: int
) -> tuple[dict[str, Data], Document]:
    """Return files and metadata of an archive of one module with every path in layout `new`.

    `files` are all but the metadata. `document` is of version 7, full-model style; its list of files is regenerated.
    Raises ArchiveError if two files would get the same path.
    """
    ((name, module),) = document["modules"].items()
    paths = {path: moved(path, name, old, new) for path in files}
    taken: dict[str, str] = {}
    for path, target in paths.items():
        if taken.setdefault(target, path) != path:
            raise ArchiveError(
                f"{taken[target]} and {path} would both become {target}",
                place=name,
                next_step="Remove one of the two files from the archive",
            )
    result = {paths[path]: data for path, data in files.items()}
    known = {paths[path]: entry for path, entry in manifest_of(document).items() if path in paths}
    if "mlfc" in module:
        for text in (text for text in _TEXTS if text in result):
            result[text] = _rewritten(to_bytes(result[text]), paths, old, new, version)
            known.pop(text, None)
    moved_document = {**document, "modules": {name: _module(module, paths, old, new)}}
    return result, with_manifest(result, moved_document, known)


def manifest_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the list of files in metadata of version 7; empty if missing."""
    files: Mapping[str, Any] = document.get("mlfc", {}).get("files", {})
    return files


def with_manifest(files: Mapping[str, Data], document: Mapping[str, Any], known: Mapping[str, Any]) -> Document:
    """Return the metadata with a list of these files, their sizes and hashes; hashes in `known` are reused."""
    manifest = {
        path: known[path] if path in known else {"bytes": nbytes_of(data), "sha256": sha256_of(data)}
        for path, data in sorted(files.items())
    }
    details = {"version": __version__, **document.get("mlfc", {}), "files": manifest}
    return {**document, "mlfc": details}


def _module(module: Mapping[str, Any], paths: Mapping[str, str], old: ArchiveLayout, new: ArchiveLayout) -> Document:
    result = dict(module)
    if "external_dependencies" in result:
        here, there = f"./{old.runtime}", f"./{new.runtime}"
        result["external_dependencies"] = [
            {**entry, "url": there} if entry.get("url") == here else entry for entry in result["external_dependencies"]
        ]
    details = dict(result.get("mlfc", {}))
    if (tree := details.get("module_tree")) is not None:
        details["module_tree"] = [{**item, "files": [paths.get(path, path) for path in item["files"]]} for item in tree]
    if (pools := details.get("constant_pools")) is not None:  # file names are relative to the code folder
        code = {f"{CODE}/{pool['file']}": pool["file"] for pool in pools if pool["file"]}
        code_now = {file: paths.get(path, path).removeprefix(f"{CODE}/") for path, file in code.items()}
        details["constant_pools"] = [{**pool, "file": code_now.get(pool["file"], pool["file"])} for pool in pools]
    return {**result, "mlfc": details} if details else result


def _rewritten(text: bytes, paths: Mapping[str, str], old: ArchiveLayout, new: ArchiveLayout, version: int) -> bytes:
    places = {path.encode(): target.encode() for path, target in paths.items() if path != target}
    here, there = f"{old.runtime}/".encode(), f"{new.runtime}/".encode()
    # longest first, so that a path is not replaced within a longer one
    ordered = sorted(places, key=lambda path: (-len(path), path))
    alternatives = [re.escape(path) + _AFTER for path in ordered] + [re.escape(here)]
    places[here] = there
    moved_text = re.sub(_BEFORE + b"(" + b"|".join(alternatives) + b")", lambda found: places[found.group(1)], text)
    return _WRITTEN_VERSION.sub(rb"\g<1>" + str(version).encode(), moved_text)


@dataclass(frozen=True)
class Migration:
    """Result of a migration."""

    path: Path  # the new archive
    version: int  # of the old archive
    form: str  # of the old archive: `model.TVM` or `model.RFC`
    renamed: Mapping[str, str]  # new paths by old ones, if different
    # facts of version 7 that the old archive does not record, and the version that its code requires
    warnings: tuple[str, ...]


def migrate(old: str | os.PathLike[str], new: str | os.PathLike[str], timestamp: int | None = None) -> Migration:
    """Write an archive of any version and form as version 7.

    Every file is kept: known ones move to their path in version 7, all others keep theirs. The metadata are
    regenerated with a list of all files and their hashes. Migrating an archive of version 7 that mlfc wrote
    reproduces it byte for byte.

    Parameters
    ----------
    old, new : path
        The old and the new archive; may be the same file.
    timestamp : int, optional
        Seconds since 1970 for the times of the archive's members; default: the time of the export.

    Returns
    -------
    Migration

    Raises
    ------
    ArchiveError
        If the old archive breaks its format, or its files differ from its list.
    OutputError
        If the new one cannot be written.

    Examples
    --------
    >>> mlfc.migrate("digits.tar", "version7.tar").version
    7
    """
    target = Path(new)
    check_writable(target)
    with open_archive(old) as archive:
        for fault in archive.file_faults():
            raise ArchiveError(fault, place=archive.path, next_step="mlfc validate lists every fault")
        for module in archive.record.modules.values():
            if module.files.vm is not None:
                executable_of(archive, module.files.vm)  # raises for versions with bytecode
        tar = archive.tar
        files: dict[str, Data] = {path: tar.view(path) for path in tar.sizes if path != archive.metadata_path}
        made = {}  # version 7 always contains parameters in TVM's form
        for name, module in archive.record.modules.items():
            if module.files.params not in (None, params_path(name)):
                made[params_path(name)] = params_content(read_params(archive.tar, module.files.params))
        new_layout = layout_of(VERSION, style=archive.record.style)
        if archive.record.style == FULL_MODEL and archive.layout != new_layout:
            files, document = relocated({**files, **made}, archive.metadata, archive.layout, new_layout, VERSION)
        else:
            files |= made
            document = with_manifest(files, archive.metadata, manifest_of(archive.metadata))
        times = [export_seconds(module.export_datetime) for module in archive.record.modules.values()]
        # tar cannot represent times before 1970
        seconds = max(0, *times) if timestamp is None else source_date(timestamp)
        metadata = json.dumps(document, indent=2, sort_keys=True, allow_nan=False).encode()
        with atomic_file(target) as file:
            write_tar(file, {**files, METADATA: metadata}, seconds)
        record, renamed = archive.record, _renamed(archive, new_layout)
        return Migration(target, record.version, record.form, renamed, tuple(_warnings(archive, made)))


def _renamed(archive: Archive, new: ArchiveLayout) -> dict[str, str]:
    renamed = {} if archive.metadata_path == METADATA else {archive.metadata_path: METADATA}
    if archive.layout != new:
        (name,) = archive.record.modules
        for path in sorted(set(archive.tar.sizes) - {archive.metadata_path}):
            target = moved(path, name, archive.layout, new)
            if target != path:
                renamed[path] = target
    return renamed


def _warnings(archive: Archive, made: Mapping[str, Data]) -> Iterator[str]:
    for path in made:
        yield f"{path}: converted from the other form of the parameters"
    for name, module in archive.record.modules.items():
        if archive.record.style == FULL_MODEL:
            if not module.main:
                version = archive.record.version
                yield f"{name}: version {version} does not record the memory of the main function; the list is empty"
            if module.files.params is None:
                yield f"{name}: the archive has no parameters; {params_path(name)} is missing"
            if module.executor == "graph" and module.files.graph is None:
                yield f"{name}: the archive has no graph of this module"
        for path in module.files.sources:
            if path.endswith(".c") and _ONE_BYTE_COUNT.search(archive.tar.view(path)):
                yield (
                    f"{path}: stores its function count in one byte, as TVM 0.8 did; the C runtime of later releases "
                    "reads two, so the file needs the C runtime of TVM 0.8"
                )

"""Archives for readers of another age: versions 5 and 6, and the form that the proposal of 2021 describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlfc.archive.read.layout import VERSION, layout_of
from mlfc.archive.read.model import RFC, TVM
from mlfc.archive.read.params_forms import WRITERS
from mlfc.archive.write.options import ExportOptions
from mlfc.archive.write.relocate import Document, manifest_of, relocated, with_manifest
from mlfc.errors import OptionError
from mlfc.support.content import Data, to_bytes
from mlfc.support.params import load_params

RFC_VERSION = 1
_LAST_WITH_TARGETS_BY_DEVICE = 5
# DLDeviceType by the first word of a target
_DEVICES = {"c": 1, "llvm": 1, "cuda": 2, "opencl": 4, "vulkan": 7, "metal": 8, "ext_dev": 12, "hexagon": 14}


def metadata_path(options: ExportOptions) -> str:
    """Return the path of the metadata in an archive of the version and form that `options` ask for."""
    return layout_of(*_version_and_form(options)).metadata


def convert(
    files: Mapping[str, Data], document: Mapping[str, Any], options: ExportOptions
) -> tuple[dict[str, Data], Document]:
    """Bring files and metadata of version 7 into the version and form that `options` ask for.

    `files`: by path, all but the metadata.
    `document`: metadata of version 7, full-model style, that mlfc made.
    `options`: ``format_version``, ``rfc`` and ``params_forms`` count. With ``rfc`` the version is 1, as in the
    proposal.
    The returned document is to be written at `metadata_path`.
    Raises OptionError if the version knows one module and there are several, or cannot say what the module is.
    """
    result = {**files, **_other_forms(files, document, options)}
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


def _other_forms(files: Mapping[str, Data], document: Mapping[str, Any], options: ExportOptions) -> dict[str, Data]:
    """Return the parameters in the forms that are asked for beside TVM's."""
    forms = sorted({*options.params_forms} - {"params"})
    made: dict[str, Data] = {}
    for module in document["modules"] if forms else ():
        path = f"parameters/{module}.params"
        params = load_params(to_bytes(files[path]), place=path)
        made.update({f"parameters/{module}.{form}": WRITERS[form](params) for form in forms})
    return made


def _flat(document: Mapping[str, Any], version: int, form: str) -> Document:
    """Return the flat object of one module, the inverse of `upgrade.upgraded`."""
    (module,) = document["modules"].values()
    flat = {**module, "version": version}
    flat["mlfc"] = {**module.get("mlfc", {}), "archive": document["mlfc"]}
    if form == RFC:
        del flat["style"]
        flat["runtimes"] = flat.pop("executors")
        flat["export_datetime_utc"] = flat.pop("export_datetime")
        flat["mlfc"]["functions"] = module["memory"]["functions"]
        flat["memory"] = module["memory"].get("sids", [])
        flat["target"] = _only_target(module["target"])
    elif version <= _LAST_WITH_TARGETS_BY_DEVICE:
        flat["target"] = _targets_by_device(module["target"])
    return flat


def _only_target(targets: list[str]) -> str:
    if len(targets) != 1:
        raise OptionError(f"the RFC layout holds one target, got {len(targets)}", next_step="Write version 6 or 7")
    return targets[0]


def _targets_by_device(targets: list[str]) -> dict[str, str]:
    by_device: dict[str, str] = {}
    for target in targets:
        kind = target.partition(" ")[0]
        device = str(_DEVICES.get(kind, ""))
        if not device or device in by_device:
            raise OptionError(
                f"version 5 names targets by device, and '{kind}' has none of its own", next_step="Write version 6 or 7"
            )
        by_device[device] = target
    return by_device

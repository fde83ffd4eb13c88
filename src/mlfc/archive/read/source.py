"""What an archive carries of the model itself: Relay text and weights, enough to compile it again for any target."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from mlfc.archive.read.layout import relay_path, source_params_path
from mlfc.archive.read.opening import Archive
from mlfc.errors import ArchiveError
from mlfc.relay.faults import state_faults
from mlfc.relay.ir import IRModule
from mlfc.relay.text import from_text, section_text, text_and_constants
from mlfc.relay.text_source import MAX_TEXT
from mlfc.support.content import Data, ViewContent, sha256_of
from mlfc.support.params import load_params, params_content

if TYPE_CHECKING:
    from mlfc.factory import Factory

# constants up to this many bytes together travel in the text, which other tools of Relay then read on its own; the
# scales of MobileNetV2's channels take 273 KB
_SECTION_LIMIT = 1 << 20


def source_files(factory: Factory, *, params: bool = True) -> dict[str, Data]:
    """Return a module's source by path in the archive.

    `params` adds the weights, under the names that the model gives them, and what states begin with, if not zeros.
    Large tensor constants are kept among them, as ``meta[relay.Constant][0]`` and so on, which is what the text calls
    them. Without weights, the text holds all constants in its metadata section.
    """
    main = factory.module.main
    values = factory.source_params
    weights = {param.name: values[param.name] for param in main.params if param.name in values}
    text, constants = text_and_constants(factory.module, spans=True)
    weights |= {state.input: state.initial for state in factory.module.states if state.initial is not None}
    beside = {_reference(index): constant.data for index, constant in enumerate(constants)}
    small = sum(constant.type.nbytes for constant in constants) <= _SECTION_LIMIT
    if small or not params or not weights.keys().isdisjoint(beside):
        text += section_text(constants)
        beside = {}
    files: dict[str, Data] = {relay_path(factory.module_name): text.encode()}
    if params:
        files[source_params_path(factory.module_name)] = params_content({**weights, **beside})
    return files


def read_source(archive: Archive, module: str) -> tuple[IRModule, dict[str, npt.NDArray[Any]]]:
    """Return a module of an archive as it was imported, and its weights.

    The module has the original names; where alignment allows it, the weights lie in a map of the archive.
    Raises ArchiveError if the archive lacks a part of the source, or a part is not what the list of files says.
    Raises TextError if the text is damaged.
    """
    files = archive.record.modules[module].files
    if archive.record.modules[module].details is None:
        raise _incomplete(archive, f"module '{module}' was not compiled by mlfc: its Relay text lacks values")
    if files.relay is None:
        raise _incomplete(archive, f"module '{module}' has no Relay text: {relay_path(module)} is missing")
    if files.source_params is None:
        raise _incomplete(
            archive, f"module '{module}' was exported without its weights: {source_params_path(module)} is missing"
        )
    for path in (files.relay, files.source_params):
        _check_content(archive, path)
    place = f"{archive.path}: {files.relay}"
    try:
        text = archive.tar.read(files.relay, MAX_TEXT).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArchiveError(f"it is not UTF-8: {error.reason} at byte {error.start}", place=place) from None
    values = load_params(archive.tar.view(files.source_params), place=f"{archive.path}: {files.source_params}")
    constants: list[npt.NDArray[Any]] = []
    while (array := values.get(_reference(len(constants)))) is not None:
        constants.append(array)
    ir_module = from_text(text, place, constants=constants)
    if "main" not in ir_module.functions:
        raise ArchiveError("it has no function main", place=place, next_step="Export the archive again")
    states = tuple(replace(state, initial=values.pop(state.input, None)) for state in ir_module.states)
    ir_module = replace(ir_module, states=states)
    for fault in state_faults(ir_module):
        raise ArchiveError(fault, place=place, next_step="Export the archive again")
    names = (param.name for param in ir_module.main.params)
    return ir_module, {name: values[name] for name in names if name in values}


def _reference(index: int) -> str:
    return f"meta[relay.Constant][{index}]"


def _incomplete(archive: Archive, cause: str) -> ArchiveError:
    return ArchiveError(
        f"{cause}, so it cannot be compiled again", place=archive.path, next_step="Compile the model itself"
    )


def _check_content(archive: Archive, path: str) -> None:
    """Raise ArchiveError if a file is not what the archive's list of files says, where there is one."""
    manifest = archive.record.manifest
    if manifest is not None and (
        path not in manifest or manifest[path].sha256 != sha256_of(ViewContent(archive.tar.view(path)))
    ):
        raise ArchiveError(
            f"{path}: its SHA-256 differs from the list of files",
            place=archive.path,
            next_step="Export the archive again",
        )

"""Source of the model in an archive: Relay text and weights, enough to compile it again for any target."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from mlfc.archive.read.layout import relay_path, source_params_path
from mlfc.archive.read.opening import Archive
from mlfc.errors import ArchiveError
from mlfc.relay.faults import state_faults
from mlfc.relay.ir import IRModule
from mlfc.relay.text import by_parameter_name, from_text, parameter_names, section_text, text_and_constants
from mlfc.relay.text_source import MAX_TEXT
from mlfc.runtime.executors.graph_json import MAX_TEXT as MAX_GRAPH
from mlfc.runtime.executors.graph_json import parse_graph
from mlfc.support.content import Data, sha256_of
from mlfc.support.params import load_params, params_content
from mlfc.support.text import shortened

if TYPE_CHECKING:
    from mlfc.factory import Factory

# up to this many bytes of constants are in the text, which other Relay tools can then read without the weights; the
# scales of MobileNetV2's channels need 273 KB
_SECTION_LIMIT = 1 << 20
_AGAIN = "Export the archive again"


def source_files(factory: Factory, *, params: bool = True) -> dict[str, Data]:
    """Return a module's source by path in the archive.

    `params` adds the weights and the initial values of states that are not zero, under the names of the variables in
    the text, so that ``relay.build`` of TVM binds them. Large tensor constants are stored among them as
    ``meta[relay.Constant][0]`` and so on, as the text refers to them. Without weights, the text contains all constants
    in its metadata section.
    """
    main = factory.module.main
    values = factory.source_params
    text, constants = text_and_constants(factory.module, spans=True)
    values = {**values, **{state.input: state.initial for state in factory.module.states if state.initial is not None}}
    weights = {title: values[param.name] for param, title in parameter_names(main).items() if param.name in values}
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

    The module has the original names; where alignment allows it, the weights are mapped from the archive.
    Raises ArchiveError if a part of the source is missing, or its digest differs from the list of files.
    Raises TextError if the text is damaged.
    """
    record, files = archive.record.modules[module], archive.record.modules[module].files
    lack = None
    if files.relay is None:
        lack = f"has no Relay text: {relay_path(module)} is missing"
    elif record.details is None:
        try:
            return _recovered(archive, module)
        except ArchiveError as error:
            lack = f"was not compiled by mlfc, and its archive lacks {_missing_values(archive, module)}: {error.cause}"
    elif files.source_params is None:
        lack = f"was exported without its weights: {source_params_path(module)} is missing"
    if lack is not None or files.relay is None or files.source_params is None:
        cause = f"module '{module}' {lack}, so it cannot be compiled again"
        raise ArchiveError(cause, place=archive.path, next_step="Compile the model itself")
    listed = archive.record.manifest or {}
    for path in (files.relay, files.source_params) if archive.record.manifest is not None else ():
        if path not in listed or listed[path].sha256 != sha256_of(archive.tar.view(path)):
            cause = f"{path}: its SHA-256 differs from the list of files"
            raise ArchiveError(cause, place=archive.path, next_step=_AGAIN)
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
        raise ArchiveError("it has no function main", place=place, next_step=_AGAIN)
    known = {param.name for param in ir_module.main.params}
    # earlier versions stored weights under the names in the model
    values = {name: value for name, value in by_parameter_name(ir_module.main, values).items() if name in known}
    states = tuple(replace(state, initial=values.pop(state.input, None)) for state in ir_module.states)
    ir_module = replace(ir_module, states=states)
    for fault in state_faults(ir_module):
        raise ArchiveError(fault, place=place, next_step=_AGAIN)
    return ir_module, values


def _recovered(archive: Archive, module: str) -> tuple[IRModule, dict[str, npt.NDArray[Any]]]:
    """Return a module that TVM compiled, with values from its graph or C; raise ArchiveError without them."""
    # only here, as they need the parser of Relay text, which takes long to import
    from mlfc.archive.read.compiled_code import MAX_CODE, CompiledProgram, functions_in, program_in
    from mlfc.archive.read.recovered import recovered_module, sanitized

    record, tar = archive.record.modules[module], archive.tar
    files, names = record.files, [item.name for item in record.inputs]
    text = tar.read(files.relay or "", MAX_TEXT).decode("utf-8", "replace")
    sources = [path for path in files.sources if path.endswith(".c")]
    if sum(archive.tar.sizes[path] for path in sources) > MAX_CODE:
        raise ArchiveError(f"its C code has more than {MAX_CODE:,} bytes")
    code = functions_in("\n".join(tar.read(path, MAX_CODE).decode("utf-8", "replace") for path in sources))
    program = None
    if files.graph is not None and (files.params or "").endswith(".params"):
        graph = parse_graph(tar.read(files.graph, MAX_GRAPH), f"{archive.path}: {files.graph}")
        params = load_params(tar.view(files.params or ""), place=f"{archive.path}: {files.params}")
        program = CompiledProgram(graph.nodes, graph.heads, params, code, graph.entries)
    elif code:
        keys = {key for target in record.targets for key in re.findall(r"-keys=(\S+)", target)}
        program = program_in(code, module, {*map(sanitized, names)})
        program = replace(program, may_relay=not keys <= {"cpu"})
    return recovered_module(text, f"{archive.path}: {files.relay}", module, names, program)


def _missing_values(archive: Archive, module: str) -> str:
    """Return the values to which the Relay text of another compiler refers, and that its archives do not contain."""
    record = archive.record.modules[module]
    text = archive.tar.read(record.files.relay or "", MAX_TEXT).decode("utf-8", "replace")
    inputs = {item.name for item in record.inputs}
    main = text.partition("def @main(")[2].partition("{")[0]
    weights = [name for name in re.findall(r"%(\w+): Tensor", main) if name not in inputs]
    count = len({*re.findall(r"meta\[relay\.Constant\]\[\d+\]", text)})
    values = [f"the weights {shortened(', '.join(weights))}"] if weights else []
    return " and ".join([*values, *([f"{count} constants meta[relay.Constant]"] if count else [])]) or "its weights"


def _reference(index: int) -> str:
    return f"meta[relay.Constant][{index}]"

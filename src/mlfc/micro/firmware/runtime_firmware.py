"""Firmware on the C runtime: graphs for its executor, and modules compiled ahead of time by TVM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files

import numpy as np

from mlfc.archive.read.c_header import c_interface, graph_outputs
from mlfc.archive.read.model import TensorRecord
from mlfc.archive.read.module_parts import ModuleParts
from mlfc.codegen.c_files import registry_file
from mlfc.codegen.writer import Writer, c_string
from mlfc.crt import crt_files
from mlfc.errors import OptionError
from mlfc.micro.board.board import Board
from mlfc.micro.firmware.bare_metal import Firmware, standalone_main
from mlfc.micro.firmware.graph_source import GraphSource
from mlfc.micro.render import render
from mlfc.runtime.executors.graph_json import NOP, Graph
from mlfc.support.content import Data, to_bytes
from mlfc.support.module_info import MemoryInfo, ModuleInterface
from mlfc.support.tensor_info import Array, TensorInfo

_CRT_PARTS = ("include", "src/runtime/crt/common", "src/runtime/crt/graph_executor")
_ALLOCATOR = "src/runtime/crt/memory/page_allocator.c"
_TEMPLATES = ("graph_data.S", "graph_model.h", "platform.c")
_REGISTRY_SYMBOL = b"TVMSystemLibEntryPoint"
_LICENCE = "SPDX-License-Identifier: 0BSD"
_ALIGNMENT = 16
_PAGE = 32
# a JSON escape takes six characters; strings are quoted
_ESCAPE, _QUOTES = 6, 2
_TVM_CRT_FILES = (
    "src/runtime/crt/memory/stack_allocator.c", "src/runtime/crt/common/error_text.c",
    "src/runtime/crt/common/error_text.h", "src/runtime/crt/common/context.h", "src/runtime/crt/common/config.h",
)  # fmt: skip
_BLOCKS = 64
"""Maximum number of blocks that an inference uses at once; each is rounded up to a multiple of the alignment."""


def graph_firmware(source: GraphSource, board: Board) -> Firmware:
    """Return the parts of a project besides the operators' code and the board's own files.

    Raises OptionError if the C runtime does not support the board's core.
    """
    if board.arch == "avr":
        raise OptionError(
            f"the C runtime's graph executor does not support the board '{board.name}', which has 16-bit addresses",
            next_step="Compile the model with --executor aot",
        )
    graph, params = source.graph, source.params
    templates = files("mlfc.micro").joinpath("templates", "graph")
    made = runtime_part(*_CRT_PARTS)
    made |= {f"graph/{name}": templates.joinpath(name).read_bytes() for name in _TEMPLATES}
    made["graph/crt_config.h"] = render("graph/crt_config.h", defines=_defines(graph, source.scratch_bytes))
    made["graph/graph_model.c"] = _tensors(graph, params).encode()
    made["graph/graph.json"] = source.graph_json.encode()
    made["graph/params.bin"] = b"".join(_padded(params[name]) for name in graph.arguments if name in params)
    made |= registry_part("graph", source)
    main = templates.joinpath("main.c").read_text(encoding="utf-8")
    return Firmware(main, made, ("graph", "crt/include", "crt/src/runtime/crt/graph_executor"))


def runtime_part(*parts: str) -> dict[str, Data]:
    """Return parts of the C runtime and its allocator as files of a project."""
    found = {**crt_files(*parts), _ALLOCATOR: crt_files("src/runtime/crt/memory")[_ALLOCATOR]}
    return {f"crt/{path}": data for path, data in found.items()}


def registry_part(folder: str, source: GraphSource) -> dict[str, Data]:
    """Return the function table of a graph as a file in a folder; empty if its code has one."""
    code = (to_bytes(data) for path, data in source.code.items() if path.endswith((".c", ".o")))
    if any(_REGISTRY_SYMBOL in data for data in code):
        return {}
    return {f"{folder}/registry.c": registry_file(source.graph.functions, _LICENCE).encode()}


def own_blocks(graph: Graph) -> list[int]:
    """Return the bytes of each storage that is allocated: arguments read in place are not."""
    sizes = graph.storage_bytes
    written = {
        graph.entries[entry].storage_id
        for node in graph.nodes
        if node.function not in (None, NOP)
        for entry in node.outputs
    }
    arguments = [graph.entries[entry] for entry in graph.arguments.values()]
    copied = {entry.storage_id for entry in arguments if entry.nbytes != sizes[entry.storage_id] or not entry.nbytes}
    return [sizes[storage] for storage in sorted(written | copied)]


def _defines(graph: Graph, scratch_bytes: int) -> dict[str, int]:
    """Return the limits of the C runtime, and the counts that determine its memory size."""
    calls = [node for node in graph.nodes if node.function is not None and node.function != NOP]
    arguments = {id(node): len(node.inputs) + len(node.outputs) for node in calls}
    names = [node.name.encode() for node in graph.nodes] + [(node.function or "").encode() for node in graph.nodes]
    blocks = own_blocks(graph)
    return {
        "TVM_CRT_MAX_ARGS": max(10, *arguments.values()) if arguments else 10,
        "TVM_CRT_MAX_NDIM": max(6, *(len(entry.shape) for entry in graph.entries)),
        "TVM_CRT_GLOBAL_FUNC_REGISTRY_SIZE_BYTES": 512,
        "TVM_CRT_MAX_REGISTERED_MODULES": 2,
        "TVM_CRT_MAX_STRLEN_FUNCTION_NAME": max(120, *(len(name) + 1 for name in names)),
        "TVM_CRT_STORAGE_ALIGNMENT_BYTES": _ALIGNMENT,
        "GRAPH_NODES": len(graph.nodes),
        "GRAPH_REFERENCES": sum(len(node.inputs) for node in graph.nodes),
        "GRAPH_ARGUMENTS": len(graph.arg_nodes),
        "GRAPH_HEADS": len(graph.heads),
        "GRAPH_ENTRIES": len(graph.entries),
        "GRAPH_EXTENTS": sum(len(entry.shape) for entry in graph.entries),
        "GRAPH_VIEWS": sum(arguments[id(node)] for node in calls if node.flatten),
        "GRAPH_STORAGES": max(graph.storage_bytes, default=0) + 1,
        "GRAPH_CALLS": len(calls),
        "GRAPH_CALL_ARGUMENTS": sum(arguments.values()),
        "GRAPH_NAME_BYTES": sum(_ESCAPE * len(name) + _QUOTES for name in graph.arguments),
        "GRAPH_SCRATCH_BYTES": scratch_bytes,
        "GRAPH_STORAGE_PAGES": sum(-(-(max(size, 1) + _ALIGNMENT - 1) // _PAGE) for size in blocks),
    }


def graph_details(source: GraphSource, outputs: Sequence[TensorRecord]) -> ModuleInterface:
    """Return the description of a graph by another compiler.

    `outputs`: the metadata's outputs, in any order.
    """
    graph, params = source.graph, source.params

    def info(name: str, entry: int) -> TensorInfo:
        return TensorInfo(name, graph.entries[entry].shape, graph.entries[entry].dtype)

    inputs = tuple(info(name, entry) for name, entry in graph.arguments.items() if name not in params)
    unnamed = [info(f"output{index}", head) for index, head in enumerate(graph.heads)]
    results = tuple(graph_outputs(outputs, unnamed))
    memory = MemoryInfo(
        workspace_bytes=sum(own_blocks(graph)) + source.scratch_bytes,
        workspace_lower_bound_bytes=0,
        constants_bytes=sum(array.nbytes for array in params.values()),
        io_bytes=sum(info.nbytes for info in (*inputs, *results)),
    )
    return ModuleInterface(
        executor="graph", entry=None, external_workspace=False, inputs=inputs, outputs=results, memory=memory
    )


def _padded(array: Array) -> bytes:
    data = np.ascontiguousarray(array).tobytes()
    return data + bytes(-len(data) % _ALIGNMENT)


def _tensors(graph: Graph, params: Mapping[str, Array]) -> str:
    """Return the C file that describes parameters, inputs and outputs."""
    w = Writer()
    w.lines([f"/* The model's tensors. {_LICENCE} */", '#include "graph_model.h"', ""])
    given = [name for name in graph.arguments if name in params]
    inputs = [name for name in graph.arguments if name not in params]
    offset, places = 0, {}
    for name in given:
        places[name] = f"(graph_params_data + {offset})"
        offset += len(_padded(params[name]))
    for index, name in enumerate(inputs):
        nbytes = graph.entries[graph.arguments[name]].nbytes
        places[name] = f"input_{index}"
        attributes = f'aligned({_ALIGNMENT}), section(".bss.noinit.io")'
        w.line(f"static uint8_t input_{index}[{max(nbytes, 1)}] __attribute__(({attributes}));")
    _table(w, "params", given, graph, places)
    _table(w, "inputs", inputs, graph, places)
    sizes = ", ".join(str(graph.entries[head].nbytes) for head in graph.heads)
    w.lines([f"const size_t graph_outputs[] = {{{sizes}}};", f"const uint32_t graph_num_outputs = {len(graph.heads)};"])
    return w.text()


def _table(w: Writer, kind: str, names: Iterable[str], graph: Graph, places: Mapping[str, str]) -> None:
    rows = []
    for index, name in enumerate(names):
        entry = graph.entries[graph.arguments[name]]
        shape = ", ".join(map(str, entry.shape)) or "0"
        w.line(f"static const int64_t {kind}_{index}[] = {{{shape}}};")
        tensor = f"(void *){places[name]}, {{kDLCPU, 0}}, {len(entry.shape)}, {_dtype(entry.dtype)}"
        rows.append(
            f"{{{c_string(name, len(name))}, {entry.nbytes}, {{{tensor}, (int64_t *){kind}_{index}, NULL, 0}}}},"
        )
    with w.block(f"const struct graph_tensor graph_{kind}[] =", "};"):
        w.lines(rows or ["{NULL, 0, {NULL, {kDLCPU, 0}, 0, {0, 0, 0}, NULL, NULL, 0}},"])
    w.lines([f"const uint32_t graph_num_{kind} = {len(rows)};", ""])


def _dtype(name: str) -> str:
    if name == "bool":
        return "{kDLUInt, 1, 1}"
    scalar, _, lanes = name.partition("x")
    kind = scalar.rstrip("0123456789")
    code = {"int": "kDLInt", "uint": "kDLUInt", "float": "kDLFloat", "bfloat": "kDLBfloat"}[kind]
    return f"{{{code}, {scalar[len(kind) :]}, {lanes or 1}}}"


def aot_details(parts: ModuleParts) -> ModuleInterface:
    """Return the description of a module compiled by TVM.

    Raises ArchiveError if header and metadata are insufficient; OptionError if it has no C interface, or its caller
    provides the workspace.
    """
    found = None if parts.header is None else c_interface(parts.record, parts.header, parts.relay, parts.place)
    if found is None or found.pools:
        lacking = "requires TVM's workspace pools, which mlfc's firmware does not have"
        raise OptionError(
            f"module '{parts.record.name}' {lacking if found else 'has no C interface, which firmware requires'}",
            place=parts.place,
            next_step="Compile the model with: mlfc compile MODEL",
        )
    main = parts.record.main[0] if parts.record.main else None
    memory = replace(
        found.memory,
        workspace_bytes=found.memory.workspace_bytes + _ALIGNMENT * _BLOCKS,
        constants_bytes=main.constants_bytes if main else 0,
        io_bytes=sum(info.nbytes for info in (*found.inputs, *found.outputs)),
    )
    return replace(found, external_workspace=False, workspace_io=False, memory=memory)


def tvm_firmware(name: str, details: ModuleInterface) -> Firmware:
    """Return the parts of a project besides the module's code and the board's own files."""
    crt = {**crt_files("include"), **crt_files("src/runtime/crt/memory"), **crt_files("src/runtime/crt/common")}
    made: dict[str, Data] = {
        f"crt/{path}": data for path, data in crt.items() if path.startswith("include/") or path in _TVM_CRT_FILES
    }
    made["tvm/workspace.c"] = files("mlfc.micro").joinpath("templates", "tvm", "workspace.c").read_bytes()
    made["tvm/crt_config.h"] = render("graph/crt_config.h", defines={"WORKSPACE_BYTES": details.memory.workspace_bytes})
    return Firmware(standalone_main(name, details), made, ("tvm", "crt/include"))

"""Firmware that runs a graph by the C runtime's executor: its JSON and parameters lie in flash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files

import numpy as np

from mlfc.archive.read.model import TensorRecord
from mlfc.archive.read.tvm_interface import graph_outputs
from mlfc.codegen.c_files import registry_file
from mlfc.codegen.writer import Writer, c_string
from mlfc.crt import crt_files
from mlfc.errors import OptionError
from mlfc.micro.board.board import Board
from mlfc.micro.firmware.bare_metal import Firmware
from mlfc.micro.firmware.graph_source import GraphSource
from mlfc.runtime.executors.graph_json import COPY, NOP, Graph
from mlfc.support.arrays import Array
from mlfc.support.content import Data, to_bytes
from mlfc.support.module_info import MemoryInfo, ModuleInterface
from mlfc.support.tensor_info import TensorInfo

_CRT_PARTS = ("include", "src/runtime/crt/common", "src/runtime/crt/graph_executor")
_ALLOCATOR = "src/runtime/crt/memory/page_allocator.c"
_TEMPLATES = ("graph_data.S", "graph_model.h", "platform.c")
_REGISTRY_SYMBOL = b"TVMSystemLibEntryPoint"
_LICENCE = "SPDX-License-Identifier: 0BSD"
_ALIGNMENT = 16
_PAGE = 32
# an escape of JSON takes six characters, and there are quotes around
_ESCAPE, _QUOTES = 6, 2


def graph_firmware(source: GraphSource, board: Board) -> Firmware:
    """Return what a project takes beside the operators' code and the board's own files.

    Raises OptionError if the C runtime does not support the board's core.
    """
    if board.arch == "avr":
        raise OptionError(
            f"the C runtime's graph executor is not made for the board '{board.name}', whose addresses have 16 bits",
            next_step="Compile the model with --executor aot",
        )
    graph, params, code = source.graph, source.params, source.code
    templates = files("mlfc.micro").joinpath("templates", "graph")
    crt = crt_files(*_CRT_PARTS)
    crt[_ALLOCATOR] = crt_files("src/runtime/crt/memory")[_ALLOCATOR]
    made: dict[str, Data] = {f"crt/{path}": data for path, data in crt.items()}
    made |= {f"graph/{name}": templates.joinpath(name).read_bytes() for name in _TEMPLATES}
    made["graph/crt_config.h"] = _config(graph, source.scratch_bytes).encode()
    made["graph/graph_model.c"] = _tensors(graph, params).encode()
    made["graph/graph.json"] = source.graph_json.encode()
    made["graph/params.bin"] = b"".join(_padded(params[name]) for name in _param_names(graph, params))
    if not any(_REGISTRY_SYMBOL in to_bytes(data) for path, data in code.items() if path.endswith((".c", ".o"))):
        names = {node.function for node in graph.nodes} - {None, NOP, COPY}
        made["graph/registry.c"] = registry_file(sorted(name for name in names if name), _LICENCE).encode()
    main = templates.joinpath("main.c").read_text(encoding="utf-8")
    return Firmware(main, made, ("graph", "crt/include", "crt/src/runtime/crt/graph_executor"))


def own_blocks(graph: Graph) -> list[int]:
    """Return the bytes of each storage that takes memory: not of arguments that are read where they stand."""
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


def _config(graph: Graph, scratch_bytes: int) -> str:
    """Return the limits of the C runtime, and the counts by which its memory is sized."""
    calls = [node for node in graph.nodes if node.function is not None and node.function != NOP]
    arguments = {id(node): len(node.inputs) + len(node.outputs) for node in calls}
    names = [node.name.encode() for node in graph.nodes] + [(node.function or "").encode() for node in graph.nodes]
    blocks = own_blocks(graph)
    defines = {
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
    lines = [f"/* Limits of the C runtime for one model. {_LICENCE} */"]
    lines += ["#ifndef TVM_RUNTIME_CRT_CONFIG_H_", "#define TVM_RUNTIME_CRT_CONFIG_H_", ""]
    lines += [f"#define {name} {value}" for name, value in defines.items()]
    return "\n".join([*lines, "", "#endif /* TVM_RUNTIME_CRT_CONFIG_H_ */", ""])


def graph_details(source: GraphSource, outputs: Sequence[TensorRecord]) -> ModuleInterface:
    """Return what is known of a graph that another compiler wrote.

    `outputs`: what the metadata says of the outputs, in no order.
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


def _param_names(graph: Graph, params: Mapping[str, Array]) -> list[str]:
    return [name for name in graph.arguments if name in params]


def _padded(array: Array) -> bytes:
    data = np.ascontiguousarray(array).tobytes()
    return data + bytes(-len(data) % _ALIGNMENT)


def _tensors(graph: Graph, params: Mapping[str, Array]) -> str:
    """Return the C file that describes parameters, inputs and outputs."""
    w = Writer()
    w.lines([f"/* The model's tensors. {_LICENCE} */", '#include "graph_model.h"', ""])
    given = _param_names(graph, params)
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

"""Firmware that a host drives: a server that calls functions, and operators with parameters, or a module of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from mlfc.codegen.system_lib import described_module, system_library
from mlfc.errors import OptionError
from mlfc.micro.board.board import Board
from mlfc.micro.firmware.bare_metal import Firmware
from mlfc.micro.firmware.graph_source import GraphSource
from mlfc.micro.firmware.runtime_firmware import registry_part, runtime_part
from mlfc.micro.render import render
from mlfc.runtime.executors.graph_json import Graph
from mlfc.support.arrays import Array
from mlfc.support.content import Data
from mlfc.support.module_info import ModuleInterface

PACKET_BYTES = 2048
"""The firmware's buffer: what a host sends at a time."""

_CRT_PARTS = (
    "include", "src/runtime/crt/common", "src/runtime/crt/microtvm_rpc_common",
    "src/runtime/crt/microtvm_rpc_server",
)  # fmt: skip
_AOT_PARTS = ("src/runtime/crt/aot_executor", "src/runtime/crt/aot_executor_module")
_TEMPLATES = ("platform.c", "parameters.c", "parameters.h", "parameter_data.S")
_ALIGNMENT = 16
_PAGE_LOG2 = 6
_PAGE = 1 << _PAGE_LOG2
_PAGE_RECORD = 4
# the allocator's own words, times of single operators, and what is lost to alignment
_SLACK_BYTES = 1024
# of an AOT executor beside its tensors' elements: for each tensor, and once
_TENSOR_BYTES, _EXECUTOR_BYTES = 128, 128
# on a computer memory that nobody touches costs nothing: room for more executors than one
_HOST_POOL_BYTES = 16 << 20
_EXECUTORS_ON_HOST = 4
_MODULES = 8
_NANOSECONDS = 1_000_000_000
_SMALLEST_ARGS, _SMALLEST_NDIM = 10, 6


@dataclass(frozen=True)
class DeviceLimits:
    """What the C runtime of a device must have room for."""

    # most arguments of a function and dimensions of a tensor
    args: int
    ndim: int
    blocks: tuple[int, ...]  # bytes of the allocations that there are at the same time
    has_executor: bool = False  # whether the device runs an AOT executor


def refuses_host_driven(board: Board) -> str | None:
    """Return why no firmware of ours for a board can be driven by a host; None where it can."""
    if board.arch == "host" or board.uart is not None:
        return None
    return "there is no driver for its serial port"


def host_driven_firmware(source: GraphSource, board: Board) -> Firmware:
    """Return what a project takes beside the operators' code and the board's own files.

    `source`: what the host will run; determines the device's memory and parameters.

    Raises OptionError if there is no driver for the board's serial port.
    """
    places, parameters = _parameters(source.graph, source.params)
    made = _device_files(graph_limits(source, board), board, places, parameters)
    return _firmware(made | registry_part("src", source))


def host_driven_aot_firmware(name: str, details: ModuleInterface, board: Board, *, allocates: bool = False) -> Firmware:
    """Return what a project takes beside a module compiled ahead of time: hosts create executors of it on the device.

    `allocates`: whether its code gets the workspace from the runtime, as code of TVM does.

    Raises OptionError if there is no driver for the board's serial port, or the caller must load constants.
    """
    made = _device_files(aot_limits(details, allocates=allocates), board, [], b"")
    made["src/registry.c"] = system_library([described_module(name, details)]).encode()
    return _firmware(made)


def _firmware(made: dict[str, Data]) -> Firmware:
    main = files("mlfc.micro").joinpath("templates", "host_driven", "main.c").read_text(encoding="utf-8")
    return Firmware(main, made, ("src", "crt/include", "crt_config"))


def _device_files(
    limits: DeviceLimits, board: Board, places: Sequence[tuple[int, int]], parameters: bytes
) -> dict[str, Data]:
    """Return the C runtime, its configuration, parameters, and the driver of the serial port."""
    reason = refuses_host_driven(board)
    if reason is not None:
        raise OptionError(
            f"board '{board.name}' cannot be driven by a host: {reason}",
            next_step="Add a [uart] with a supported driver to the board, or choose another board",
        )
    templates = files("mlfc.micro").joinpath("templates")
    driver = f"common/uart_{board.uart.driver}.c" if board.uart is not None else "host/uart_stdio.c"
    made = runtime_part(*_CRT_PARTS, *(_AOT_PARTS if limits.has_executor else ()))
    made["crt_config/crt_config.h"] = crt_config(limits, board)
    made |= {f"src/{name}": templates.joinpath("host_driven", name).read_bytes() for name in _TEMPLATES}
    made["src/parameters.bin"] = parameters
    made["src/parameter_places.c"] = render("host_driven/parameter_places.c", places=places, nbytes=len(parameters))
    made["src/uart.h"] = templates.joinpath("common", "uart.h").read_bytes()
    made["src/uart.c"] = templates.joinpath(driver).read_bytes()
    if board.uart is not None:
        made["src/uart_config.h"] = render("host_driven/uart_config.h", board=board)
    return made


def linked_storages(graph: Graph, params: Mapping[str, Array]) -> dict[int, str]:
    """Return the parameters that firmware carries, by the storage that each has for itself."""
    owners: dict[int, int] = {}
    for entry in graph.entries:
        owners[entry.storage_id] = owners.get(entry.storage_id, 0) + 1
    return {
        graph.entries[entry].storage_id: name
        for name, entry in graph.arguments.items()
        if name in params and graph.entries[entry].nbytes and owners[graph.entries[entry].storage_id] == 1
    }


def _parameters(graph: Graph, params: Mapping[str, Array]) -> tuple[list[tuple[int, int]], bytes]:
    """Return storage and offset of each parameter, and all of them behind each other."""
    places, data = [], bytearray()
    for storage, name in sorted(linked_storages(graph, params).items()):
        data += bytes(-len(data) % _ALIGNMENT)
        places.append((storage, len(data)))
        data += np.ascontiguousarray(params[name]).tobytes()
    return places, bytes(data)


def graph_limits(source: GraphSource, board: Board) -> DeviceLimits:
    """Return what a graph takes of a device whose host runs it: its blocks, and one operator's scratch."""
    graph = source.graph
    linked = linked_storages(graph, source.params)
    # in front of each block stand three words and a device, and the block is aligned to a page
    header = 3 * (8 if board.arch == "host" else 4) + 8
    own = [header + _PAGE - 1 + size for storage, size in graph.storage_bytes.items() if storage not in linked]
    return DeviceLimits(
        max((len(node.inputs) + len(node.outputs) for node in graph.nodes), default=0),
        max((len(entry.shape) for entry in graph.entries), default=0),
        (*own, source.scratch_bytes),
    )


def aot_limits(details: ModuleInterface, *, allocates: bool) -> DeviceLimits:
    """Return what an executor of a module takes of a device: its tensors, and the workspace unless that is static."""
    tensors = (*details.inputs, *details.outputs)
    workspace = 0
    if allocates or details.external_workspace:
        # pools are aligned within one block
        workspace = details.memory.workspace_bytes + _PAGE * (1 + len(details.pools))
    return DeviceLimits(
        len(tensors),
        max((len(info.shape) for info in tensors), default=0),
        (*(info.nbytes + _ALIGNMENT for info in tensors), _EXECUTOR_BYTES + _TENSOR_BYTES * len(tensors), workspace),
        has_executor=True,
    )


def crt_config(limits: DeviceLimits, board: Board) -> bytes:
    """Return the configuration of the C runtime."""
    defines = {
        "TVM_CRT_MAX_ARGS": max(limits.args, _SMALLEST_ARGS),
        "TVM_CRT_MAX_NDIM": max(limits.ndim, _SMALLEST_NDIM),
        "TVM_CRT_GLOBAL_FUNC_REGISTRY_SIZE_BYTES": 512,
        "TVM_CRT_MAX_REGISTERED_MODULES": _MODULES,
        "TVM_CRT_MAX_PACKET_SIZE_BYTES": PACKET_BYTES,
        "TVM_CRT_STORAGE_ALIGNMENT_BYTES": _ALIGNMENT,
        "TVM_CRT_RPC_AOT_EXECUTOR": int(limits.has_executor),
        "TVM_CRT_RPC_OWN_MEMORY_ONLY": 1,
        "PLATFORM_PAGE_LOG2": _PAGE_LOG2,
        "PLATFORM_TICKS_PER_SECOND": f"{ticks_per_second(board)!r}",
    }
    return render("host_driven/crt_config.h", defines=defines, pool_bytes=pool_bytes(limits, board))


def pool_bytes(limits: DeviceLimits, board: Board) -> int:
    """Return the memory that hosts can allocate: what one executor takes, and the server; on a computer more."""
    pages = sum(-(-size // _PAGE) for size in (*limits.blocks, _SLACK_BYTES))
    needed = pages * (_PAGE + _PAGE_RECORD) + _PAGE * 2
    return max(_EXECUTORS_ON_HOST * needed, _HOST_POOL_BYTES) if board.arch == "host" else needed


def ticks_per_second(board: Board) -> float:
    """Return how fast the counter of a board's firmware counts; emulators take a nanosecond for an instruction."""
    if board.emulator is not None:
        return _NANOSECONDS / (board.emulator.instructions_per_tick or 1.0)
    return float(_NANOSECONDS if board.arch == "host" else board.clock_hz or 1)

"""Host-driven firmware: a server that calls functions, with operators and parameters, or a whole module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from mlfc.codegen.link import described_module, system_library
from mlfc.errors import OptionError
from mlfc.micro.board.board import Board
from mlfc.micro.firmware.bare_metal import Firmware
from mlfc.micro.firmware.graph_source import GraphSource
from mlfc.micro.firmware.runtime_firmware import registry_part, runtime_part
from mlfc.micro.render import render
from mlfc.runtime.executors.graph_json import Graph
from mlfc.support.content import Data
from mlfc.support.module_info import ModuleInterface
from mlfc.support.tensor_info import Array

PACKET_BYTES = 2048
"""Size of the firmware's packet buffer, the maximum that a host sends at a time."""

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
# allocator records, times of single operators, and alignment losses
_SLACK_BYTES = 1024
# overhead of an AOT executor: per tensor, and once
_TENSOR_BYTES, _EXECUTOR_BYTES = 128, 128
# untouched memory is free on a computer, so it has room for several executors
_HOST_POOL_BYTES = 16 << 20
_EXECUTORS_ON_HOST = 4
_MODULES = 8
_NANOSECONDS = 1_000_000_000
_SMALLEST_ARGS, _SMALLEST_NDIM = 10, 6


@dataclass(frozen=True)
class DeviceLimits:
    """Capacities of a device's C runtime."""

    # maximum arguments of a function and dimensions of a tensor
    args: int
    ndim: int
    blocks: tuple[int, ...]  # bytes of the allocations that exist at the same time
    has_executor: bool = False  # whether the device runs an AOT executor


def host_driven_firmware(source: GraphSource, board: Board) -> Firmware:
    """Return the parts of a project besides the operators' code and the board's own files.

    `source`: the model that the host will run, which determines the device's memory and parameters.

    Raises OptionError if the board's serial port has no driver.
    """
    graph = source.graph
    linked = linked_storages(graph, source.params)
    # each block is preceded by three words and a device, and aligned to a page
    header = 3 * (8 if board.arch == "host" else 4) + 8
    own = [header + _PAGE - 1 + size for storage, size in graph.storage_bytes.items() if storage not in linked]
    limits = DeviceLimits(
        max((len(node.inputs) + len(node.outputs) for node in graph.nodes), default=0),
        max((len(entry.shape) for entry in graph.entries), default=0),
        (*own, source.scratch_bytes),
    )
    places, parameters = list[tuple[int, int]](), bytearray()
    for storage, name in sorted(linked.items()):
        parameters += bytes(-len(parameters) % _ALIGNMENT)
        places.append((storage, len(parameters)))
        parameters += np.ascontiguousarray(source.params[name]).tobytes()
    return _firmware(limits, board, registry_part("src", source), places, bytes(parameters))


def host_driven_aot_firmware(name: str, details: ModuleInterface, board: Board, *, allocates: bool = False) -> Firmware:
    """Return the parts of a project besides an AOT-compiled module, of which hosts create executors on the device.

    `allocates`: whether its code allocates the workspace in the runtime, as code by TVM does.

    Raises OptionError if the board's serial port has no driver, or the caller must load constants.
    """
    tensors = (*details.inputs, *details.outputs)
    workspace = 0
    if allocates or details.external_workspace:
        # all pools are aligned within one block
        workspace = details.memory.workspace_bytes + _PAGE * (1 + len(details.pools))
    limits = DeviceLimits(
        len(tensors),
        max((len(info.shape) for info in tensors), default=0),
        (*(info.nbytes + _ALIGNMENT for info in tensors), _EXECUTOR_BYTES + _TENSOR_BYTES * len(tensors), workspace),
        has_executor=True,
    )
    registry = system_library([described_module(name, details)]).encode()
    return _firmware(limits, board, {"src/registry.c": registry})


def _firmware(
    limits: DeviceLimits,
    board: Board,
    registry: dict[str, Data],
    places: Sequence[tuple[int, int]] = (),
    parameters: bytes = b"",
) -> Firmware:
    """Return the C runtime, its configuration, functions, parameters, and the driver of the serial port.

    `places`: the storage and the offset in `parameters` of each parameter.
    """
    if board.arch != "host" and board.uart is None:
        raise OptionError(
            f"board '{board.name}' cannot be driven by a host: its serial port has no driver",
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
    main = templates.joinpath("host_driven", "main.c").read_text(encoding="utf-8")
    return Firmware(main, made | registry, ("src", "crt/include", "crt_config"))


def linked_storages(graph: Graph, params: Mapping[str, Array]) -> dict[int, str]:
    """Return the parameters in the firmware by storage; each has its own storage."""
    owners: dict[int, int] = {}
    for entry in graph.entries:
        owners[entry.storage_id] = owners.get(entry.storage_id, 0) + 1
    return {
        graph.entries[entry].storage_id: name
        for name, entry in graph.arguments.items()
        if name in params and graph.entries[entry].nbytes and owners[graph.entries[entry].storage_id] == 1
    }


def crt_config(limits: DeviceLimits, board: Board) -> bytes:
    """Return the configuration of the C runtime."""
    # ticks per second of the firmware's counter; emulators take a nanosecond per instruction
    ticks_per_second = float(_NANOSECONDS if board.arch == "host" else board.clock_hz or 1)
    if board.emulator is not None:
        ticks_per_second = _NANOSECONDS / (board.emulator.instructions_per_tick or 1.0)
    pages = sum(-(-size // _PAGE) for size in (*limits.blocks, _SLACK_BYTES))
    pool_bytes = pages * (_PAGE + _PAGE_RECORD) + _PAGE * 2  # memory of one executor and the server
    if board.arch == "host":
        pool_bytes = max(_EXECUTORS_ON_HOST * pool_bytes, _HOST_POOL_BYTES)
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
        "PLATFORM_TICKS_PER_SECOND": f"{ticks_per_second!r}",
    }
    return render("host_driven/crt_config.h", defines=defines, pool_bytes=pool_bytes)

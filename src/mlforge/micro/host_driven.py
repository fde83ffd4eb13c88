"""Firmware that a host drives: operators, and a server that calls them, but no graph and no parameters."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from mlforge.codegen.packed import registry_file
from mlforge.crt import crt_files
from mlforge.errors import OptionError
from mlforge.micro.bare_metal import Firmware
from mlforge.micro.board import Board
from mlforge.runtime.graph_json import Graph
from mlforge.support.content import Data, to_bytes

PACKET_BYTES = 2048
"""The firmware's buffer: what a host sends at a time."""

_CRT_PARTS = (
    "include", "src/runtime/crt/common", "src/runtime/crt/microtvm_rpc_common",
    "src/runtime/crt/microtvm_rpc_server", "src/runtime/minrpc",
)  # fmt: skip
_ALLOCATOR = "src/runtime/crt/memory/page_allocator.c"
_REGISTRY_SYMBOL = b"TVMSystemLibEntryPoint"
_LICENCE = "SPDX-License-Identifier: 0BSD"
_PAGE_LOG2 = 6
_PAGE = 1 << _PAGE_LOG2
_PAGE_RECORD = 4
# the allocator's own words, times of single operators, and what is lost to alignment
_SLACK_BYTES = 1024
_DEFAULT_BAUD = 115200
_NANOSECONDS = 1_000_000_000
_SMALLEST_LIMITS = {"TVM_CRT_MAX_ARGS": 10, "TVM_CRT_MAX_NDIM": 6}


def refuses_host_driven(board: Board) -> str | None:
    """Return why no firmware of ours for a board can be driven by a host; None where it can."""
    if board.arch == "host" or board.uart is not None:
        return None
    return "there is no driver of ours for its serial port"


def host_driven_firmware(graph: Graph, code: Mapping[str, Data], scratch_bytes: int, board: Board) -> Firmware:
    """Return what a project takes beside the operators' code and the board's own files.

    Parameters
    ----------
    graph : Graph
        What the host will run: it says how much memory the device needs.
    code : mapping of str to Data
        The module's generated code.
    scratch_bytes : int
        The most that one operator allocates while it runs.
    board : Board

    Raises
    ------
    OptionError
        If there is no driver for the board's serial port.
    """
    reason = refuses_host_driven(board)
    if reason is not None:
        raise OptionError(
            f"firmware for the board '{board.name}' cannot be driven by a host: {reason}",
            next_step="Give the board a [uart] of a driver that there is, or choose another board",
        )
    templates = files("mlforge.micro").joinpath("templates")
    driver = f"common/uart_{board.uart.driver}.c" if board.uart is not None else "host/uart_stdio.c"
    crt = crt_files(*_CRT_PARTS)
    crt[_ALLOCATOR] = crt_files("src/runtime/crt/memory")[_ALLOCATOR]
    made: dict[str, Data] = {f"crt/{path}": data for path, data in crt.items()}
    made["crt_config/crt_config.h"] = crt_config(graph, scratch_bytes, board).encode()
    made["src/platform.c"] = templates.joinpath("host_driven", "platform.c").read_bytes()
    made["src/uart.h"] = templates.joinpath("common", "uart.h").read_bytes()
    made["src/uart.c"] = templates.joinpath(driver).read_bytes()
    if board.uart is not None:
        made["src/uart_config.h"] = _uart_config(board).encode()
    if not any(_REGISTRY_SYMBOL in to_bytes(data) for path, data in code.items() if path.endswith(".c")):
        made["src/registry.c"] = registry_file(graph.functions, _LICENCE).encode()
    main = templates.joinpath("host_driven", "main.c").read_text(encoding="utf-8")
    return Firmware(main, made, ("src", "crt/include", "crt_config"))


def crt_config(graph: Graph, scratch_bytes: int, board: Board) -> str:
    """Return the limits of the C runtime for a graph's operators."""
    limits = {
        "TVM_CRT_MAX_ARGS": max((len(node.inputs) + len(node.outputs) for node in graph.nodes), default=0),
        "TVM_CRT_MAX_NDIM": max((len(entry.shape) for entry in graph.entries), default=0),
    }
    defines = {
        **{name: max(value, _SMALLEST_LIMITS[name]) for name, value in limits.items()},
        "TVM_CRT_GLOBAL_FUNC_REGISTRY_SIZE_BYTES": 512,
        "TVM_CRT_MAX_REGISTERED_MODULES": 2,
        "TVM_CRT_MAX_PACKET_SIZE_BYTES": PACKET_BYTES,
        "TVM_CRT_STORAGE_ALIGNMENT_BYTES": 16,
        "TVM_CRT_RPC_OWN_MEMORY_ONLY": 1,
        "PLATFORM_PAGE_LOG2": _PAGE_LOG2,
        "PLATFORM_TICKS_PER_SECOND": f"{ticks_per_second(board)!r}",
    }
    return "\n".join(
        [
            f"/* Limits of the C runtime for one model. {_LICENCE} */",
            "#ifndef TVM_RUNTIME_CRT_CONFIG_H_",
            "#define TVM_RUNTIME_CRT_CONFIG_H_",
            "",
            *(f"#define {name} {value}" for name, value in defines.items()),
            "/* What hosts can allocate: here, what the graph takes. */",
            "#ifndef PLATFORM_POOL_BYTES",
            f"#define PLATFORM_POOL_BYTES {pool_bytes(graph, scratch_bytes, board)}",
            "#endif",
            "",
            "#endif /* TVM_RUNTIME_CRT_CONFIG_H_ */",
            "",
        ]
    )


def pool_bytes(graph: Graph, scratch_bytes: int, board: Board) -> int:
    """Return the memory that a graph takes on a device: its blocks, one operator's scratch, and the server's needs."""
    # in front of each block stand three words and a device, and the block is aligned to a page
    header = 3 * (8 if board.arch == "host" else 4) + 8
    blocks = [header + _PAGE - 1 + size for size in graph.storage_bytes.values()]
    pages = sum(-(-size // _PAGE) for size in (*blocks, scratch_bytes, _SLACK_BYTES))
    return pages * (_PAGE + _PAGE_RECORD) + _PAGE * 2


def ticks_per_second(board: Board) -> float:
    """Return how fast the counter of a board's firmware counts; emulators take a nanosecond for an instruction."""
    if board.emulator is not None:
        return _NANOSECONDS / (board.emulator.instructions_per_tick or 1.0)
    return float(_NANOSECONDS if board.arch == "host" else board.clock_hz or 1)


def _uart_config(board: Board) -> str:
    assert board.uart is not None
    baud = board.serial.baud if board.serial is not None else _DEFAULT_BAUD
    return "\n".join(
        [
            f"/* The serial port of {board.name}. {_LICENCE} */",
            "#ifndef UART_CONFIG_H_",
            "#define UART_CONFIG_H_",
            f"#define UART_BASE 0x{board.uart.base:08x}U",
            f"#define UART_CLOCK_HZ {board.clock_hz or 0}U",
            f"#define UART_BAUD {baud}U",
            "#endif /* UART_CONFIG_H_ */",
            "",
        ]
    )

"""The C runtime's readers of graphs, parameter files and host requests under libFuzzer and sanitizers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.crt import crt_files
from mlfc.micro.rpc import minrpc
from mlfc.micro.rpc.session import frame
from mlfc.runtime import cpu
from mlfc.runtime.tensor.c_abi import data_type
from mlfc.support.params import save_params

HERE = Path(__file__).resolve().parent
_EXECUTOR = ("crt/common", "crt/graph_executor")
_SERVER = (
    *_EXECUTOR, "crt/graph_executor_module", "crt/aot_executor", "crt/aot_executor_module", "crt/microtvm_rpc_common",
    "crt/microtvm_rpc_server",
)  # fmt: skip
_PARTS = {"crt_graph_json": _EXECUTOR, "crt_params": _EXECUTOR, "crt_rpc_server": _SERVER}
TARGETS = tuple(_PARTS)
MAX_LENGTH = 16384
_COMPILER = "clang"
# by default hosts may access all memory of a device, which sanitizers would report
_FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-O1", "-DTVM_CRT_RPC_OWN_MEMORY_ONLY=1")
_SANITIZERS = ("-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")
_LIMITS = ("-rss_limit_mb=256", "-timeout=10", f"-max_len={MAX_LENGTH}")
# on Linux a process's peak memory survives exec but not fork: without a shell in between, the fuzzer would count the
# memory of its parent
_FRESH = ("/bin/sh", "-c", '"$@"; exit $?', "sh")
# freed blocks are quarantined to find uses after free, within the memory limit
_ASAN = "quarantine_size_mb=16"


@dataclass(frozen=True)
class Outcome:
    """The result of one fuzzer run.

    Attributes
    ----------
    target : str
    failure : bytes or None
        The input that made the reader fail.
    log : str
        What the fuzzer printed.
    """

    target: str
    failure: bytes | None
    log: str


def available() -> bool:
    """Return whether a compiler for the harnesses exists."""
    return shutil.which(_COMPILER) is not None


def seeds(target: str) -> dict[str, bytes]:
    """Return valid inputs of a target by name."""
    if target == "crt_graph_json":
        return {
            "indented": json.dumps(_graph(), indent=2).encode(),
            "compact": json.dumps(_graph(), separators=(",", ":")).encode(),
            "reversed": json.dumps(dict(reversed(_graph().items()))).encode(),
        }
    if target == "crt_rpc_server":
        return _sessions()
    arrays = {
        "p0": np.float32([1, 2]),
        "p1": np.arange(12, dtype=np.int8).reshape(3, 4),
        "p2": np.array(3, np.float32),
        "p3": np.array([4], np.int64),
        "p4": np.arange(5, dtype=np.uint8),
    }
    files = {"all": save_params(arrays), "none": save_params({})}
    files |= {name: save_params({name: array}) for name, array in arrays.items()}
    return {f"{name}-{first:02x}": bytes([first]) + data for name, data in files.items() for first in (0, 0x21, 0x48)}


def build(target: str, folder: Path) -> Path:
    """Compile a harness with the C runtime.

    Parameters
    ----------
    target : str
        Of TARGETS.
    folder : Path
        For the runtime's files, the program and its seeds.
    """
    for name, content in crt_files().items():
        path = folder / "runtime" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    corpus = folder / f"{target}_seeds"
    corpus.mkdir(exist_ok=True)
    for name, data in seeds(target).items():
        (corpus / name).write_bytes(data)
    program = folder / target
    sources = sorted(path for part in _PARTS[target] for path in _sources(folder, part))
    objects = [_object(folder, path) for path in (HERE / f"{target}.c", *sources)]
    subprocess.run([_COMPILER, *_SANITIZERS, "-o", str(program), *map(str, objects)], check=True)
    return program


def run(target: str, folder: Path, *, seconds: int = 0, inputs: int = -1) -> Outcome:
    """Run a harness built by `build`.

    Parameters
    ----------
    target : str
    folder : Path
        As given to `build`.
    seconds : int
        0: until `inputs` have been read.
    inputs : int
        The most inputs to read; -1: until the time is over. The same number gives the same inputs.
    """
    found = folder / f"{target}_found"
    corpus = folder / f"{target}_corpus"
    for path in (found, corpus):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
    ends = (f"-max_total_time={seconds}", f"-runs={inputs}", "-seed=1")
    command = [str(folder / target), *ends, *_LIMITS, f"-artifact_prefix={found}/"]
    if target == "crt_graph_json":
        (folder / "json.dict").write_text(_dictionary())
        command.append(f"-dict={folder / 'json.dict'}")
    result = subprocess.run(
        [*_FRESH, *command, str(corpus), str(folder / f"{target}_seeds")],
        capture_output=True,
        check=False,
        env={**os.environ, "ASAN_OPTIONS": _ASAN},
    )
    log = result.stderr.decode("utf-8", "replace")
    artifacts = sorted(found.iterdir())
    if result.returncode == 0:
        return Outcome(target, None, log)
    return Outcome(target, artifacts[0].read_bytes() if artifacts else b"", log)


@cache
def _object(folder: Path, source: Path) -> Path:
    """Compile a file once for all harnesses in a folder."""
    target = folder / "objects" / source.parent.name / f"{source.stem}.o"
    target.parent.mkdir(parents=True, exist_ok=True)
    includes = ("-I", str(folder / "runtime/include"), "-I", str(folder / "runtime/host"))
    command = [_COMPILER, *_FLAGS, *_SANITIZERS, *includes, "-c", "-o", str(target), str(source)]
    subprocess.run(command, check=True)
    return target


def _sources(folder: Path, part: str) -> list[Path]:
    return list((folder / "runtime/src/runtime" / part).glob("*.c"))


def _sessions() -> dict[str, bytes]:
    """Return every kind of host request, and a packet that starts a session."""
    here, add, address = cpu(), 0x80008000, 0x7000
    # the table of global functions has the number after the last possible module
    modules = re.search(rb"TVM_CRT_MAX_REGISTERED_MODULES (\d+)", crt_files("host")["host/crt_config.h"])
    assert modules is not None
    system_lib = (0x8000 | int(modules.group(1))) << 16 | 0x8000
    tensor = minrpc.RemoteTensor(address, (4,), (2, 32, 1), here)
    handle, module = minrpc.Handle(3, address), minrpc.Handle(minrpc.MODULE, 0x8000)
    arguments: dict[minrpc.PacketCode, list[Any]] = {
        minrpc.PacketCode.GET_GLOBAL: ["runtime.SystemLib"],
        minrpc.PacketCode.FREE_HANDLE: [minrpc.Handle(3, system_lib), minrpc.FUNCTION],
        minrpc.PacketCode.ALLOCATE: [here, 16, 64, data_type(np.dtype(np.float32))],
        minrpc.PacketCode.FREE: [here, handle],
        minrpc.PacketCode.SYNC: [here, handle],
        minrpc.PacketCode.COPY_AMONG: [tensor, tensor, handle],
    }
    packets = {code.name: minrpc.packet(code, minrpc.packed_args(values)) for code, values in arguments.items()}
    calls: dict[str, tuple[int, list[Any]]] = {
        "system_lib": (system_lib, []),
        "function": (system_lib + 1, [module, "add", 1]),
        "timer": (system_lib + 2, [module, "add", 1, 0, 1, 1, 0, 0, ""]),
        "packet_size": (system_lib + 3, []),
        "random": (system_lib + 4, [tensor]),
        "add": (add, [tensor, 1, 1.5, "text", b"bytes", None]),
    }
    for name, (function, values) in calls.items():
        body = function.to_bytes(8, "little") + minrpc.packed_args(values)
        packets[name] = minrpc.packet(minrpc.PacketCode.CALL, body)
    packets["copy_to"] = minrpc.copy_to(tensor, bytes(16))
    packets["copy_from"] = minrpc.copy_from(tensor, 16)
    executors = [
        (system_lib, []),
        # the graph executor's module is 0x8001, that of the AOT executor 0x8002
        (system_lib + 7, [_SMALL_GRAPH, module, 1, 0]),
        (0x80018001, ["x"]),
        (0x80018005, []),
        (0x80018002, [0]),
        (0x80018006, [save_params({"x": np.zeros(4, np.int8)})]),
        (system_lib + 5, [module, here, "default"]),
        (0x80028001, [0]),
        (0x80028006, [0]),
        (0x80028007, []),
        (0x80028002, [0]),
        (system_lib + 2, [None, "tvm.aot_executor.create", 1, 0, 3, 2, 0, 0, ""]),
        (0xFFFF8001, [module, here, "default"]),
    ]
    steps = [
        minrpc.packet(minrpc.PacketCode.CALL, function.to_bytes(8, "little") + minrpc.packed_args(values))
        for function, values in executors
    ]
    free = minrpc.packed_args([minrpc.Handle(3, 0x8001), minrpc.MODULE])
    steps.append(minrpc.packet(minrpc.PacketCode.FREE_HANDLE, free))
    # the harness prepends its own lengths
    bodies = {name: packet[8:] for name, packet in packets.items()}
    found = {name: b"\1" + bytes((len(body),)) + body for name, body in bodies.items()}
    found["all"] = b"\1" + b"".join(bytes((len(body),)) + body for body in bodies.values())
    found["executors"] = b"\1" + b"".join(bytes((len(packet) - 8,)) + packet[8:] for packet in steps)
    found["line"] = b"\0" + frame(b"\1\0\0\1") + frame(b"\1\7\x10" + packets["GET_GLOBAL"])
    return found


# a request of the harness has at most 255 bytes
_SMALL_GRAPH = (
    '{"nodes":[{"op":"null","name":"x"}],"arg_nodes":[0],"heads":[[0,0,0]],"node_row_ptr":[0,1],'
    '"attrs":{"dltype":["list_str",["int8"]],"shape":["list_shape",[[4]]],"storage_id":["list_int",[0]]}}'
)


def _graph() -> dict[str, object]:
    """Return a graph with every form of node that the C runtime reads."""

    def call(name: str, inputs: list[list[int]], outputs: int = 1, flatten: int = 0) -> dict[str, object]:
        counts = {"num_inputs": str(len(inputs)), "num_outputs": str(outputs), "flatten_data": str(flatten)}
        return {"op": "tvm_op", "name": f"{name}_1", "attrs": {"func_name": name, **counts}, "inputs": inputs}

    nodes: list[dict[str, object]] = [
        {"op": "null", "name": "p0", "inputs": []},
        {"op": "null", "name": "x", "inputs": []},
        call("add", [[0, 0, 0], [1, 0, 0]], outputs=2),
        call("__nop", [[2, 0, 0]]),
        call("__copy", [[3, 0, 0]]),
        call("add", [[4, 0, 0], [2, 1, 0]], flatten=1),
    ]
    return {
        "nodes": nodes,
        "arg_nodes": [0, 1],
        "heads": [[5, 0, 0], [2, 1, 0]],
        "attrs": {
            "dltype": ["list_str", ["float32", "int8", "float32", "bool", "float32", "float32", "int64"]],
            "shape": ["list_shape", [[], [2, 3], [4], [1, 1], [2, 2], [4], [3]]],
            "storage_id": ["list_int", [0, 1, 2, 3, 2, 4, 5]],
            "device_index": ["list_int", [1] * 7],
        },
        "node_row_ptr": [0, 1, 2, 4, 5, 6, 7],
    }


def _dictionary() -> str:
    """Return libFuzzer's dictionary of the words in graphs."""
    names = ("nodes", "arg_nodes", "heads", "attrs", "node_row_ptr", "op", "name", "inputs", "func_name", "num_inputs")
    names += ("num_outputs", "flatten_data", "dltype", "shape", "storage_id", "device_index", "null", "tvm_op", "__nop")
    words = [f'"{name}"' for name in (*names, "__copy", "add", "list_int", "uint8", "bool", "float32x4", "0", "1", "2")]
    words += ["[0,0,0]", "[1,0,0]", "[]", "{}", "18446744073709551616", "9223372036854775807", "4294967295", "\\\\"]
    return "".join('"' + word.replace('"', '\\"') + '"\n' for word in words)

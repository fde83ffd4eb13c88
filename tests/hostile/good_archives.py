"""Valid archives that the corpus corrupts: one compiled by mlfc, and a hand-written one in TVM's graph format."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.hostile.corpus import Files, encoded

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.tflite"


@cache
def compiled(executor: str = "aot") -> bytes:
    """Return the archive of a small model compiled by mlfc."""
    import mlfc

    module, params = mlfc.import_model(DIGITS)
    factory = mlfc.build(module, params=params, module_name="digits", executor=executor)
    with tempfile.TemporaryDirectory() as folder:
        return mlfc.export_model_library_format(factory, Path(folder) / "digits.tar").read_bytes()


def compiled_files(executor: str = "aot") -> Files:
    """Return the members of `compiled`."""
    return members_of(compiled(executor))


def members_of(data: bytes) -> Files:
    """Return the members of an archive by path."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {
            info.name.removeprefix("./"): tar.extractfile(info).read()  # type: ignore[union-attr]
            for info in tar
            if info.isreg()
        }


def compiled_metadata(executor: str = "aot") -> Any:
    """Return the metadata of `compiled`."""
    return json.loads(compiled_files(executor)["metadata.json"])


GRAPH: dict[str, Any] = {
    "nodes": [
        {"op": "null", "name": "x", "inputs": []},
        {"op": "null", "name": "p0", "inputs": []},
        {
            "op": "tvm_op",
            "name": "tvmgen_hand_add",
            "inputs": [[0, 0, 0], [1, 0, 0]],
            "attrs": {"func_name": "tvmgen_hand_add", "num_inputs": "2", "num_outputs": "1", "flatten_data": "0"},
        },
        {
            "op": "tvm_op",
            "name": "tvmgen_hand_negative",
            "inputs": [[2, 0, 0]],
            "attrs": {"func_name": "tvmgen_hand_negative", "num_inputs": "1", "num_outputs": "1", "flatten_data": "0"},
        },
        {
            "op": "tvm_op",
            "name": "tvmgen_hand_add_1",
            "inputs": [[3, 0, 0], [2, 0, 0]],
            "attrs": {"func_name": "tvmgen_hand_add", "num_inputs": "2", "num_outputs": "1", "flatten_data": "0"},
        },
    ],
    "arg_nodes": [0, 1],
    "heads": [[4, 0, 0]],
    "attrs": {
        "dltype": ["list_str", ["float32"] * 5],
        "shape": ["list_shape", [[1, 4], [4], [1, 4], [1, 4], [1, 4]]],
        "storage_id": ["list_int", [0, 1, 2, 3, 4]],
        "device_index": ["list_int", [1] * 5],
    },
    "node_row_ptr": [0, 1, 2, 3, 4, 5],
}

PARAMS_MAGIC = 0xF7E58D4F05049CB7
NDARRAY_MAGIC = 0xDD5E40F096B4A13F


def tensor(
    shape: tuple[int, ...],
    data: bytes,
    *,
    magic: int = NDARRAY_MAGIC,
    device: int = 1,
    ndim: int | None = None,
    dtype: tuple[int, int, int] = (2, 32, 1),
    nbytes: int | None = None,
) -> bytes:
    """Return the bytes of one tensor of a parameter file; its fields may be wrong."""
    head = struct.pack("<QQiiiBBH", magic, 0, device, 0, len(shape) if ndim is None else ndim, *dtype)
    return head + struct.pack(f"<{len(shape)}qq", *shape, len(data) if nbytes is None else nbytes) + data


def parameters(
    tensors: dict[bytes, bytes],
    *,
    magic: int = PARAMS_MAGIC,
    names: int | None = None,
    arrays: int | None = None,
    length: int | None = None,
) -> bytes:
    """Return the bytes of a parameter file; its counts and lengths may be wrong."""
    head = struct.pack("<QQQ", magic, 0, len(tensors) if names is None else names)
    listed = b"".join(struct.pack("<Q", len(name) if length is None else length) + name for name in tensors)
    count = struct.pack("<Q", len(tensors) if arrays is None else arrays)
    return head + listed + count + b"".join(tensors.values())


P0 = tensor((4,), struct.pack("<4f", 1, 2, 3, 4))

_SOURCE = b"""#include <stdint.h>
#include <tvm/runtime/c_runtime_api.h>
// int32_t tvmgen_hand_only_in_a_comment(void) { return 0; }
static const char text[] = "int32_t tvmgen_hand_only_in_a_string(void) { return 0; } \\" /*";
TVM_DLL int32_t tvmgen_hand_only_declared(TVMValue* args);
TVM_DLL int32_t tvmgen_hand_add(TVMValue* args, int* codes, int n, TVMValue* out, int* code, void* handle) {
  return 0;
}
TVM_DLL int32_t tvmgen_hand_negative(TVMValue* args, int* codes, int n, TVMValue* out, int* code, void* handle) {
  return 0;
}
"""
_RELAY = b"""def @main(%x: Tensor[(1, 4), float32], %p: Tensor[(4), float32]) {
  %0 = add(%x, %p);
  %1 = negative(%0);
  add(%1, %0)
}
"""


def graph_metadata() -> dict[str, Any]:
    """Return the metadata of `graph_files`."""
    sizes = [("x", 0), ("p0", 1), (None, 2), (None, 3), (None, 4)]
    sids = [{"storage_id": sid, "size_bytes": 16, **({"input_binding": name} if name else {})} for name, sid in sizes]
    main = {
        "constants_size_bytes": 16,
        "device": 1,
        "inputs": {"x": {"dtype": "float32", "size": 16}},
        "io_size_bytes": 32,
        "outputs": {"output": {"dtype": "float32", "size": 16}},
        "workspace_size_bytes": 32,
    }
    functions = [
        {"function_name": name, "workspace": [{"device": 1, "workspace_size_bytes": 0}]}
        for name in ("tvmgen_hand_add", "tvmgen_hand_negative")
    ]
    module = {
        "model_name": "hand",
        "export_datetime": "2023-11-14 22:13:20Z",
        "executors": ["graph"],
        "style": "full-model",
        "target": ["c -keys=cpu "],
        "memory": {"sids": sids, "functions": {"main": [main], "operator_functions": functions}},
    }
    return {"version": 7, "modules": {"hand": module}}


def graph_files(
    *, graph: bytes | None = None, params: bytes | None = None, metadata: Any = None, **others: bytes
) -> Files:
    """Return a TVM graph executor archive, in which the arguments replace the valid files."""
    return {
        "metadata.json": encoded(graph_metadata() if metadata is None else metadata),
        "codegen/host/src/hand_lib0.c": others.get("source", _SOURCE),
        "executor-config/graph/hand.graph": encoded(GRAPH) if graph is None else graph,
        "parameters/hand.params": parameters({b"p0": P0}) if params is None else params,
        "src/hand.relay": others.get("relay", _RELAY),
    }

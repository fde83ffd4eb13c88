"""A small hand-written archive, for which the expected output of `inspect` and `diff` is known."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HEADER_PATH = "codegen/host/include/tvmgen_net.h"
CODE_PATH = "codegen/host/src/net_lib0.c"
HEADER = """\
#ifndef TVMGEN_NET_H_
#define TVMGEN_NET_H_
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
/* sizes { in bytes; } */
#define TVMGEN_NET_IMAGE_SIZE 64
#define TVMGEN_NET_MASK_SIZE 16
#define TVMGEN_NET_SCORES_SIZE 16
struct tvmgen_net_inputs {
  void *image; // 4 x 16 int8; read
  void *mask;
};
struct tvmgen_net_outputs {
  void* scores;
};
struct tvmgen_net_workspace_pools {
  void *global_workspace;
};
int32_t tvmgen_net_run(struct tvmgen_net_inputs *inputs, struct tvmgen_net_outputs *outputs,
                       struct tvmgen_net_workspace_pools *workspace_pools);
#define TVMGEN_NET_WORKSPACE_SIZE 224
#define TVMGEN_NET_GLOBAL_WORKSPACE_WORKSPACE_POOL_SIZE 224
#ifdef __cplusplus
}
#endif
#endif
"""
CODE = '#include "tvmgen_net.h"\nint32_t tvmgen_net_run(void) { return 0; }\n'


def document() -> dict[str, Any]:
    """Return the metadata: three operators, of which the second is in place and the first has the largest load."""
    tensors = [
        {"name": "image", "shape": [4, 16], "dtype": "int8", "scale": 0.5, "zero_point": 3},
        {"name": "mask", "shape": [16], "dtype": "bool", "scale": None, "zero_point": None},
    ]
    scores = [{"name": "scores", "shape": [1, 4], "dtype": "float32", "scale": None, "zero_point": None}]
    operators = [
        _operator("conv", ["conv_1", "relu_1"], 96, 4096, 288, 224),
        _operator("add", ["add_1"], 0, 0, 256, 128),
        _operator("dense", ["dense_1"], 0, 512, 656, 144),
    ]
    plan = [
        _block("conv_1/out", 128, 0, 0, 1, None),
        _block("(scratch)", 96, 128, 0, 0, None),
        _block("add_1/<out>", 128, 0, 1, 2, 0),
        _block("dense_1/sum", 16, 128, 2, 2, None),
    ]
    memory = {"workspace_bytes": 224, "workspace_lower_bound_bytes": 224, "constants_bytes": 608, "io_bytes": 96}
    details = {
        "version": "0.0",
        "executor": "aot",
        "entry": "tvmgen_net_run",
        "numerics": "litert",
        "optimize": "speed",
        "external_workspace": True,
        "inputs": tensors,
        "outputs": scores,
        "memory": memory,
        "operators": operators,
        "peak": {
            "function": "tvmgen_net_conv",
            "nodes": ["conv_1", "relu_1"],
            "live_bytes": 224,
            "tensors": [{"name": "conv_1/out", "bytes": 128}, {"name": "(scratch)", "bytes": 96}],
        },
        "plan": plan,
        "constants": [_constant("bias", 96, [24], "1"), _constant("weights", 512, [128], "2")],
        "module_tree": [{"type_key": "c", "files": [HEADER_PATH, CODE_PATH], "parent": None}],
        "build": {
            "target": "c",
            "executor": "aot",
            "optimize": "speed",
            "numerics": "litert",
            "external_workspace": True,
            "toolchain": None,
            "test_vectors": 0,
            "seed": 0,
        },
        "source": {"format": "onnx", "name": "net", "sha256": "0" * 64},
    }
    return {
        "version": 7,
        "modules": {"net": {**_module(memory), "mlfc": details}},
        "mlfc": {
            "version": "0.0",
            "shared": {"workspace_bytes": 0, "workspace_modules": [], "constants_bytes": 0, "functions": []},
        },
    }


def _module(memory: Mapping[str, int]) -> dict[str, Any]:
    main = {
        "device": 1,
        **{f"{key}_size_bytes": memory[f"{key}_bytes"] for key in ("workspace", "constants", "io")},
        "inputs": {"image": {"dtype": "int8", "size": 64}, "mask": {"dtype": "bool", "size": 16}},
        "outputs": {"scores": {"dtype": "float32", "size": 16}},
    }
    functions = [
        {"function_name": f"tvmgen_net_{name}", "workspace": [{"device": 1, "workspace_size_bytes": scratch}]}
        for name, scratch in (("conv", 96), ("add", 0), ("dense", 0))
    ]
    return {
        "model_name": "net",
        "export_datetime": "1970-01-01 00:00:00Z",
        "executors": ["aot"],
        "style": "full-model",
        "target": ["c"],
        "memory": {"functions": {"main": [main], "operator_functions": functions}},
    }


def _operator(name: str, nodes: list[str], scratch: int, macs: int, nbytes: int, live: int) -> dict[str, Any]:
    function = f"tvmgen_net_{name}"
    facts = {"workspace_bytes": scratch, "macs": macs, "bytes": nbytes, "live_bytes": live}
    return {"function": function, "nodes": nodes, **facts}


def _block(name: str, nbytes: int, offset: int, first: int, last: int, reuses: int | None) -> dict[str, Any]:
    return {"name": name, "bytes": nbytes, "offset": offset, "first": first, "last": last, "reuses": reuses}


def _constant(name: str, nbytes: int, shape: list[int], digit: str) -> dict[str, Any]:
    return {"name": name, "bytes": nbytes, "dtype": "float32", "shape": shape, "sha256": digit * 64}


def write_archive(
    path: Path, metadata: Mapping[str, Any] | None = None, files: Mapping[str, str] | None = None
) -> Path:
    """Write the archive with other metadata or other files and return its path; the list of files is generated."""
    whole = dict(metadata or document())
    contents = {HEADER_PATH: HEADER, CODE_PATH: CODE, **(files or {})}
    data = {name: text.encode() for name, text in contents.items()}
    if "mlfc" in whole:
        listed = {name: {"bytes": len(item), "sha256": hashlib.sha256(item).hexdigest()} for name, item in data.items()}
        whole["mlfc"] = {**whole["mlfc"], "files": listed}
    data["metadata.json"] = json.dumps(whole).encode()
    with tarfile.open(path, "w") as tar:
        for name, item in sorted(data.items()):
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(item)
            tar.addfile(info, io.BytesIO(item))
    return path

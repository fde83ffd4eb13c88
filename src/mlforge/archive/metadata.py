"""``metadata.json``: made from a compiled module."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import mlforge
from mlforge import memory
from mlforge.archive.layout import VERSION
from mlforge.relay.ir import Quantization
from mlforge.support.hashing import sha256_bytes
from mlforge.tir.ir import Value

if TYPE_CHECKING:
    from mlforge.compiler import Factory

_CPU = 1
_PEAK_TENSORS = 5


def archive_metadata(factories: Sequence[Factory], files: Mapping[str, bytes], timestamp: int) -> dict[str, Any]:
    """Return the whole document.

    Parameters
    ----------
    factories : sequence of Factory
    files : mapping of str to bytes
        Every other member of the archive.
    timestamp : int
        Seconds since 1970.
    """
    return {
        "version": VERSION,
        "modules": {factory.module_name: module_metadata(factory, timestamp) for factory in factories},
        "mlforge": {
            "version": mlforge.__version__,
            "files": {path: {"bytes": len(data), "sha256": sha256_bytes(data)} for path, data in sorted(files.items())},
        },
    }


def module_metadata(factory: Factory, timestamp: int) -> dict[str, Any]:
    """Return the object of one module."""
    details = module_details(factory)
    sizes = details["memory"]
    main = {
        "device": _CPU,
        "workspace_size_bytes": sizes["workspace_bytes"],
        "constants_size_bytes": sizes["constants_bytes"],
        "io_size_bytes": sizes["io_bytes"],
        "inputs": _sizes(factory.program.inputs),
        "outputs": _sizes(factory.program.outputs),
    }
    return {
        "model_name": factory.module_name,
        "export_datetime": utc(timestamp),
        "executors": [factory.executor],
        "style": "full-model",
        "target": [str(factory.target)],
        "memory": {"functions": {"main": [main], "operator_functions": _operator_functions(factory)}},
        "mlforge": details,
    }


def module_details(factory: Factory) -> dict[str, Any]:
    """Return the ``mlforge`` object of one module: what the format has no place for."""
    program, plan, code = factory.program, factory.plan, factory.code
    rows = memory.report(program, plan)
    peak = rows[plan.peak_call] if plan.peak_call is not None and plan.lower_bound else None
    names = code.function_names
    return {
        "version": mlforge.__version__,
        "entry": code.entry,
        "numerics": factory.options["numerics"],
        "optimize": factory.options["optimize"],
        "external_workspace": code.external_workspace,
        "inputs": [_tensor(value, factory.module.quantization) for value in program.inputs],
        "outputs": [_tensor(value, factory.module.quantization) for value in program.outputs],
        "memory": {
            "workspace_bytes": code.sizes.workspace,
            "workspace_lower_bound_bytes": plan.lower_bound,
            "constants_bytes": code.sizes.constants,
            "io_bytes": code.sizes.io,
        },
        "operators": [
            {
                "function": names[call.kernel.name],
                "nodes": list(call.nodes),
                "workspace_bytes": call.kernel.scratch_bytes,
                "macs": call.kernel.macs,
            }
            for call in program.calls
        ],
        "peak": peak
        and {
            "function": names[peak.function],
            "nodes": list(peak.nodes),
            "live_bytes": peak.live_bytes,
            "tensors": [{"name": name, "bytes": size} for name, size in peak.tensors[:_PEAK_TENSORS]],
        },
        "source": dict(factory.module.source),
    }


def to_bytes(metadata: Mapping[str, Any]) -> bytes:
    """Return the document as the format has it: indented by two, keys sorted."""
    return json.dumps(metadata, indent=2, sort_keys=True, allow_nan=False).encode()


def utc(timestamp: int) -> str:
    """Return the format's text of a time in seconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(timestamp))


def _tensor(value: Value, quantization: Mapping[str, Quantization]) -> dict[str, Any]:
    known = quantization.get(value.name)
    return {
        "name": value.name,
        "shape": list(value.shape),
        "dtype": value.dtype,
        "scale": known and known.scale,
        "zero_point": known and known.zero_point,
    }


def _sizes(values: Sequence[Value]) -> dict[str, Any]:
    return {value.name: {"dtype": value.dtype, "size": value.nbytes} for value in values}


def _operator_functions(factory: Factory) -> list[dict[str, Any]]:
    return [
        {
            "function_name": factory.code.function_names[kernel.name],
            "workspace": [{"device": _CPU, "workspace_size_bytes": kernel.scratch_bytes}],
        }
        for kernel in factory.program.kernels
    ]

"""Construction of ``metadata.json`` from compiled modules and the files of their archive."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mlfc.archive.details import full_module_info
from mlfc.archive.read.layout import VERSION
from mlfc.archive.write.options import ExportOptions
from mlfc.codegen import GeneratedCode, LinkedCode
from mlfc.factory import Factory
from mlfc.support.content import Data, nbytes_of, sha256_of_each
from mlfc.support.dim_estimates import most
from mlfc.support.module_info import (
    ArchiveInfo,
    AskedConstantPool,
    AskedPool,
    BuildInfo,
    FileInfo,
    ImportedModule,
    SharedInfo,
)  # fmt: skip
from mlfc.support.platforms import TYPE_CODES
from mlfc.support.version import __version__
from mlfc.tir.program import Value

# the C runtime's name in microTVM's tools
_RUNTIME = {"short_name": "tvm_standalone_crt", "url": "./runtime", "url_type": "mlf_path"}


def archive_metadata(
    factories: Sequence[Factory],
    files: Mapping[str, Data],
    trees: Sequence[Sequence[ImportedModule]],
    linked: LinkedCode,
    options: ExportOptions,
    timestamp: int,
) -> dict[str, Any]:
    """Return the whole document.

    `files` are all other members, `trees` the modules of each, the root first, `timestamp` is in seconds since 1970.
    """
    return {
        "version": VERSION,
        "modules": {
            factory.module_name: _module_metadata(factory, code, tree, options, timestamp)
            for factory, code, tree in zip(factories, linked.modules, trees, strict=True)
        },
        "mlfc": ArchiveInfo(
            version=__version__,
            files={
                path: FileInfo(nbytes_of(files[path]), digest)
                for path, digest in zip(files, sha256_of_each(tuple(files.values())), strict=True)
            },
            shared=SharedInfo(
                linked.workspace_bytes, tuple(linked.workspace_modules), linked.constants_bytes, tuple(linked.functions)
            ),
        ).to_json(),
    }


def _module_metadata(
    factory: Factory, code: GeneratedCode, tree: Sequence[ImportedModule], options: ExportOptions, timestamp: int
) -> dict[str, Any]:
    asked = factory.memory_options
    info = replace(
        full_module_info(factory, code),
        module_tree=tuple(tree),
        build=BuildInfo(
            target=str(factory.target),
            target_host=str(factory.target_host) if factory.target_host else None,
            executor=factory.executor,
            optimize=factory.optimize,
            numerics=factory.module.numerics,
            external_workspace=code.external_workspace,
            workspace_io=asked.workspace_io,
            pools=tuple(AskedPool(pool.name, pool.nbytes) for pool in asked.pools),
            constants=tuple(AskedConstantPool(pool.name, pool.nbytes, pool.external) for pool in asked.constants),
            ram=asked.ram,
            byoc=tuple(factory.module.byoc),
            specialize=tuple(dict(values) for values in factory.specialize),
            toolchain=None,  # the archive contains no objects from a C compiler
            test_vectors=options.test_vectors,
            seed=options.seed,
        ),
    )
    needed: dict[tuple[str, int], int] = {}
    for kernel in factory.program.kernels:
        key = code.function_names[kernel.name], TYPE_CODES[kernel.device or "cpu"]
        needed[key] = max(needed.get(key, 0), most(kernel.scratch_bytes) or 0)
    memory: dict[str, Any] = {
        "functions": {
            "main": _main(factory, code),
            "operator_functions": [
                {"function_name": name, "workspace": [{"device": device, "workspace_size_bytes": size}]}
                for (name, device), size in needed.items()
            ],
        }
    }
    if factory.graph_json:
        # one per id: TVM took shapes of entries whose index was the id
        memory["sids"] = [
            {"storage_id": number, "size_bytes": size, **({} if binding is None else {"input_binding": binding})}
            for number, size, binding in factory.storages
        ]
    document: dict[str, Any] = {
        "model_name": factory.module_name,
        "export_datetime": utc(timestamp),
        "executors": [factory.executor],
        "style": "full-model",
        "target": [str(target) for target in factory.targets],
        "memory": memory,
        "mlfc": info.to_json(),
    }
    if options.runtime:
        document["external_dependencies"] = [{**_RUNTIME, "version_spec": __version__}]
    return document


def _main(factory: Factory, code: GeneratedCode) -> list[dict[str, Any]]:
    """Return the memory needs of the model on each kind of device, the host first."""
    kind = None if code.plan is None or code.graph is None or code.device is None else code.device.kind
    entries = []
    for device in (None, kind) if kind is not None else (None,):
        inputs, outputs = factory.program.inputs, factory.program.outputs
        workspace, constants, io = code.sizes.workspace, code.sizes.constants, code.sizes.io
        if kind is not None and code.plan is not None and code.graph is not None:
            inputs, outputs = (tuple(item for item in each if item.root.device == device) for each in (inputs, outputs))
            # the host's scratch is not in storages
            workspace = code.plan.bytes_on(kind) if device else workspace - code.plan.bytes_on(kind)
            constants = sum(value.nbytes for value in code.graph.params.values() if value.device == device)
            io = sum(value.nbytes for value in (*inputs, *outputs))
        entry = {"device": TYPE_CODES[device or "cpu"], "workspace_size_bytes": workspace, "io_size_bytes": io}
        tensors = {"inputs": _sizes(inputs), "outputs": _sizes(outputs)}
        entries.append({**entry, "constants_size_bytes": constants, **tensors})
    return entries


def to_bytes(metadata: Mapping[str, Any]) -> bytes:
    """Return the document in canonical form: indented by two, keys sorted."""
    return json.dumps(metadata, indent=2, sort_keys=True, allow_nan=False).encode()


def utc(timestamp: int) -> str:
    """Return the format's text of a time in seconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(timestamp))


def _sizes(values: Sequence[Value]) -> dict[str, Any]:
    """Return dtype and bytes of tensors: the maximum for dynamic ones, or 0 if a dimension is unbounded."""
    return {value.name: {"dtype": value.dtype, "size": most(value.nbytes) or 0} for value in values}

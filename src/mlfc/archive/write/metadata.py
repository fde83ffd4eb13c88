"""``metadata.json``: made from compiled modules and the files of their archive."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mlfc.archive.details import full_module_info
from mlfc.archive.read.layout import VERSION
from mlfc.archive.write.options import ExportOptions
from mlfc.codegen import GeneratedCode, LinkedCode
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
    ToolchainInfo,
)  # fmt: skip
from mlfc.support.platforms import TYPE_CODES
from mlfc.support.version import __version__
from mlfc.tir.program import Value

if TYPE_CHECKING:
    from mlfc.factory import Factory

__all__ = ["ModuleFacts", "archive_metadata", "module_metadata", "to_bytes", "utc"]

# the name under which microTVM's tools know the C runtime
_RUNTIME = {"short_name": "tvm_standalone_crt", "url": "./runtime", "url_type": "mlf_path"}


@dataclass(frozen=True)
class ModuleFacts:
    """What metadata say of a module beside what its factory knows."""

    code: GeneratedCode  # as linked with the archive's other modules
    module_tree: Sequence[ImportedModule]  # the root first
    toolchain: Mapping[str, str] | None = None  # the C compiler, where objects are in the archive


def archive_metadata(
    factories: Sequence[Factory],
    files: Mapping[str, Data],
    facts: Mapping[str, ModuleFacts],
    linked: LinkedCode,
    options: ExportOptions,
    timestamp: int,
) -> dict[str, Any]:
    """Return the whole document; `files` are all other members, `timestamp` is in seconds since 1970."""
    return {
        "version": VERSION,
        "modules": {
            factory.module_name: module_metadata(factory, facts[factory.module_name], options, timestamp)
            for factory in factories
        },
        "mlfc": ArchiveInfo(
            version=__version__,
            files={
                path: FileInfo(nbytes_of(files[path]), digest)
                for path, digest in zip(files, sha256_of_each(tuple(files.values())), strict=True)
            },
            shared=SharedInfo(
                linked.workspace_bytes,
                tuple(linked.workspace_modules),
                linked.constants_bytes,
                tuple(linked.functions),
            ),
        ).to_json(),
    }


def module_metadata(factory: Factory, facts: ModuleFacts, options: ExportOptions, timestamp: int) -> dict[str, Any]:
    """Return the object of one module."""
    info = replace(
        full_module_info(factory, facts.code),
        module_tree=tuple(facts.module_tree),
        build=_build(factory, facts, options),
    )
    memory: dict[str, Any] = {
        "functions": {
            "main": _main(factory, facts.code),
            "operator_functions": _operator_functions(factory, facts.code),
        }
    }
    if factory.graph_json:
        # one an id: TVM took shapes of entries whose index was the id
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
    """Return what the model needs on each kind of device, that of the host first."""
    program, sizes = factory.program, code.sizes
    if code.device is None or code.plan is None or code.graph is None:
        host = (sizes.workspace, sizes.constants, sizes.io)
        return [_main_on(None, host, program.inputs, program.outputs)]
    entries = []
    for device in (None, code.device.kind):
        inputs, outputs = (
            [value for value in values if value.root.device == device] for values in (program.inputs, program.outputs)
        )
        constants = sum(value.nbytes for value in code.graph.params.values() if value.device == device)
        workspace = code.plan.bytes_on(device)
        if device is None:
            # the host takes scratch from elsewhere than storages
            workspace = sizes.workspace - code.plan.bytes_on(code.device.kind)
        io = sum(value.nbytes for value in (*inputs, *outputs))
        entries.append(_main_on(device, (workspace, constants, io), inputs, outputs))
    return entries


def _main_on(
    device: str | None, sizes: tuple[int, int, int], inputs: Sequence[Value], outputs: Sequence[Value]
) -> dict[str, Any]:
    workspace, constants, io = sizes
    return {
        "device": TYPE_CODES[device or "cpu"],
        "workspace_size_bytes": workspace,
        "constants_size_bytes": constants,
        "io_size_bytes": io,
        "inputs": _sizes(inputs),
        "outputs": _sizes(outputs),
    }


def to_bytes(metadata: Mapping[str, Any]) -> bytes:
    """Return the document as the format has it: indented by two, keys sorted."""
    return json.dumps(metadata, indent=2, sort_keys=True, allow_nan=False).encode()


def utc(timestamp: int) -> str:
    """Return the format's text of a time in seconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(timestamp))


def _build(factory: Factory, facts: ModuleFacts, options: ExportOptions) -> BuildInfo:
    """Return what compiling the archive's own source again takes to give the same module."""
    asked = factory.memory_options
    return BuildInfo(
        target=str(factory.target),
        target_host=str(factory.target_host) if factory.target_host else None,
        executor=factory.executor,
        optimize=factory.optimize,
        numerics=factory.module.numerics,
        external_workspace=facts.code.external_workspace,
        workspace_io=asked.workspace_io,
        pools=tuple(AskedPool(pool.name, pool.nbytes) for pool in asked.pools),
        constants=tuple(AskedConstantPool(pool.name, pool.nbytes, pool.external) for pool in asked.constants),
        ram=asked.ram,
        byoc=tuple(factory.module.byoc),
        specialize=tuple(dict(values) for values in factory.specialize),
        toolchain=ToolchainInfo(facts.toolchain["compiler"]) if facts.toolchain else None,
        test_vectors=options.test_vectors,
        seed=options.seed,
    )


def _sizes(values: Sequence[Value]) -> dict[str, Any]:
    """Return dtype and bytes of tensors: of open ones the most, or 0 where an extent has no bound."""
    return {value.name: {"dtype": value.dtype, "size": most(value.nbytes) or 0} for value in values}


def _operator_functions(factory: Factory, code: GeneratedCode) -> list[dict[str, Any]]:
    """Return each function once, with the largest workspace that any kernel of it needs."""
    needed: dict[tuple[str, int], int] = {}
    for kernel in factory.program.kernels:
        key = code.function_names[kernel.name], TYPE_CODES[kernel.device or "cpu"]
        needed[key] = max(needed.get(key, 0), most(kernel.scratch_bytes) or 0)
    return [
        {"function_name": name, "workspace": [{"device": device, "workspace_size_bytes": size}]}
        for (name, device), size in needed.items()
    ]

"""``metadata.json``: made from compiled modules and the files of their archive."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlforge
from mlforge.archive.details import module_details, storage_details
from mlforge.archive.layout import VERSION
from mlforge.archive.options import ExportOptions
from mlforge.codegen import GeneratedCode, LinkedCode
from mlforge.memory import Placement
from mlforge.support.content import Data, nbytes_of, sha256_of_each
from mlforge.tir.ir import Value

if TYPE_CHECKING:
    from mlforge.compiler import Factory

__all__ = ["ModuleFacts", "archive_metadata", "module_details", "module_metadata", "to_bytes", "utc"]

_CPU = 1
# the name under which microTVM's tools know the C runtime
_RUNTIME = {"short_name": "tvm_standalone_crt", "url": "./runtime", "url_type": "mlf_path"}


@dataclass(frozen=True)
class ModuleFacts:
    """What metadata say of a module beside what its factory knows.

    Attributes
    ----------
    code : GeneratedCode
        As linked with the archive's other modules.
    module_tree : sequence of mapping
        One entry a module of its import tree, the root first: ``type_key``, ``files``, ``parent``.
    toolchain : mapping or None
        The C compiler, where objects are in the archive.
    """

    code: GeneratedCode
    module_tree: Sequence[Mapping[str, Any]]
    toolchain: Mapping[str, str] | None = None


def archive_metadata(
    factories: Sequence[Factory],
    files: Mapping[str, Data],
    facts: Mapping[str, ModuleFacts],
    linked: LinkedCode,
    options: ExportOptions,
    timestamp: int,
) -> dict[str, Any]:
    """Return the whole document.

    Parameters
    ----------
    factories : sequence of Factory
    files : mapping of str to Data
        Every other member of the archive.
    facts : mapping of str to ModuleFacts
        By module name.
    linked : LinkedCode
        Says what several modules have in common.
    options : ExportOptions
    timestamp : int
        Seconds since 1970.
    """
    return {
        "version": VERSION,
        "modules": {
            factory.module_name: module_metadata(factory, facts[factory.module_name], options, timestamp)
            for factory in factories
        },
        "mlforge": {
            "version": mlforge.__version__,
            "shared": _shared(linked),
            "files": {
                path: {"bytes": nbytes_of(files[path]), "sha256": digest}
                for path, digest in zip(files, sha256_of_each(tuple(files.values())), strict=True)
            },
        },
    }


def _shared(linked: LinkedCode) -> dict[str, Any]:
    return {
        "workspace_bytes": linked.workspace_bytes,
        "workspace_modules": list(linked.workspace_modules),
        "constants_bytes": linked.constants_bytes,
        "functions": list(linked.functions),
    }


def module_metadata(factory: Factory, facts: ModuleFacts, options: ExportOptions, timestamp: int) -> dict[str, Any]:
    """Return the object of one module."""
    details = module_details(factory, facts.code)
    sizes = details["memory"]
    main = {
        "device": _CPU,
        "workspace_size_bytes": sizes["workspace_bytes"],
        "constants_size_bytes": sizes["constants_bytes"],
        "io_size_bytes": sizes["io_bytes"],
        "inputs": _sizes(factory.program.inputs),
        "outputs": _sizes(factory.program.outputs),
    }
    details |= storage_details(factory)
    details["module_tree"] = [dict(entry) for entry in facts.module_tree]
    details["build"] = _build(factory, facts, options)
    memory: dict[str, Any] = {
        "functions": {"main": [main], "operator_functions": _operator_functions(factory, facts.code)}
    }
    if factory.graph_json:
        memory["sids"] = _storage_ids(factory)
    document: dict[str, Any] = {
        "model_name": factory.module_name,
        "export_datetime": utc(timestamp),
        "executors": [factory.executor],
        "style": "full-model",
        "target": [str(factory.target)],
        "memory": memory,
        "mlforge": details,
    }
    if options.runtime:
        document["external_dependencies"] = [{**_RUNTIME, "version_spec": mlforge.__version__}]
    return document


def to_bytes(metadata: Mapping[str, Any]) -> bytes:
    """Return the document as the format has it: indented by two, keys sorted."""
    return json.dumps(metadata, indent=2, sort_keys=True, allow_nan=False).encode()


def utc(timestamp: int) -> str:
    """Return the format's text of a time in seconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(timestamp))


def _build(factory: Factory, facts: ModuleFacts, options: ExportOptions) -> dict[str, Any]:
    """Return what compiling the archive's own source again takes to give the same module."""
    return {
        "target": str(factory.target),
        "executor": factory.executor,
        "optimize": factory.options["optimize"],
        "numerics": factory.options["numerics"],
        "external_workspace": facts.code.external_workspace,
        **_placement(factory.placement),
        "toolchain": facts.toolchain and dict(facts.toolchain),
        "test_vectors": options.test_vectors,
        "seed": options.seed,
    }


def _placement(placement: Placement) -> dict[str, Any]:
    """Return what was asked of where memory lies; nothing where nothing was."""
    asked: dict[str, Any] = {}
    if placement.workspace_io:
        asked["workspace_io"] = True
    if placement.pools:
        asked["pools"] = [{"name": pool.name, "bytes": pool.nbytes} for pool in placement.pools]
    if placement.constants:
        asked["constants"] = [
            {"name": pool.name, "bytes": pool.nbytes, "external": pool.external} for pool in placement.constants
        ]
    if placement.ram is not None:
        asked["ram"] = placement.ram
    return asked


def _sizes(values: Sequence[Value]) -> dict[str, Any]:
    return {value.name: {"dtype": value.dtype, "size": value.nbytes} for value in values}


def _operator_functions(factory: Factory, code: GeneratedCode) -> list[dict[str, Any]]:
    """Return each function once, with the largest workspace that any kernel of it needs."""
    needed: dict[str, int] = {}
    for kernel in factory.program.kernels:
        name = code.function_names[kernel.name]
        needed[name] = max(needed.get(name, 0), kernel.scratch_bytes)
    return [
        {"function_name": name, "workspace": [{"device": _CPU, "workspace_size_bytes": size}]}
        for name, size in needed.items()
    ]


def _storage_ids(factory: Factory) -> list[dict[str, Any]]:
    """Return the graph executor's blocks, one an id: TVM took shapes of entries whose index was the id."""
    return [
        {"storage_id": number, "size_bytes": size, **({} if binding is None else {"input_binding": binding})}
        for number, size, binding in factory.storages
    ]

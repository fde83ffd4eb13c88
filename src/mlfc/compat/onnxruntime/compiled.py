"""Models compiled for this processor as fast as possible, and kept in the cache of built libraries."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from mlfc.archive.loading import load
from mlfc.archive.read.load import load_factory
from mlfc.library.cache import find_entry
from mlfc.library.toolchain import processor_here
from mlfc.runtime.devices.device import Device
from mlfc.support.c_names import LEVEL_VARIABLE
from mlfc.support.garbage import collected_rarely
from mlfc.support.platforms import this_platform

# options whose values are part of the cache's key
_KEPT = frozenset(
    (
        "dynamic", "limit_factor", "module_name", "name", "numerics", "optimize", "parallel", "shapes", "signature",
        "state_init", "states", "values",
    )
)  # fmt: skip


def compiled(model: Any, device: Device, options: Mapping[str, Any]) -> Any:
    """Return a model compiled with options of `mlfc.compile`, from the cache if possible."""
    is_on_cpu = device.kind == "cpu"
    key = _key(model, options) if is_on_cpu and options.keys() <= _KEPT else None
    if key is not None:
        found = find_entry(key, this_platform().suffix)
        return _built(model, key, options) if found is None else load(found)
    from mlfc.compiled_model import compile as compile_model

    if is_on_cpu:
        return compile_model(model, **options)
    return load_factory(compile_model(model, **{"target": device.kind, **options}).factory, (device,))


@collected_rarely()
def _built(model: Any, key: str, options: Mapping[str, Any]) -> Any:
    """Compile a model with LLVM in this process, and link and cache it; without a linker, return it as it is."""
    from mlfc.codegen.llvm.objects import compiled_quickly
    from mlfc.compiler import build_module
    from mlfc.errors import ToolchainError
    from mlfc.frontend import import_for_run, model_name
    from mlfc.library.export import cached_library
    from mlfc.options import CompileOptions
    from mlfc.target.target import llvm_here, parse_target

    chosen = CompileOptions(**options)
    name = model_name(model)
    target = llvm_here(parse_target(chosen.target))
    chosen = replace(chosen, name=name, module_name=chosen.module_name or name, target=target)
    factory = build_module(*import_for_run(model, chosen), chosen)
    with compiled_quickly(), suppress(ToolchainError):
        return load(cached_library(factory.runtime, (), key))
    return load_factory(factory)


def _key(model: Any, options: Mapping[str, Any]) -> str | None:
    """Return the hash of a model, its options, the compiler and the processor; None for models without a file form."""
    is_path = isinstance(model, (str, os.PathLike))
    digest = hashlib.sha256()
    for part in (
        _compiler(),
        processor_here(),
        os.environ.get(LEVEL_VARIABLE, ""),
        Path(model).stem if is_path else "",
    ):
        digest.update(f"{part}\0".encode())
    try:
        digest.update(pickle.dumps(sorted(options.items())))
        for piece in _contents(model):
            digest.update(piece)
    except (OSError, TypeError, ValueError, AttributeError, pickle.PicklingError):  # the importers report what is wrong
        return None
    return digest.hexdigest()[:40]


@cache
def _compiler() -> str:
    """Return an identifier of this installation of mlfc: sizes and times of its files."""
    root = Path(__file__).parents[2]
    found = []
    for folder, _, names in os.walk(root):
        states = ((name, Path(folder, name).stat()) for name in sorted(names) if not name.endswith(".pyc"))
        found += [f"{folder}/{name} {state.st_size} {state.st_mtime_ns}" for name, state in states]
    return "\n".join(sorted(found))


def _contents(model: Any) -> Iterator[bytes]:
    """Yield the content of a model and of its files of external weights; raise TypeError for other objects."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        yield bytes(model)
    elif hasattr(model, "SerializeToString"):
        yield model.SerializeToString()
    elif isinstance(model, (str, os.PathLike)):
        content = Path(model).read_bytes()
        yield content
        if b"location" in content:  # a field of external weights
            import onnx

            tensors = onnx.external_data_helper._get_all_tensors(onnx.load_from_string(content))
            files = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
            for name in sorted(files):
                yield Path(model).with_name(name).read_bytes()
    else:
        raise TypeError

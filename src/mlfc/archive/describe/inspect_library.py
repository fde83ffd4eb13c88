"""Description of a library, read from its file without loading it or running its code."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlfc.archive.describe.inspect import described_vm, unknown_memory
from mlfc.errors import ArchiveError, UnsupportedError
from mlfc.library.toolchain import OBJECT_SUFFIX
from mlfc.objfile.elf import section_sizes
from mlfc.objfile.exports import Export, exports
from mlfc.objfile.head import ARCHIVE, HEAD, OBJECT, read_head, static_members
from mlfc.runtime.executors.vm.vm_module import KIND
from mlfc.runtime.libraries.library_file import DESCRIPTION_SYMBOL, VERSION_SYMBOL, read_description
from mlfc.runtime.modules.blob import SYMBOLS, parse_tree
from mlfc.support.c_names import LEVEL_SECTION
from mlfc.support.content import sha256_stream
from mlfc.support.executable import decode, vm_info
from mlfc.support.former_name import current
from mlfc.support.module_info import ModuleInterface
from mlfc.support.plain_file import open_plain
from mlfc.support.platforms import Platform
from mlfc.support.records import titled
from mlfc.support.tar import open_tar
from mlfc.target.features import LEVELS

SHARED, STATIC, SINGLE, TAR = "shared library", "static library", "object", "tar of objects"
_MAX_DESCRIPTION = 64 << 20
_FFI = "__tvm_ffi_"
_FFI_OWN = "__tvm_ffi__"
_VERSION_BYTES = 4
_KEPT = ("executor", "entry", "inputs", "outputs", "states", "memory", "levels")


def inspect_library(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describe a library of code for any machine.

    The path is a shared or static library, an object, or a tar of objects. Returns ``library``: ``form``,
    ``machine``, ``interface`` (the version of mlfc's), ``functions`` by calling convention, and ``trees`` by generation
    of the blob: a list of ``type_key``, ``bytes`` and ``imports``, the root first. ``modules``: mlfc's description of
    each module by name, and ``vm``, as for archives. ``files``: the library. ``levels``, in ``library``: bytes of
    kernels for each processor level by name, for ELF libraries with several.

    Raises ArchiveError if it is not a library, or its content breaks its format.
    Raises UnsupportedError for an unsupported format.
    """
    place = str(path)
    with open_plain(path) as file, _mapped(file.fileno(), place) as view:
        try:
            form, codes = _codes(path, view)
            heads = [read_head(code[:HEAD]) for code in codes]
            if not heads or heads[0] is None or not heads[0].arches:
                raise ArchiveError("it contains no object file", place=place, next_step="Export it again")
            machine = str(Platform(heads[0].arches[0], heads[0].system))
            symbols = {current(item.name): item for code in codes for item in exports(code)}
            tables = [(abi, name) for abi, name in SYMBOLS.items() if name in symbols]
            blobs = {abi: parse_tree(symbols[name].content, abi, place=place) for abi, name in tables}
            described = _description(symbols, place)
            dynamic = [
                decode(bytes(stored.data), place=place)
                for tree in blobs.values()
                for stored in tree.modules
                if stored.kind == KIND and stored.data is not None
            ]
            machines = {executable.name: described_vm(executable, vm_info(executable)) for executable in dynamic}
            levels = _levels(codes)
            version = symbols[VERSION_SYMBOL].content[:_VERSION_BYTES] if VERSION_SYMBOL in symbols else b""
        except ValueError as error:
            cause = f"the library is damaged: {error}"
            raise ArchiveError(cause, place=place, next_step="Export it again") from error
        except UnsupportedError as error:
            error.place = place
            raise
        trees: dict[str, list[dict[str, Any]]] = {abi: [] for abi in blobs}
        for abi, tree in blobs.items():
            for stored, children in zip(tree.modules, tree.children, strict=True):
                size = None if stored.data is None else len(stored.data)
                trees[abi].append({"type_key": stored.kind, "bytes": size, "imports": list(children)})
        return {
            "library": {
                "form": form,
                "machine": machine,
                "interface": int.from_bytes(version, "little") or None,
                "functions": _functions(symbols, described),
                "trees": trees,
                "levels": levels,
            },
            "modules": {name: _module(item, machines.get(name)) for name, item in described.items()},
            "files": [{"path": Path(path).name, "bytes": len(view), "sha256": sha256_stream(file)}],
        }


@contextmanager
def _mapped(descriptor: int, place: str) -> Iterator[memoryview]:
    try:
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ArchiveError(f"cannot be read: {error}", place=place) from error
    yield memoryview(mapped)


def _codes(path: str | os.PathLike[str], view: memoryview) -> tuple[str, list[memoryview]]:
    """Return a file's library form, and the machine code files in it."""
    head = read_head(view[:HEAD])
    if head is None:
        with open_tar(path) as tar:
            return TAR, [tar.view(name) for name in tar.sizes if name.endswith(OBJECT_SUFFIX)]
    if head.kind == ARCHIVE:
        return STATIC, list(static_members(view))
    return (SINGLE if head.kind == OBJECT else SHARED), [view]


def _module(interface: ModuleInterface, vm: dict[str, Any] | None) -> dict[str, Any]:
    told = interface.to_json()
    found = {**{key: told.get(key, []) for key in _KEPT}, "vm": vm, "facts": dict(titled(interface))}
    if vm is not None:
        if interface.vm is not None and interface.vm.input_bytes is not None:
            vm["input_bytes"] = interface.vm.input_bytes  # missing in the description
        found["memory"] = {**found["memory"], **unknown_memory(found["memory"], vm["arena_bytes"])}
    return found


def _description(symbols: Mapping[str, Export], place: str) -> Mapping[str, ModuleInterface]:
    if DESCRIPTION_SYMBOL not in symbols:
        return {}
    text, end, _ = bytes(symbols[DESCRIPTION_SYMBOL].content[:_MAX_DESCRIPTION]).partition(b"\0")
    if not end:
        raise ValueError(f"its {DESCRIPTION_SYMBOL} does not end within {_MAX_DESCRIPTION:,} bytes")
    return read_description(text, place)


def _levels(codes: Sequence[memoryview]) -> dict[str, int]:
    """Return the bytes of the kernels for each processor level by name, the lowest first."""
    found: dict[str, int] = {}
    for code in codes:
        if bytes(code[:4]) == b"\x7fELF":
            for name, nbytes in section_sizes(code).items():
                if name.startswith(LEVEL_SECTION):
                    level = name.removeprefix(LEVEL_SECTION)
                    found[level] = found.get(level, 0) + nbytes
    known = [level.name for arch in LEVELS for level in LEVELS.get(arch).levels]
    places = {name: place for place, name in enumerate(known)}
    return dict(sorted(found.items(), key=lambda item: (places.get(item[0], len(known)), item[0])))


def _functions(symbols: Mapping[str, Export], described: Mapping[str, ModuleInterface]) -> dict[str, Sequence[str]]:
    """Return the names that callers of each convention use; plain C functions are those of the header."""
    names = sorted(name for name, item in symbols.items() if item.is_function)
    classic = [
        name
        for name in names
        for module, item in described.items()
        if (name == f"tvmgen_{module}___tvm_main__")
        or (item.executor == "graph" and name.startswith(f"tvmgen_{module}_"))
    ]
    entries = {item.entry for item in described.values()}
    return {
        "c": [name for name in names if name in entries],
        "classic": list(dict.fromkeys(classic)),
        "ffi": [name.removeprefix(_FFI) for name in names if name.startswith(_FFI) and not name.startswith(_FFI_OWN)],
    }

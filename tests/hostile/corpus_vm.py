"""Archives with bytecode that is damaged, of another module, or not what the metadata say of it."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.hostile.corpus import Files, add, packed, set_at, with_manifest
from tests.hostile.good_archives import members_of

PATH = "executor-config/vm/net.vm"
_NET = "modules/net"
_VM = f"{_NET}/mlfc/vm"
_HEADER = 24
_FUNCTIONS = 7  # the section, among those whose size the header has


@cache
def vm_files() -> Files:
    """Return the members of the archive of a model whose first extent may be 1 to 4."""
    import mlfc
    from tests.vm_models import two_layers

    module, params = two_layers(4)
    factory = mlfc.build(module, params=params, module_name="net", executor="vm")
    with tempfile.TemporaryDirectory() as folder:
        return members_of(mlfc.export_model_library_format(factory, Path(folder) / "net.tar").read_bytes())


def _archive(data: bytes | None, document: Any = None) -> bytes:
    """Return the archive with other bytecode, or none, whose list of files is right."""
    files = {name: content for name, content in vm_files().items() if name != PATH}
    if data is not None:
        files[PATH] = data
    return packed(with_manifest(files, document or json.loads(vm_files()["metadata.json"])))


def _changed(**changes: Any) -> Callable[[], bytes]:
    """Return sound bytecode that differs from the archive's."""

    def build() -> bytes:
        from mlfc.support.bytecode import decode, encode

        return _archive(encode(replace(decode(vm_files()[PATH]), **changes)))

    return build


def _patched(at: int, data: bytes) -> Callable[[], bytes]:
    return lambda: _archive(vm_files()[PATH][:at] + data + vm_files()[PATH][at + len(data) :])


def _told(path: str, value: Any) -> Callable[[], bytes]:
    return lambda: _archive(vm_files()[PATH], set_at(json.loads(vm_files()["metadata.json"]), path, value))


_SECTION = _HEADER + 8 * _FUNCTIONS
DAMAGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "vm_bytecode_missing": (lambda: _archive(None), r"net\.vm: the file is missing"),
    "vm_bytecode_empty": (lambda: _archive(b""), r"net\.vm"),
    "vm_bytecode_truncated": (lambda: _archive(vm_files()[PATH][:-16]), r"net\.vm"),
    "vm_bytecode_of_another_format": (lambda: _archive(b"\x7fELF" + bytes(4096)), r"net\.vm"),
    "vm_bytecode_of_another_version": (_patched(8, struct.pack("<I", 99)), r"net\.vm.*version"),
    "vm_bytecode_of_a_billion_functions": (_patched(_SECTION, struct.pack("<II", 2**30, 2**30)), r"net\.vm"),
    "vm_bytecode_whose_code_is_noise": (
        lambda: _archive(vm_files()[PATH][:-64] + b"\xff" * 56 + vm_files()[PATH][-8:]),
        r"net\.vm.*main",
    ),
    "vm_bytecode_of_another_module": (_changed(name="other"), "bytecode of the module 'other', not of 'net'"),
    "vm_bytecode_with_a_larger_arena": (_changed(arena_bytes=2**31), "2,147,483,648 bytes of arena"),
}
LIES: dict[str, tuple[str, Any, str]] = {
    "vm_lie_arena": (f"{_VM}/arena_bytes", None, "bytes of arena, the metadata say no bound"),
    "vm_lie_work_area": (f"{_VM}/work_bytes", 64, "bytes of work area, the metadata say 64"),
    "vm_lie_bytes_of_bytecode": (f"{_VM}/bytecode", 1, "bytes, the metadata say 1"),
    "vm_lie_least_extent": (f"{_VM}/symbols/0/low", 2, "open extents and their bounds"),
    "vm_lie_function": (f"{_NET}/mlfc/operators/0/function", "tvmgen_net_other", "tvmgen_net_other"),
}
REFUSED_LIES: dict[str, tuple[str, Any, str]] = {
    "vm_lie_bound_of_a_symbol": (f"{_VM}/symbols/0/high", 2**53 - 1, "do not give the size"),
    "vm_lie_shape": (f"{_NET}/mlfc/inputs/0/shape", [2, 8], "do not give the size"),
    "vm_lie_no_description": (_VM, None, "vm: expected object, got null"),
    "vm_lie_expression_of_a_megabyte": (f"{_NET}/mlfc/inputs/0/shape", ["n" * 2**20, 8], "long"),
}

for _name, (_build, _expected) in DAMAGED.items():
    add(_name, _expected, _build, refused=False)
for _name, (_path, _value, _expected) in LIES.items():
    add(_name, _expected, _told(_path, _value), refused=False)
for _name, (_path, _value, _expected) in REFUSED_LIES.items():
    add(_name, _expected, _told(_path, _value))

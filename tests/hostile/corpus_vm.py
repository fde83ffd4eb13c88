"""Archives with a dynamic model description that is damaged, of another module, or contradicts the metadata."""

from __future__ import annotations

import json
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


@cache
def vm_files() -> Files:
    """Return the members of the archive of a model whose first dimension is 1 to 4."""
    import mlfc
    from tests.vm_models import two_layers

    module, params = two_layers(4)
    factory = mlfc.build(module, params=params, module_name="net", executor="vm")
    with tempfile.TemporaryDirectory() as folder:
        return members_of(mlfc.export_model_library_format(factory, Path(folder) / "net.tar").read_bytes())


def _archive(data: bytes | None, document: Any = None) -> bytes:
    """Return the archive with `data` as its description, or without one, and a correct list of files."""
    files = {name: content for name, content in vm_files().items() if name != PATH}
    if data is not None:
        files[PATH] = data
    return packed(with_manifest(files, document or json.loads(vm_files()["metadata.json"])))


def _changed(**changes: Any) -> Callable[[], bytes]:
    """Return the archive with a valid description that differs from the original."""

    def build() -> bytes:
        from mlfc.support.executable import decode, encode

        return _archive(encode(replace(decode(vm_files()[PATH], PATH), **changes)))

    return build


def _edited(path: str, value: Any) -> Callable[[], bytes]:
    """Return the archive with one value of its description replaced."""
    return lambda: _archive(json.dumps(set_at(json.loads(vm_files()[PATH]), path, value)).encode())


def _told(path: str, value: Any) -> Callable[[], bytes]:
    return lambda: _archive(vm_files()[PATH], set_at(json.loads(vm_files()["metadata.json"]), path, value))


_OLD = b"MLFC-VM\n\x02" + bytes(300)
DAMAGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "vm_description_missing": (lambda: _archive(None), r"net\.vm: the file is missing"),
    "vm_description_empty": (lambda: _archive(b""), r"net\.vm: expected JSON"),
    "vm_description_truncated": (lambda: _archive(vm_files()[PATH][:-16]), r"net\.vm: expected JSON"),
    "vm_description_of_another_format": (lambda: _archive(b"\x7fELF" + bytes(4096)), r"net\.vm: expected JSON"),
    "vm_description_nested": (lambda: _archive(b"[" * 100_000), r"net\.vm: expected JSON"),
    "vm_description_of_long_numbers": (_edited("arena_bytes", 10**4000), r"net\.vm"),
    "vm_bytecode_of_an_earlier_version": (lambda: _archive(_OLD), r"net\.vm: .* bytecode of an earlier version"),
    "vm_description_of_no_bytes": (_edited("arena_bytes", -1), r"net\.vm.*arena_bytes"),
    "vm_description_of_nine_dimensions": (_edited("inputs/0/extents", [1] * 9), r"net\.vm.*extents"),
    "vm_description_of_an_unknown_dtype": (_edited("inputs/0/dtype", "int3"), r"net\.vm.*dtype"),
    "vm_description_of_an_unknown_symbol": (_edited("inputs/0/extents/0", "rows"), "unknown symbol 'rows'"),
    "vm_description_of_a_state_without_a_next": (
        _edited("states", [{"name": "h", "dtype": "int8", "extents": [4]}]),
        "expected 1 next states, got 0",
    ),
    "vm_description_of_half_a_sequence": (
        _edited("outputs/0/part", {"name": "bytes", "detail": "int8", "is_mixed": False}),
        "expected the parts of a sequence or optional",
    ),
    "vm_description_of_another_module": (_changed(name="other"), "describes module 'other'; expected 'net'"),
    "vm_description_with_a_larger_arena": (_changed(arena_bytes=2**31), "its arena is 2,147,483,648 bytes"),
}
LIES: dict[str, tuple[str, Any, str]] = {
    "vm_lie_arena": (f"{_VM}/arena_bytes", None, "bytes, but unbounded in the metadata"),
    "vm_lie_work_area": (f"{_VM}/work_bytes", 64, "but 64 bytes in the metadata"),
    "vm_lie_least_extent": (f"{_VM}/symbols/0/low", 2, "dynamic dimensions or their bounds"),
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

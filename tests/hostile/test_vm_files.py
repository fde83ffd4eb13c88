"""Damaged or malicious descriptions of dynamic models: one error with the location, at little cost."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlfc
from fuzz.python_readers import descriptions
from mlfc.archive.describe.inspect_library import inspect_library
from mlfc.errors import ArchiveError
from mlfc.runtime import VmModule
from mlfc.support.executable import MAX_BYTES, Executable, VmValue, decode, encode
from mlfc.support.module_info import SymbolInfo
from tests.counting import counted_calls
from tests.vm_models import two_layers

OLD = b"MLFC-VM\n" + struct.pack("<II", 2, 0) + bytes(500)
RECOMPILE = r"bytecode of an earlier version\. Compile the model again, .*mlfc compile OLD\.tar -o NEW\.tar"
_LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "rows", "int8", "\x00", "x" * 300])
)
_JSON = st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=4), inner))


def read(data: bytes) -> Executable | None:
    """Return the decoded file; None if it is rejected with the expected error."""
    try:
        return decode(data, "x.vm")
    except ArchiveError as error:
        said = str(error)
    assert said.startswith("x.vm")
    assert "Compile the model again" in said
    return None


def test_files_are_read_as_written() -> None:
    for data in descriptions():
        assert encode(decode(data, "x.vm")) == data
        for length in range(len(data) - 1):
            assert read(data[:length]) is None


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(st.data())
def test_parts_may_be_anything(data: Any) -> None:
    document = json.loads(data.draw(st.sampled_from(descriptions())))
    place, keys = document, []
    while isinstance(place, (dict, list)) and place:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        keys.append((place, key))
        place = place[key]
    holder, key = data.draw(st.sampled_from(keys))
    holder[key] = data.draw(_JSON)
    found = read(json.dumps(document).encode())
    if found is not None:
        assert decode(encode(found), "again") == found


@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(_JSON.map(lambda item: json.dumps(item).encode()) | st.binary(max_size=60))
def test_what_describes_no_model_is_refused(data: bytes) -> None:
    assert read(data) is None


VALUE = VmValue("x", "float32", ("n", 4))
GOOD = Executable("net", (VALUE,), (VALUE,), (SymbolInfo("n", 1, 8),))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "n" * 256}, "name"),
        ({"symbols": ()}, "'x': unknown symbol 'n'"),
        ({"symbols": (SymbolInfo("n", 1, 8),) * 2}, "symbols with distinct names"),
        ({"symbols": (SymbolInfo("n", 5, 4),)}, "symbol 'n': expected at least 5, got 4"),
        ({"symbols": (SymbolInfo("n", -1, 4),)}, "low"),
        ({"inputs": (replace(VALUE, dtype="int3"),)}, "dtype"),
        ({"inputs": (replace(VALUE, extents=(1,) * 9),)}, "extents"),
        ({"inputs": (replace(VALUE, extents=(-1,)),)}, "extents"),
        ({"inputs": (replace(VALUE, extents=(1 << 31,)),)}, "extents"),
        ({"states": (VALUE,), "next_states": ("y",)}, "state 'x': expected a static shape"),
        ({"next_states": ("y",)}, "expected 0 next states, got 1"),
        ({"arena_bytes": -1}, "arena_bytes"),
    ],
)
def test_faults_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchiveError, match=message):
        decode(encode(replace(GOOD, **changes)), "x.vm")


def test_many_parts_cost_no_more_than_reading_them() -> None:
    count = 1000
    names = [f"n{number}" for number in range(count)]
    values = tuple(replace(VALUE, name=f"x{number}", extents=tuple(names[-8:])) for number in range(count))
    many = replace(GOOD, inputs=values, outputs=(), symbols=tuple(SymbolInfo(name, 0, None) for name in names))
    with counted_calls() as calls:
        assert decode(encode(many), "x.vm") == many
    assert calls.number < 500 * count
    with pytest.raises(ArchiveError, match="expected at most 67,108,864 bytes"):
        decode(b" " * (MAX_BYTES + 1), "x.vm")
    with pytest.raises(ArchiveError, match="expected JSON"):
        decode(b"[" * 200_000, "x.vm")


def test_bytecode_of_earlier_versions_is_refused_in_modules(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=RECOMPILE):
        mlfc.runtime.load_from_bytes("mlfc.vm", OLD)
    with pytest.raises(ArchiveError, match=RECOMPILE):
        VmModule(OLD)
    # a library without a digest whose description is replaced by bytecode of the same size
    module, params = two_layers(4)
    path = mlfc.build(module, "llvm", params, executor="vm").export_library(tmp_path / "old.so", abi=["classic"])
    data = path.read_bytes()
    description = next(item.save_to_bytes() for item in mlfc.load_module(path).walk() if isinstance(item, VmModule))
    assert data.count(description) == 1
    old = tmp_path / "bytecode.so"
    old.write_bytes(data.replace(description, OLD[:8] + bytes(len(description) - 8)))
    for read_library in (mlfc.load_module, mlfc.load, inspect_library):
        with pytest.raises(ArchiveError, match=RECOMPILE):
            read_library(old)

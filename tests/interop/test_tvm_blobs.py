"""Blobs written by TVM: their module trees, and identical bytes when mlfc writes them, or trees like TVM's."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from mlfc.errors import ArchiveError
from mlfc.library.module_tree import pack
from mlfc.runtime import FactoryModule, Module
from mlfc.runtime.modules.blob import parse_tree, read_tree
from mlfc.runtime.modules.tvm_kinds import ConstLoader
from mlfc.support.content import to_bytes

ROWS = {
    "llvm_factory": (["GraphExecutorFactory", "_lib"], ((1,), ())),
    "opencl_factory": (["GraphExecutorFactory", "_lib", "opencl"], ((1,), (2,), ())),
    "opencl_lib": (["_lib", "opencl"], ((1,), ())),
}


# Trees as their modules in order (c: code) and the imports of each, with the start of the SHA-256 of the blob that TVM
# 0.27.0 packs from them (`runtime.ModulePackImportsToTensor`); all generations use its numbering.
PACKED = (
    (".c.c.", "31 2 - 4 -", "f6646d1ea961ebe1"),
    ("...c", "31 23 - -", "8f15fe1286859016"),
    ("..c.", "231 23 - -", "4e2a2030ee1f1b3b"),
    (".c..c", "342 3 34 4 -", "9c30085722443c69"),
    ("c...", "231 - - -", "1754e8d1918d6212"),
    ("c...", "132 - - -", "e7fb3c9fc69a3167"),
    (".c.c.", "234 3 3 - -", "86d72415a25549f6"),
    ("c...", "312 - 3 -", "8b1fe5cab3a0d7e0"),
    ("....c", "142 - - - -", "41ace2e9c33fd1df"),
    ("....c", "341 324 3 4 -", "2f86258380184d95"),
    ("..c....", "3 - 43 465 - 6 -", "e36157cf8462f7a5"),
    ("..cc..", "2 5 354 54 5 -", "3ca6f714cdaade7a"),
)


class Code(Module):
    """A stand-in for the library around a blob."""

    type_key = "c"

    @property
    def is_dso_exportable(self) -> bool:
        return True


@pytest.fixture(params=ROWS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def data(name: str, shared: Path) -> bytes:
    return (shared / "fixtures" / "tvm-0.14" / f"{name}.mblob.bin").read_bytes()


def test_the_tree_is_read_as_tvm_wrote_it(name: str, data: bytes) -> None:
    tree = parse_tree(data, "classic")
    assert ([module.kind for module in tree.modules], tree.children) == ROWS[name]
    root = read_tree(data, Code(), "classic")
    kinds = [kind.replace("_lib", "c") for kind in ROWS[name][0]]
    assert [module.type_key for module in root.walk()] == kinds


@pytest.mark.parametrize("abi", ["classic", "transitional"])
def test_it_becomes_the_same_bytes_again(abi: str, data: bytes) -> None:
    packed = pack(read_tree(data, Code(), abi), abi)
    assert to_bytes(packed.content) == data
    assert len(packed.code) == 1


def test_the_modules_survive_the_newer_form(name: str, data: bytes) -> None:
    newer = to_bytes(pack(read_tree(data, Code(), "classic"), "ffi").content)
    again = read_tree(newer, Code(), "ffi")
    assert to_bytes(pack(again, "classic").content) == data


@pytest.mark.parametrize("name", ["llvm_factory", "opencl_factory"])
def test_the_graph_and_parameters_are_whole(name: str, data: bytes) -> None:
    root = read_tree(data, Code(), "classic")
    assert isinstance(root, FactoryModule)
    graph = json.loads(root["get_graph_json"]())
    names = [graph["nodes"][index]["name"] for index in graph["arg_nodes"]]
    assert root.name == "default"
    assert set(root.params) < set(names)
    shapes = dict(zip(names, (graph["attrs"]["shape"][1][index] for index in graph["arg_nodes"]), strict=True))
    for param, array in root.params.items():
        assert list(array.shape) == shapes[param]
        assert array.dtype == np.float32
        assert np.isfinite(array).all()


def test_every_truncation_is_refused(data: bytes) -> None:
    for length in (*range(0, 200), *range(200, len(data), 97)):
        with pytest.raises(ArchiveError, match="byte"):
            read_tree(data[:length], Code(), "classic")
        # with a matching size, the content itself ends too early
        if length >= 8:
            with pytest.raises(ArchiveError, match="byte"):
                read_tree((length - 8).to_bytes(8, "little") + data[8:length], Code(), "classic")


def constants(index: int) -> Module:
    """Return a module of a kind that every build of TVM loads."""
    values = np.arange(index % 3 + 1, dtype=np.float32)
    return ConstLoader({f"w{index}": values}, {f"f{index}": [f"w{index}"]})


@pytest.mark.parametrize(("kinds", "imports", "digest"), PACKED)
def test_trees_are_packed_as_tvm_packs_them(kinds: str, imports: str, digest: str) -> None:
    modules = [Code() if kind == "c" else constants(index) for index, kind in enumerate(kinds)]
    for module, row in zip(modules, imports.split(), strict=True):
        for child in row.strip("-"):
            module.import_module(modules[int(child)])
    packed = pack(modules[0], "ffi")
    assert sha256(to_bytes(packed.content)).hexdigest().startswith(digest)

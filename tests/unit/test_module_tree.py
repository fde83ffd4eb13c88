"""Module trees are written as the bytes that TVM writes, can be read back, and cannot have cycles."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfc.errors import ArchiveError, OptionError
from mlfc.library.module_tree import PackedTree, pack
from mlfc.runtime import FactoryModule, Module, OpaqueModule, register_loader
from mlfc.runtime.modules.blob import read_tree
from mlfc.runtime.modules.tvm_kinds import ConstLoader, MetadataModule, SourceModule, StaticLibrary
from mlfc.support.content import to_bytes

ABIS = ("classic", "transitional", "ffi")


class Code(Module):
    """A module that becomes part of a library, and the placeholder for the library in a tree that is read."""

    type_key = "c"

    @property
    def is_dso_exportable(self) -> bool:
        return True


class Letters(Module):
    """A user-defined kind."""

    type_key = "tree-letters"

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    @property
    def is_binary_serializable(self) -> bool:
        return True

    def save_to_bytes(self) -> bytes:
        return self.text.encode()

    def find_function(self, name: str) -> Any:
        return (lambda: self.text) if name == self.text else None


@register_loader("tree-letters")
def load_letters(data: bytes | memoryview) -> Module:
    return Letters(str(data, "utf-8"))


def u64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def string(text: bytes) -> bytes:
    return u64(len(text)) + text


def blob(body: bytes) -> bytes:
    return u64(len(body)) + body


def content(packed: PackedTree) -> bytes:
    data = to_bytes(packed.content)
    assert len(data) == packed.content.nbytes  # type: ignore[union-attr]
    return data


def imports(module: Module, *children: Module) -> Module:
    for child in children:
        module.import_module(child)
    return module


def shown(root: Module) -> list[tuple[str, list[str]]]:
    def name(module: Module) -> str:
        return getattr(module, "text", module.type_key)

    return [(name(module), [name(child) for child in module.imported_modules]) for module in root.walk()]


# the two smallest blobs of the format specification, byte for byte
SMALLEST_CLASSIC = u64(72, 2) + string(b"_lib") + string(b"_import_tree") + u64(2, 0, 0, 0)
SMALLEST_FFI = u64(44, 2, 0, 0, 0) + string(b"_lib")


def test_the_smallest_blobs_are_a_library_alone() -> None:
    assert (len(SMALLEST_CLASSIC), len(SMALLEST_FFI)) == (80, 52)
    library = Code()
    for data, abi in ((SMALLEST_CLASSIC, "classic"), (SMALLEST_FFI, "ffi"), (u64(8, 0), "classic")):
        assert read_tree(data, library, abi) is library
        assert library.imported_modules == ()
    packed = pack(library, "ffi")
    assert content(packed) == SMALLEST_FFI
    # only objects for TVM's C runtime contain the tree of code alone
    assert content(pack(library)) == SMALLEST_CLASSIC
    assert not packed.is_needed
    assert packed.code == (library,)


def test_each_generation_has_its_symbol_and_layout() -> None:
    root = imports(Code(), Letters("ab"))
    assert [pack(root, abi).symbol for abi in ABIS] == [
        "__tvm_dev_mblob",
        "__tvm_ffi_library_bin",
        "__tvm_ffi__library_bin",
    ]
    kind = string(b"tree-letters")
    # a kind without a self-delimiting body has a length prefix in the classic stream, too
    classic = u64(3) + string(b"_lib") + kind + string(b"ab") + string(b"_import_tree") + u64(3, 0, 1, 1, 1, 1)
    assert content(pack(root)) == content(pack(root, "transitional")) == blob(classic)
    assert content(pack(root, "ffi")) == blob(u64(3, 0, 1, 1, 1, 1) + string(b"_lib") + kind + string(b"ab"))
    with pytest.raises(OptionError, match="unknown generation of blobs 'old'"):
        pack(root, "old")
    with pytest.raises(OptionError, match="known: 'classic', 'ffi', 'transitional'"):
        read_tree(b"", root, "old")


def test_bytes_without_a_tree_are_imports_of_the_library() -> None:
    data = blob(u64(2) + string(b"metadata_module") + string(b"tree-letters") + string(b"x"))
    root = read_tree(data, Code(), "classic")
    assert [module.type_key for module in root.imported_modules] == ["metadata_module", "tree-letters"]


def test_what_stands_behind_the_blob_is_not_read() -> None:
    assert shown(read_tree(SMALLEST_CLASSIC + b"\xff" * 9, Code(), "classic")) == [("c", [])]


def test_numbers_are_given_as_tvm_gives_them() -> None:
    # the last import is visited first; imports of code follow the single index of all code
    a, b, c, d = (Letters(letter) for letter in "abcd")
    first, second = imports(Code(), c), imports(Code(), d)
    root = imports(Letters("r"), a, first, b)
    imports(a, second)
    packed = pack(root)
    # the root, b, a; code; then the stack: the last code visited is `second`, which was found behind a
    assert [module and module.text for module in packed.modules] == ["r", "b", "a", None, "d", "c"]  # type: ignore[attr-defined]
    assert packed.children == ((1, 2, 3), (), (3,), (4, 5), (), ())
    assert packed.code == (first, second)
    again = read_tree(content(packed), Code(), "classic")
    assert shown(again) == [("r", ["b", "a", "c"]), ("b", []), ("a", ["c"]), ("c", ["d", "c"]), ("d", []), ("c", [])]
    assert again.imported_modules[1].imported_modules[0] is again.imported_modules[2]


@pytest.mark.parametrize("abi", ABIS)
def test_a_diamond_stays_one(abi: str) -> None:
    # in TVM's numbering, left would follow the module that it imports, so TVM rejects the tree
    bottom = Letters("bottom")
    left, right = imports(Letters("left"), bottom), imports(Letters("right"), bottom)
    root = imports(Code(), left, right)
    packed = pack(root, abi)
    assert all(child > index for index, children in enumerate(packed.children) for child in children)
    again = read_tree(content(packed), Code(), abi)
    ends = {id(side.imported_modules[0]) for side in again.imported_modules}
    assert len(ends) == 1
    assert again.get_function("bottom", query_imports=True)() == "bottom"
    assert content(pack(again, abi)) == content(packed)


@pytest.mark.parametrize("abi", ABIS)
def test_a_deep_tree_takes_no_deep_stack(abi: str) -> None:
    root: Module = Code()
    module = root
    for index in range(4000):
        child = Letters(str(index))
        module.import_module(child)
        module = child
    again = read_tree(content(pack(root, abi)), Code(), abi)
    assert sum(1 for _ in again.walk()) == 4001
    assert again.get_function("3999", query_imports=True)() == "3999"
    assert content(pack(again, abi)) == content(pack(root, abi))


def test_code_that_would_import_itself_is_refused() -> None:
    root = imports(Code(), imports(Letters("between"), Code()))
    with pytest.raises(OptionError, match=r"code in it would import itself through c, tree-letters"):
        pack(root)


def test_modules_that_no_library_can_hold_are_named_all_at_once() -> None:
    root = imports(Code(), Module(), imports(Letters("x"), Module()))
    with pytest.raises(OptionError, match=r"2 of the modules can neither be stored nor linked.*'module', 'module'"):
        pack(root)
    # reserved names of blobs are not valid kinds
    with pytest.raises(OptionError, match=r"1 of the modules.*'_lib'"):
        pack(imports(Code(), OpaqueModule("_lib", b"")))


@st.composite
def trees(draw: st.DrawFn) -> Module:
    """Return a tree of up to 12 modules with shared members, whose code does not import itself."""
    count = draw(st.integers(1, 12))
    code = draw(st.integers(0, count - 1))
    # modules before `code` may import any later one; all code is one module, so merging cannot create a cycle
    modules: list[Module] = [Code() if index == code else Letters(chr(97 + index)) for index in range(count)]
    for index, module in enumerate(modules):
        behind = draw(st.lists(st.integers(index + 1, count - 1), unique=True)) if index + 1 < count else []
        imports(module, *(modules[child] for child in behind))
    return modules[0]


@given(trees(), st.sampled_from(ABIS))
def test_any_tree_comes_back_as_it_was(root: Module, abi: str) -> None:
    data = content(pack(root, abi))
    again = read_tree(data, Code(), abi)
    edges = {(name, child) for name, children in shown(root) for child in children}
    assert {(name, child) for name, children in shown(again) for child in children} == edges
    assert {name for name, _ in shown(again)} == {name for name, _ in shown(root)}
    # TVM's numbering puts the last import first, so only the order changes
    assert len(content(pack(again, abi))) == len(data)


def test_kinds_that_nothing_can_load() -> None:
    root = imports(Code(), OpaqueModule("neural-chip", b"\x01\x02"))
    # the length allows to keep the module unchanged
    kept = read_tree(content(pack(root, "ffi")), Code(), "ffi").imported_modules[0]
    assert (type(kept), kept.type_key, kept.save_to_bytes()) == (OpaqueModule, "neural-chip", b"\x01\x02")
    with pytest.raises(ArchiveError) as caught:
        read_tree(content(pack(root)), Code(), "classic", place="deploy.so")
    text = str(caught.value)
    assert text.startswith("deploy.so, byte 28: modules of the kind 'neural-chip' cannot be read")
    assert "register_loader('neural-chip')" in text
    for kind in ("onnxruntime", "GraphExecutorFactory", "metadata_module"):
        assert kind in text


def test_abilities_are_bits_and_errors_say_them() -> None:
    assert [module.property_mask for module in (Code(), Letters(""), Module(), MetadataModule())] == [4, 1, 0, 1]
    with pytest.raises(OptionError, match="'c' cannot be stored as bytes: this one can be linked into libraries"):
        Code().save_to_bytes()
    with pytest.raises(OptionError, match="'module' cannot be stored as bytes: this one can only be imported"):
        Module().save_to_bytes()


def test_a_module_is_called_as_its_entry() -> None:
    class Main(Module):
        def find_function(self, name: str) -> Any:
            return (lambda *args: args) if name == "__tvm_main__" else None

    assert imports(Letters("x"), Main())(1, 2) == (1, 2)
    with pytest.raises(OptionError, match="unknown function '__tvm_main__'"):
        Letters("x")()


GRAPH = '{"nodes": []}'


def test_a_factory_is_stored_as_tvm_does() -> None:
    params = {"b": np.arange(3, dtype=np.int8), "a": np.ones((2, 1), np.float32)}
    factory = FactoryModule("m", Code(), graph_json=GRAPH, params=params)
    data = factory.save_to_bytes()
    head = struct.pack("<QQiiiBBH", 0xDD5E40F096B4A13F, 0, 1, 0, 1, 0, 8, 1) + struct.pack("<qq", 3, 3)
    blanks = data.index(b"}") + 1
    padded = GRAPH.encode().ljust(struct.unpack_from("<Q", data)[0])
    wide = struct.pack("<QQiiiBBH", 0xDD5E40F096B4A13F, 0, 1, 0, 2, 2, 32, 1) + struct.pack("<qqq", 2, 1, 8)
    assert blanks <= 8 + len(padded)
    assert data == (
        string(padded)
        + u64(2, 2) + string(b"a") + string(b"b")
        + wide + params["a"].tobytes() + head + params["b"].tobytes()
        + string(b"m")
    )  # fmt: skip


@pytest.mark.parametrize("abi", ABIS)
@pytest.mark.parametrize("names", [("p0",), ("a", "bc", "def"), tuple("abcdefgh")])
def test_parameters_of_a_mapped_library_lie_where_they_are(abi: str, names: Sequence[str]) -> None:
    chance = random.Random(len(names))
    types = itertools.cycle((np.int8, np.float64, np.float32, np.int16, np.bool_))
    params = {
        name: (np.arange(chance.randrange(1, 40)) % 2).astype(dtype) for name, dtype in zip(names, types, strict=False)
    }
    factory = FactoryModule("model", Code(), graph_json=GRAPH + "\n" * len(names), params=params)
    data = content(pack(factory, abi))
    # at a multiple of 64, as in a library
    memory = np.zeros(len(data) + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory[start : start + len(data)] = np.frombuffer(data, np.uint8)
    loaded = read_tree(memory[start : start + len(data)].data, Code(), abi)
    assert isinstance(loaded, FactoryModule)
    assert loaded.params.keys() == params.keys()
    for name, array in loaded.params.items():
        np.testing.assert_array_equal(array, params[name])
        assert array.dtype == params[name].dtype
        assert np.shares_memory(array, memory)
        assert array.flags.aligned
    assert loaded.graph_json.strip() == GRAPH
    assert loaded["list_module_names"]() == ["model"]
    assert loaded["get_graph_params"]().keys() == params.keys()
    bare = loaded["remove_params"]()
    assert (bare.params, bare.graph_json, bare.imported_modules) == ({}, loaded.graph_json, loaded.imported_modules)
    assert content(pack(loaded, abi)) == data


def test_a_factory_ahead_of_time_has_no_graph() -> None:
    factory = FactoryModule("m", Code())
    assert factory.save_to_bytes() == u64(0, 0) + string(b"m")
    loaded = read_tree(content(pack(factory)), Code(), "classic")
    assert (loaded.type_key, loaded["list_module_names"](), loaded["get_graph_json"]()) == (
        "AotExecutorFactory",
        ["m"],
        "",
    )
    with pytest.raises(OptionError, match="the library does not describe the model 'm'"):
        loaded["default"]()


def test_the_older_key_of_graph_factories_stays() -> None:
    factory = FactoryModule("m", Code(), graph_json=GRAPH)
    factory.type_key = "GraphRuntimeFactory"
    data = content(pack(factory))
    loaded = read_tree(data, Code(), "classic")
    assert (loaded.type_key, content(pack(loaded))) == ("GraphRuntimeFactory", data)


def loaded_again(module: Module) -> Module:
    """Return a module after loading it from between two others in a classic stream, which has no lengths."""
    root = imports(Letters("r"), Letters("before"), module, Letters("after"))
    again = read_tree(content(pack(root)), Code(), "classic")
    (found,) = [child for child in again.imported_modules if child.type_key == module.type_key]
    assert found.save_to_bytes() == module.save_to_bytes()
    return found


def test_constants_are_set_before_a_function_is_first_used() -> None:
    calls: list[Any] = []

    class Chip(Letters):
        def find_function(self, name: str) -> Any:
            return {"__init_f": calls.append, "f": lambda: "ran"}.get(name)

    made = ConstLoader({"w": np.arange(4, dtype=np.int8), "b": np.ones(2)}, {"f": ["b", "w"], "g": []})
    loader = loaded_again(made)
    loader.import_module(Chip("chip"))
    assert loader["f"]() == loader["f"]() == "ran"
    (arrays,) = calls
    np.testing.assert_array_equal(arrays[1], [0, 1, 2, 3])
    # constants alone do not define a function
    assert not loader.implements_function("g")
    assert loader.save_to_bytes()[:8] == u64(2)


def test_code_that_tvm_stores_comes_back() -> None:
    source = StaticLibrary(b"\x7fELF", ["f", "g"]), SourceModule("int f;", "cc", ["f"], ["w"])
    # they are code in a library, and bytes alone
    assert [module.property_mask for module in source] == [5, 5]
    assert source[0].save_to_bytes() == string(b"\x7fELF") + u64(2) + string(b"f") + string(b"g")
    assert source[1].save_to_bytes() == string(b"int f;") + string(b"cc") + u64(1) + string(b"f") + u64(1) + string(
        b"w"
    )
    data = blob(
        u64(2) + string(b"static_library") + source[0].save_to_bytes() + string(b"c") + source[1].save_to_bytes()
    )
    objects, text = read_tree(data, Code(), "classic").imported_modules
    assert (objects.format, dict(objects.files)) == ("o", {"lib/lib0.o": b"\x7fELF"})
    assert (text.format, text.get_source(), dict(text.files)) == ("cc", "int f;", {"src/lib0.cc": b"int f;"})


# bodies according to the format specification, of kinds that only TVM's runtimes run
KERNELS = u64(1) + string(b"k") + string(b"") + u64(1) + b"\3\x40\1\0" + u64(1) + string(b"threadIdx.x")
KEPT: dict[str, bytes] = {
    "hip": string(b"hsaco") + KERNELS + string(b"code"),
    "metal": string(b"0.1.0") + u64(1) + string(b"k") + string(b"source") + KERNELS + string(b"metal"),
    "vulkan": string(b"spv") + KERNELS + u64(1) + string(b"k") + struct.pack("<IQ2I", 7, 2, 1, 2),
    "dnnl_json": string(b"f") + string(b"{}") + u64(1) + string(b"w"),
}


@pytest.mark.parametrize("kind", KEPT)
def test_modules_of_other_runtimes_are_kept_as_they_are(kind: str) -> None:
    kept = loaded_again(OpaqueModule(kind, KEPT[kind]))
    assert kept.save_to_bytes() == KEPT[kind]


def test_a_fault_in_a_body_names_the_module_and_where_it_stands() -> None:
    body = string(GRAPH.encode()) + u64(1, 2)
    data = blob(u64(1) + string(b"GraphExecutorFactory") + body)
    with pytest.raises(ArchiveError, match=r"^x.so, the module 'GraphExecutorFactory' at byte 44: .*byte 29: 2 names"):
        read_tree(data, Code(), "classic", place="x.so")


def repeated(make: Callable[[], Module]) -> list[bytes]:
    return [content(pack(make(), abi)) for abi in ABIS]


def test_the_same_tree_gives_the_same_bytes() -> None:
    def make() -> Module:
        children = [imports(Letters(letter), Letters(letter * 2)) for letter in "zyx"]
        return imports(FactoryModule("m", imports(Code(), *children), graph_json=GRAPH), Letters("q"))

    assert repeated(make) == repeated(make)

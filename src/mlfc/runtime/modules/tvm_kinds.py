"""TVM modules that need neither compiler nor driver; kinds that only TVM's runtimes can run are kept unchanged."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from mlfc.errors import ArchiveError
from mlfc.runtime.modules.module import Function, Module, extents, register_loader
from mlfc.support.content import Data, Joined
from mlfc.support.params import MAX_TENSORS, decode_ndarray, ndarray_content, ndarray_end
from mlfc.support.stream import Cursor, encode_string, encode_strings, encode_u64
from mlfc.support.tensor_info import Array

METADATA = "metadata_module"
_SOURCES = ("c", "cc", "cpp", "cu")
# size of a length or count, which is the minimum of any string or list
_WORD = 8
_U32 = struct.Struct("<I")
Reader: TypeAlias = Callable[[Cursor], object]


class MetadataModule(Module):
    """Module between an AOT factory and its code, where TVM's runtime looks for tables; it forwards to its imports."""

    type_key = METADATA
    is_binary_serializable = True

    def __init__(self, code: Module | None = None) -> None:
        super().__init__()
        if code is not None:
            self.import_module(code)

    def save_to_bytes(self) -> bytes:
        """Return an empty stored form."""
        return b""

    def find_function(self, name: str) -> Function | None:
        """Return a function of an import."""
        return _imported(self, name)


class ConstLoader(Module):
    """Module that sets the constants of imported code: it calls ``__init_<symbol>`` before the first use of a function.

    `used` names the constants of each function, by symbol.
    """

    type_key = "const_loader"
    is_binary_serializable = True

    def __init__(self, constants: Mapping[str, Array], used: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self.constants = dict(constants)
        self.used = {symbol: tuple(names) for symbol, names in used.items()}
        self._ready: set[str] = set()

    def stored(self) -> Data:
        """Return the stored form; the constants are read from their arrays."""
        arrays = (ndarray_content(array) for array in self.constants.values())
        used = b"".join(map(encode_strings, self.used.values()))
        head = encode_strings(list(self.constants)) + encode_u64(len(self.constants))
        tail = encode_strings(list(self.used)) + encode_u64(len(self.used)) + used
        return Joined((head, *arrays, tail))

    def find_function(self, name: str) -> Function | None:
        """Return a function of an import, with its constants in place."""
        if name not in self.used:
            return None
        if name not in self._ready:
            set_constants = _imported(self, f"__init_{name}")
            if set_constants is not None:
                set_constants([self.constants[constant] for constant in self.used[name]])
            self._ready.add(name)
        return _imported(self, name)


def _imported(importer: Module, name: str) -> Function | None:
    return next((found for module in importer.imported_modules if (found := module.find_function(name))), None)


class SourceModule(Module):
    """C or C++ to be linked into a library, with the names of its functions and of variables for `ConstLoader`."""

    type_key = "c"
    is_dso_exportable = True
    is_binary_serializable = True

    def __init__(
        self, code: str, suffix: str = "c", functions: Sequence[str] = (), constants: Sequence[str] = ()
    ) -> None:
        super().__init__()
        if suffix not in _SOURCES:
            raise ArchiveError(f"unknown source form '{suffix}'", place="module of the kind 'c'")
        self.code = code
        self.functions = tuple(functions)
        self.constants = tuple(constants)
        self.format = suffix
        self.files = {f"src/lib0.{suffix}": code.encode()}

    def get_source(self) -> str:
        """Return the text."""
        return self.code

    def save_to_bytes(self) -> bytes:
        """Return the stored form."""
        names = encode_strings(self.functions) + encode_strings(self.constants)
        return encode_string(self.code) + encode_string(self.format) + names


class StaticLibrary(Module):
    """Object code to be linked into a library, with the names of its functions."""

    type_key = "static_library"
    format = "o"
    is_dso_exportable = True
    is_binary_serializable = True

    def __init__(self, data: bytes | memoryview, functions: Sequence[str] = ()) -> None:
        super().__init__()
        self.data = bytes(data)
        self.functions = tuple(functions)
        self.files = {"lib/lib0.o": self.data}

    def save_to_bytes(self) -> bytes:
        """Return the stored form."""
        return encode_string(self.data) + encode_strings(self.functions)


def _fields(*readers: Reader) -> Callable[[memoryview], int]:
    """Return a function that measures a stored body of these fields."""

    def extent(data: memoryview) -> int:
        take = Cursor(data, 0, "its body")
        for reader in readers:
            reader(take)
        return take.offset

    return extent


def _list_of(what: str, size: int, *readers: Reader, limit: int | None = None) -> Reader:
    """Return a reader of a count and as many entries of these fields, each of at least `size` bytes."""

    def read(take: Cursor) -> None:
        for _ in range(take.count(what, size, limit)):
            for reader in readers:
                reader(take)

    return read


def _array_of(words: str) -> Reader:
    return lambda take: take.bytes(4 * take.count(words, 4), words)


def _tensor(take: Cursor) -> None:
    take.bytes(ndarray_end(take.peek(), place="a constant"), "a constant")


def _string(take: Cursor) -> None:
    take.string("a string")


_strings = _list_of("strings", _WORD, _string)
# a map from names to FunctionInfo: a name, dtypes of four bytes, and tags
_kernels = _list_of("kernels", 4 * _WORD, _string, _string, _array_of("types of arguments"), _strings)
_sources = _list_of("sources", 2 * _WORD, _string, _string)
_shaders = _list_of(
    "shaders",
    2 * _WORD + _U32.size,
    _string,
    lambda take: take.unpack(_U32, "the flag of a shader"),
    _array_of("words of a shader"),
)
_CONSTANTS = _fields(
    _strings,
    _list_of("constants", _WORD, _tensor, limit=MAX_TENSORS),
    _strings,
    _list_of("lists of constants", _WORD, _strings),
)
_JSON_RUNTIME = _fields(_string, _string, _strings)
_DEVICE_CODE = _fields(_string, _kernels, _string)
extents.update(
    dict.fromkeys(("dnnl_json", "bnns_json", "arm_compute_lib", "clml", "tensorrt", "coreml"), _JSON_RUNTIME)
)
extents.update(dict.fromkeys(("hip", "hsaco"), _DEVICE_CODE))
extents["vulkan"] = _fields(_string, _kernels, _shaders)
extents["metal"] = _fields(_string, _sources, _kernels, _string)


@register_loader(METADATA, _fields())
def _load_metadata_module(data: bytes | memoryview) -> Module:
    Cursor(data, 0, "module of the kind 'metadata_module'").end("nothing")
    return MetadataModule()


@register_loader("const_loader", _CONSTANTS)
def _load_constants(data: bytes | memoryview) -> ConstLoader:
    place = "module of the kind 'const_loader'"
    take = Cursor(data, 0, place)
    names = take.texts("names", MAX_TENSORS)
    at = take.offset
    if take.count("constants", _WORD, MAX_TENSORS) != len(names):
        raise take.fault(f"as many constants as the {len(names)} names must follow", at)
    constants: dict[str, Array] = {}
    for name in names:
        constants[name], take.offset = decode_ndarray(data, take.offset, place=place)
    symbols = take.texts("symbols")
    at = take.offset
    if take.count("lists of constants", _WORD) != len(symbols):
        raise take.fault(f"as many lists of constants as the {len(symbols)} symbols must follow", at)
    used = {}
    for symbol in symbols:
        at = take.offset
        used[symbol] = take.texts("names of constants")
        if not set(used[symbol]) <= set(constants):
            raise take.fault(f"'{symbol[:60]}' uses a constant that does not exist", at)
    take.end("the last list")
    return ConstLoader(constants, used)


@register_loader("metadata", _CONSTANTS)
def _load_older_constants(data: bytes | memoryview) -> Module:
    module = _load_constants(data)
    # name in TVM 0.8; it is stored again under the same name
    module.type_key = "metadata"
    return module


@register_loader("c", _fields(_string, _string, _strings, _strings))
def _load_source(data: bytes | memoryview) -> Module:
    take = Cursor(data, 0, "module of the kind 'c'")
    code, suffix = take.text("the code"), take.text("the form of the code")
    functions, constants = take.texts("names of functions"), take.texts("names of constants")
    take.end("the names")
    return SourceModule(code, suffix, functions, constants)


@register_loader("static_library", _fields(_string, _strings))
def _load_object(data: bytes | memoryview) -> Module:
    take = Cursor(data, 0, "module of the kind 'static_library'")
    code, functions = take.string("the object"), take.texts("names of functions")
    take.end("the names")
    return StaticLibrary(code, functions)

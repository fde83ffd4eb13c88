"""Reader of untrusted module trees in shared libraries: TVM's classic, transitional and tvm-ffi blobs, as views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from mlfc.errors import ArchiveError, OptionError, unknown
from mlfc.runtime.modules.module import Module, extent_of, is_known, known_kinds, link_tree, load_from_bytes
from mlfc.support.stream import Cursor

SYMBOLS: Mapping[str, str] = MappingProxyType(
    {"classic": "__tvm_dev_mblob", "transitional": "__tvm_ffi_library_bin", "ffi": "__tvm_ffi__library_bin"}
)
"""The symbol of a blob by generation: TVM up to 0.20, TVM 0.21, and tvm-ffi with TVM since 0.22."""

LIBRARY = "_lib"
TREE = "_import_tree"
MAX_MODULES = 100_000
_MAX_KIND = 256
_SHOWN = 60
_U64_BYTES = 8


@dataclass(frozen=True)
class StoredModule:
    """A module as stored in a blob."""

    kind: str
    data: memoryview | None  # None for the library itself
    offset: int  # of the body in the blob


@dataclass(frozen=True)
class StoredTree:
    """The modules of a blob, the root first, and the indices of each module's imports, which come after it."""

    modules: tuple[StoredModule, ...]
    children: tuple[tuple[int, ...], ...]


def read_tree(view: bytes | memoryview, library: Module, abi: str, *, place: str = "module blob") -> Module:
    """Return the root of the tree in a blob, with its imports; `library`, which carries the blob, becomes part of it.

    The blob starts at its symbol; modules may keep views of it. `abi` is a key of `SYMBOLS`. Raises ArchiveError if the
    blob is malformed, or contains a module of a kind that cannot be read here.
    """
    return load_tree(view, abi, place=place)(library)


def load_tree(view: bytes | memoryview, abi: str, *, place: str = "module blob") -> Callable[[Module], Module]:
    """Create the modules in a blob before its library is loaded; return a one-time function that links them to it."""
    tree = parse_tree(view, abi, place=place)
    made = [None if stored.data is None else _loaded(stored, stored.data, place) for stored in tree.modules]

    def link(library: Module) -> Module:
        modules = [library if module is None else module for module in made]
        link_tree(modules, tree.children)
        return modules[0]

    return link


def parse_tree(view: bytes | memoryview, abi: str, *, place: str = "module blob") -> StoredTree:
    """Return the content of a blob without creating its modules; see `read_tree`."""
    if abi not in SYMBOLS:
        raise OptionError(unknown("generation of blobs", abi, SYMBOLS))
    data = memoryview(view).cast("B")
    head = Cursor(data, 0, place)
    nbytes = head.u64("the size of the blob")
    if nbytes > head.remaining:
        raise head.fault(f"the blob of {nbytes} bytes is cut off after {head.remaining}", 0)
    take = Cursor(data[: _U64_BYTES + nbytes], _U64_BYTES, place)
    tree = _ffi_tree(take) if abi == "ffi" else _classic_tree(take, place)
    take.end("the last module")
    return tree


def _classic_tree(take: Cursor, place: str) -> StoredTree:
    count = take.count("modules", _U64_BYTES, MAX_MODULES)
    modules: list[StoredModule] = []
    children: tuple[tuple[int, ...], ...] | None = None
    for index in range(count):
        at = take.offset
        kind = take.text("the kind of a module", _MAX_KIND)
        if kind == TREE:
            if index != count - 1:
                raise take.fault("modules follow the import tree", at)
            children = _children(take, len(modules))
        elif kind == LIBRARY:
            modules.append(_library(take, modules, at))
        else:
            modules.append(_classic_body(take, kind, at, place))
    if children is not None:
        return StoredTree(tuple(modules), children)
    # without a tree the library is the root, and imports all
    others = [module for module in modules if module.kind != LIBRARY]
    root = StoredModule(LIBRARY, None, take.offset)
    return StoredTree((root, *others), (tuple(range(1, len(others) + 1)), *[()] * len(others)))


def _classic_body(take: Cursor, kind: str, at: int, place: str) -> StoredModule:
    if not is_known(kind):
        raise ArchiveError(
            f"modules of the kind '{kind[:_SHOWN]}' cannot be read: the kind has no loader, and its size is unknown",
            place=f"{place}, byte {at}",
            next_step=f"Import the code that registers a loader: mlfc.runtime.register_loader('{kind[:_SHOWN]}'). "
            f"Registered: {', '.join(known_kinds())}",
        )
    extent = extent_of(kind)
    if extent is None:
        body = take.string(f"the body of the module '{kind}'")
        return StoredModule(kind, body, take.offset - len(body))
    start = take.offset
    rest = take.peek()
    try:
        nbytes = extent(rest)
    except ArchiveError as error:
        raise _placed(error, kind, start, place) from error
    return StoredModule(kind, take.bytes(nbytes, f"the body of the module '{kind}'"), start)


def _ffi_tree(take: Cursor) -> StoredTree:
    children = _children(take)
    modules: list[StoredModule] = []
    for _ in children:
        start = take.offset
        kind = take.text("the kind of a module", _MAX_KIND)
        if kind == LIBRARY:
            modules.append(_library(take, modules, start))
        else:
            body = take.string(f"the body of the module '{kind[:_SHOWN]}'")
            modules.append(StoredModule(kind, body, take.offset - len(body)))
    return StoredTree(tuple(modules), children)


def _library(take: Cursor, modules: list[StoredModule], at: int) -> StoredModule:
    if any(module.data is None for module in modules):
        raise take.fault(f"the blob contains the library twice, as '{LIBRARY}'", at)
    return StoredModule(LIBRARY, None, take.offset)


def _children(take: Cursor, count: int | None = None) -> tuple[tuple[int, ...], ...]:
    """Read and check the row pointers and indices of the imports of `count` modules, or of any number."""
    at = take.offset
    rows = take.numbers("row pointers")
    if count is None and not 2 <= len(rows) <= MAX_MODULES + 1:
        raise take.fault(f"{len(rows)} row pointers; 2 to {MAX_MODULES + 1:,} are possible", at)
    if count is not None and (count == 0 or len(rows) != count + 1):
        raise take.fault(f"{len(rows)} row pointers for {count} modules", at)
    count = len(rows) - 1
    start = take.offset + _U64_BYTES
    numbers = take.numbers("numbers of imports")
    falling = rows[1:] < rows[:-1]
    fault = None
    if rows[0] != 0:
        fault = 0, f"the first row pointer is {rows[0]}, not 0"
    elif falling.any():
        index = int(np.argmax(falling)) + 1
        fault = index, f"row pointer {index} is {rows[index]}, below the one before it, {rows[index - 1]}"
    elif rows[-1] != len(numbers):
        fault = count, f"the last row pointer is {rows[-1]}, for {len(numbers)} numbers of imports"
    if fault is not None:
        raise take.fault(fault[1], at + _U64_BYTES * (1 + fault[0]))
    # both are now known to be small, so the signed conversion is exact
    bounds = rows.astype(np.int64)
    parents = np.repeat(np.arange(count), np.diff(bounds))
    wrong = (numbers >= count) | (numbers <= parents.astype(np.uint64))
    if wrong.any():
        index = int(np.argmax(wrong))
        raise take.fault(
            f"module {parents[index]} imports {numbers[index]}: of {count} modules it may import only later ones",
            start + _U64_BYTES * index,
        )
    imports = numbers.tolist()
    return tuple(tuple(imports[first:last]) for first, last in pairwise(bounds.tolist()))


def _loaded(stored: StoredModule, data: memoryview, place: str) -> Module:
    try:
        return load_from_bytes(stored.kind, data)
    except ArchiveError as error:
        raise _placed(error, stored.kind, stored.offset, place) from error


def _placed(error: ArchiveError, kind: str, offset: int, place: str) -> ArchiveError:
    """Return an error in a module's body with its position in the blob, which the loader of the body does not know."""
    return ArchiveError(
        error.cause,
        place=f"{place}, the module '{kind[:_SHOWN]}' at byte {offset}: {error.place}",
        next_step=error.next_step,
    )

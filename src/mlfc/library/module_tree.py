"""Module trees for libraries: numbered and merged as in TVM, and written as blobs of three generations.

All modules that become code of the library share one number, for which the blob contains only a placeholder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mlfc.errors import OptionError, unknown
from mlfc.runtime.libraries.factory import FactoryModule
from mlfc.runtime.modules.blob import LIBRARY, SYMBOLS, TREE
from mlfc.runtime.modules.module import Module, extent_of
from mlfc.support.content import Data, Joined, nbytes_of
from mlfc.support.params import ParameterOffsets
from mlfc.support.stream import encode_numbers, encode_string, encode_u64, sized


@dataclass(frozen=True, eq=False)
class PackedTree:
    """A tree, ready to be embedded in a library under a symbol."""

    symbol: str
    content: Data  # the blob, including its size prefix; large parts stay in the modules
    # the modules that become code of the library, in the order in which TVM numbers their files
    code: tuple[Module, ...]
    modules: tuple[Module | None, ...]  # by number, the root first; None for the library
    children: tuple[tuple[int, ...], ...]  # the numbers that each of `modules` imports, ascending
    places: ParameterOffsets = field(default_factory=dict)

    @property
    def is_needed(self) -> bool:
        """True if the library needs the blob: code alone is found without one."""
        return self.modules != (None,)


_WORD = 8  # the size before the stream
_Groups: TypeAlias = "tuple[tuple[Module, ...], ...]"
_ByModule: TypeAlias = "dict[str, Mapping[str, tuple[str, int]]]"
_Children: TypeAlias = "tuple[tuple[int, ...], ...]"


def pack(root: Module, abi: str = "classic") -> PackedTree:
    """Return a tree for embedding in a library; `abi` is a key of `mlfc.runtime.modules.blob.SYMBOLS`.

    Raises OptionError, naming all modules that can neither be stored nor become code; or if code imports a module that
    imports code: within one library they would import each other.
    """
    if abi not in SYMBOLS:
        raise OptionError(unknown("generation of blobs", abi, SYMBOLS))
    members = _exported(root)
    wrong = [
        f"'{module.type_key}'"
        for module in members
        if not module.is_dso_exportable and (not module.is_binary_serializable or module.type_key in (LIBRARY, TREE))
    ]
    if wrong:
        raise OptionError(
            f"{len(wrong)} of the modules can neither be stored nor linked into a library, by kind: {', '.join(wrong)}",
            next_step="Export the code that they were compiled from",
        )
    groups, children = _in_order(*_numbered(root))
    modules = tuple(None if group[0].is_dso_exportable else group[0] for group in groups)
    places: _ByModule = {}
    parts = _ffi_stream(modules, children) if abi == "ffi" else _classic_stream(modules, children, places)
    body = Joined(tuple(parts))
    content = Joined((encode_u64(body.nbytes), body))
    code = tuple(module for module in members if module.is_dso_exportable)
    return PackedTree(SYMBOLS[abi], content, code, modules, children, places)


def _exported(root: Module) -> list[Module]:
    """Return all modules in the order of TVM's exporter: the root, then the last import first."""
    found, seen, stack = [], {id(root)}, [root]
    while stack:
        module = stack.pop()
        found.append(module)
        for child in module.imported_modules:
            if id(child) not in seen:
                seen.add(id(child))
                stack.append(child)
    return found


def _numbered(root: Module) -> tuple[_Groups, _Children]:
    """Return modules by TVM's numbers, and their imports: the root, one entry for all code, then its imports."""
    groups: list[list[Module]] = []
    numbers: dict[int, int] = {}
    code: list[Module] = []
    seen, stack = {id(root)}, [root]
    library: int | None = None
    while stack or (code and library is None):
        if not stack:
            library, stack = len(groups), code
            groups.append([])
        module = stack.pop()
        if module.is_dso_exportable and library is None:
            code.append(module)
            continue
        if library is not None and module.is_dso_exportable:
            numbers[id(module)] = library
            groups[library].append(module)
        else:
            numbers[id(module)] = len(groups)
            groups.append([module])
        for child in module.imported_modules:
            if id(child) not in seen:
                seen.add(id(child))
                stack.append(child)
    children = (
        {numbers[id(child)] for module in group for child in module.imported_modules} - {index}
        for index, group in enumerate(groups)
    )
    return tuple(map(tuple, groups)), tuple(tuple(sorted(numbers)) for numbers in children)


def _in_order(groups: _Groups, imports: _Children) -> tuple[_Groups, _Children]:
    """Return the modules so that importers precede their imports, as loaders require.

    TVM's numbers are kept if they comply; a module imported along two paths may violate this, and TVM rejects the tree.
    """
    if all(child > index for index, children in enumerate(imports) for child in children):
        return groups, imports
    waiting = [0] * len(groups)
    for children in imports:
        for child in children:
            waiting[child] += 1
    order, ready = [], [0] if waiting[0] == 0 else []
    while ready:
        index = ready.pop()
        order.append(index)
        for child in imports[index]:
            waiting[child] -= 1
            if waiting[child] == 0:
                ready.append(child)
    if len(order) < len(groups):
        left = sorted({groups[index][0].type_key for index in {*range(len(waiting))} - {*order}})
        raise OptionError(
            f"the modules cannot become one library: code in it would import itself through {', '.join(left)}",
            next_step="Code may import other modules, but these must not import code",
        )
    place = {index: number for number, index in enumerate(order)}
    renumbered = tuple(tuple(sorted(place[child] for child in imports[index])) for index in order)
    return tuple(groups[index] for index in order), renumbered


def _classic_stream(
    modules: Sequence[Module | None],
    children: Sequence[Sequence[int]],
    places: _ByModule,
) -> list[Data]:
    """Return the parts of a classic blob behind its size; add the places of graphs' parameters to `places`."""
    parts: list[Data] = [encode_u64(len(modules) + 1)]
    for module in modules:
        if module is None:
            parts.append(encode_string(LIBRARY))
            continue
        parts.append(encode_string(module.type_key))
        if isinstance(module, FactoryModule):
            start = _WORD + sum(map(nbytes_of, parts))
            body, offsets = module.stored_at(start)
            places[module.name] = {name: (SYMBOLS["classic"], offset) for name, offset in offsets.items()}
        else:
            body = module.stored()
        parts.append(body if extent_of(module.type_key) else sized(body))
    return [*parts, encode_string(TREE), _rows(children)]


def _ffi_stream(modules: Sequence[Module | None], children: Sequence[Sequence[int]]) -> list[Data]:
    parts: list[Data] = [_rows(children)]
    for module in modules:
        parts.append(encode_string(LIBRARY if module is None else module.type_key))
        if module is not None:
            parts.append(sized(module.stored()))
    return parts


def _rows(children: Sequence[Sequence[int]]) -> bytes:
    """Return a tree in compressed sparse row form."""
    pointers = [0]
    for row in children:
        pointers.append(pointers[-1] + len(row))
    return encode_numbers(pointers) + encode_numbers(number for row in children for number in row)

"""Imported modules of other kinds: stored under ``codegen/<type key>/``, with their place in the import tree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlfc.errors import OptionError
from mlfc.runtime.modules.module import Module
from mlfc.support.content import Data
from mlfc.support.module_info import ImportedModule

_HOST = "host"
_PART_OF_A_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class ImportTree:
    """The modules that a module consists of."""

    entries: tuple[ImportedModule, ...]  # the root, which is the generated code, first
    files: Mapping[str, Data]  # of all but the root, by path in the archive


def import_tree(name: str, type_key: str, code: Sequence[str], imports: Sequence[Module]) -> ImportTree:
    """Return what is stored of a module's imports.

    `type_key`: of the root.
    `code`: paths of the root's files.
    `imports`: what the root imports.
    Raises OptionError for a module that cannot be stored.
    """
    entries = [ImportedModule(type_key, tuple(sorted(code)), parent=None)]
    files: dict[str, Data] = {}
    counts: Counter[str] = Counter()
    stored: dict[int, str] = {}
    waiting = [(module, 0) for module in reversed(imports)]
    while waiting:
        module, parent = waiting.pop()
        path = stored.get(id(module))
        if path is None:
            path = stored[id(module)] = _path(name, module, counts)
            files[path] = module.save_to_bytes()
            waiting += [(child, len(entries)) for child in reversed(module.imported_modules)]
        # a module that several import is stored once and listed once for each of them
        entries.append(ImportedModule(module.type_key, (path,), parent))
    return ImportTree(tuple(entries), files)


def _path(name: str, module: Module, counts: Counter[str]) -> str:
    key, suffix = module.type_key, module.format or "bin"
    if not module.is_binary_serializable:
        raise OptionError(
            f"an imported module of the kind '{key}' cannot be stored in an archive",
            place=name,
            next_step="Export without it, or give its kind save_to_bytes",
        )
    if key == _HOST or not _PART_OF_A_PATH.fullmatch(key) or not _PART_OF_A_PATH.fullmatch(suffix):
        raise OptionError(
            f"'{key}' and '{suffix}' are not valid names of a folder and files in an archive",
            place=name,
            next_step="Use letters, digits, underscores and hyphens in type keys and formats",
        )
    number = counts[key]
    counts[key] += 1
    return f"codegen/{key}/{name}_mod{number}.{suffix}"

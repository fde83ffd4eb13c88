"""Paths within a Model Library Format archive, for every version and form."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mlfc.archive.read.model import FULL_MODEL, OPERATOR, RFC, TVM, ModuleFiles
from mlfc.errors import ArchiveError
from mlfc.support.former_name import former

VERSION: Final = 7
METADATA: Final = "metadata.json"
CODEGEN: Final = "codegen"
CODE: Final = "codegen/host"
SOURCES: Final = "codegen/host/src"
OBJECTS: Final = "codegen/host/lib"
HEADERS: Final = "codegen/host/include"
# the function tables of several graph modules, which refer to the code of all modules
REGISTRIES: Final = tuple(
    name(path)
    for name in (str, former)
    for path in ("codegen/host/src/mlfc_shared_registry.c", "codegen/host/lib/mlfc_shared_registry.o")
)

# a module name becomes part of file names, so characters that are special in paths are excluded
MODULE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_LIBRARY = re.compile(r"_lib[0-9]+\.")
_DEVICE_MODULE = re.compile(r"_mod[0-9]+\.")
_LONGEST_MODULE_NAME = 128
_LONGEST_MARK = 16
_TIR = re.compile(r"src/tir-[0-9]{1,4}\.txt")
_PARAMS_FORMS = (".params", ".json", ".bson")
# upper bound of modules times shared code files, as each file is listed for each module
MAX_SHARED: Final = 100_000
_RFC_METADATA = re.compile(r"metadata-(0|[1-9][0-9]{0,3})\.json")


@dataclass(frozen=True)
class ArchiveLayout:
    """Paths that differ between versions; ``{module}`` is replaced by the module's name."""

    metadata: str
    code: str  # prefix of code files, followed by a number and an extension
    relay: str | None  # a file, as are the next two; None if the style has none
    graph: str | None
    params: str | None
    vm: str | None = None
    runtime: str = "runtime"  # folder of the C runtime


_VM_PATH = "executor-config/vm/{module}.vm"
# each version as changes to the one before
_1 = ArchiveLayout(METADATA, "lib", "relay.txt", "runtime-config/graph/graph.json", "parameters/{module}.params")
_3 = replace(_1, code="{module}_lib")
_4 = replace(_3, relay="src/relay.txt")
_5 = replace(_4, graph="executor-config/graph/graph.json")
_7 = replace(_5, relay="src/{module}.relay", graph="executor-config/graph/{module}.graph", vm=_VM_PATH)
_FULL_MODEL: Final[Mapping[int, ArchiveLayout]] = {1: _1, 2: _1, 3: _3, 4: _4, 5: _5, 6: _5, 7: _7}
_OPERATOR = ArchiveLayout(METADATA, "lib", None, None, None)
OPERATOR_VERSIONS: Final = (4, 5, 6, 7)


def layout_of(version: int, form: str = TVM, style: str = FULL_MODEL) -> ArchiveLayout:
    """Return the layout of an archive of version 1 to 7."""
    if form == RFC:
        return replace(_1, metadata=f"metadata-{version}.json", runtime="crt")
    return _OPERATOR if style == OPERATOR else _FULL_MODEL[version]


def find_metadata(paths: Iterable[str]) -> tuple[str, str] | None:
    """Return the path of the metadata among these files, and the form of archive that it implies; None if missing.

    The proposal numbers the file by version, so that an archive may serve readers of different versions: the highest
    supported version is used.
    """
    numbers = []
    for path in paths:
        if path == METADATA:
            return METADATA, TVM
        if match := _RFC_METADATA.fullmatch(path):
            numbers.append(int(match.group(1)))
    if not numbers:
        return None
    return f"metadata-{max((n for n in numbers if n <= VERSION), default=min(numbers))}.json", RFC


def relay_path(module: str) -> str:
    """Return the path of the module's source as Relay text."""
    return f"src/{module}.relay"


def params_path(module: str) -> str:
    """Return the path of the parameters that the executor loads: an empty dictionary for AOT."""
    return f"parameters/{module}.params"


def source_params_path(module: str) -> str:
    """Return the path of the model's own weights under their original names."""
    return f"src/{module}.params"


def graph_path(module: str) -> str:
    """Return the path of the graph executor's JSON."""
    return f"executor-config/graph/{module}.graph"


def vm_path(module: str) -> str:
    """Return the path of the description of a dynamic model, a JSON file beside the graphs."""
    return _VM_PATH.format(module=module)


def moved(path: str, module: str, old: ArchiveLayout, new: ArchiveLayout) -> str:
    """Return the path in layout `new` of a file in layout `old` of an archive of one module.

    Code files are renamed with everything that shares their stem: a ``.S`` file finds its constants under its own stem
    and ``.bin``. Headers keep their names, as code includes them by name.
    """
    for ours, theirs in ((old.relay, new.relay), (old.graph, new.graph), (old.params, new.params)):
        if ours is not None and theirs is not None and path == ours.format(module=module):
            return theirs.format(module=module)
    if path.startswith(f"{old.runtime}/"):
        return f"{new.runtime}/{path.removeprefix(f'{old.runtime}/')}"
    folder, _, name = path.rpartition("/")
    if folder in (SOURCES, OBJECTS):
        prefix = re.escape(old.code.format(module=module))
        if match := re.fullmatch(rf"{prefix}([0-9]+\..+)", name):
            return f"{folder}/{new.code.format(module=module)}{match.group(1)}"
    return path


def files_of_modules(modules: Collection[str], paths: Iterable[str], layout: ArchiveLayout) -> dict[str, ModuleFiles]:
    """Return the files of an archive that belong to each module, by module name.

    Code with the name of one module belongs to that module, code with no module's name to all modules.

    Raises ArchiveError if listing the shared code for each module would take too long.
    """
    known = sorted(paths)
    present, names = set(known), set(modules)
    headers: dict[str, set[str]] = {}
    for name in names:
        headers.setdefault(header_path(name), set()).add(name)
    owned = {kind: _Owned() for kind in ("sources", "objects", "headers", "devices")}
    for path in known:
        if path.startswith((f"{SOURCES}/", f"{OBJECTS}/")):
            kind = "sources" if path.startswith(f"{SOURCES}/") else "objects"
            owned[kind].add(path, _bearers(path, names, _LIBRARY))
        elif path.startswith(f"{HEADERS}/"):
            owned["headers"].add(path, headers.get(path, set()))
        elif path.startswith(f"{CODEGEN}/") and not path.startswith(f"{CODE}/"):
            owned["devices"].add(path, _bearers(path, names, _DEVICE_MODULE))
    shared = sum(len(item.shared) for item in owned.values())
    if shared * len(names) > MAX_SHARED:
        raise ArchiveError(
            f"{len(names):,} modules have {shared:,} files of code in common; the limit for modules times files is "
            f"{MAX_SHARED:,} "
        )
    tir = tuple(path for path in known if _TIR.fullmatch(path))
    single = {"graph": layout.graph, "vm": layout.vm, "relay": layout.relay}
    single["source_params"] = source_params_path("{module}")
    found = {}
    for name in modules:
        files: dict[str, Any] = {kind: item.of(name) for kind, item in owned.items()}
        places = {key: place and place.format(module=name) for key, place in single.items()}
        files |= {key: place for key, place in places.items() if place in present}
        params = next((path for form in _PARAMS_FORMS if (path := f"parameters/{name}{form}") in present), None)
        found[name] = ModuleFiles(**files, params=params, tir=tir)
    return found


def header_path(module: str) -> str:
    """Return the path of the module's C interface."""
    return f"{HEADERS}/tvmgen_{module.lower()}.h"


class _Owned:
    """Files of one kind by owning module; a file with the names of two modules belongs to neither."""

    def __init__(self) -> None:
        self.shared: list[str] = []
        self._own: dict[str, list[str]] = {}

    def add(self, path: str, bearers: set[str]) -> None:
        """Add a file with the names of these modules."""
        if not bearers:
            self.shared.append(path)
        elif len(bearers) == 1:
            self._own.setdefault(next(iter(bearers)), []).append(path)

    def of(self, module: str) -> tuple[str, ...]:
        """Return the module's files and shared ones, sorted."""
        return tuple(sorted((*self.shared, *self._own.get(module, ()))))


def _bearers(path: str, modules: set[str], mark: re.Pattern[str]) -> set[str]:
    """Return the modules for which the file's name starts with their name, the mark and a number."""
    name = path.rpartition("/")[2]
    found = {name[: match.start()] for match in mark.finditer(name, 0, _LONGEST_MODULE_NAME + _LONGEST_MARK)}
    return found & modules

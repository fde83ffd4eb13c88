"""Where things lie in a Model Library Format archive, in every version and form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from mlforge.archive.model import FULL_MODEL, OPERATOR, RFC, TVM, ModuleFiles

VERSION: Final = 7
METADATA: Final = "metadata.json"
CODEGEN: Final = "codegen"
CODE: Final = "codegen/host"
SOURCES: Final = "codegen/host/src"
OBJECTS: Final = "codegen/host/lib"
HEADERS: Final = "codegen/host/include"
# the table of the functions of several graph modules, which refers to the code of all
REGISTRY: Final = "codegen/host/src/mlforge_shared_registry.c"

# a name becomes part of file names, so it may hold nothing that a path gives a meaning to
_MODULE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_RFC_METADATA = re.compile(r"metadata-(0|[1-9][0-9]{0,3})\.json")


@dataclass(frozen=True)
class Layout:
    """The places that differ between versions; ``{module}`` stands for the module's name.

    Attributes
    ----------
    metadata : str
    code : str
        What names of code files begin with: a number and an extension follow.
    relay, graph, params : str or None
        Files; None where the style has none.
    runtime : str
        The folder of the C runtime.
    """

    metadata: str
    code: str
    relay: str | None
    graph: str | None
    params: str | None
    runtime: str = "runtime"


# each version as what changed since the one before
_1 = Layout(METADATA, "lib", "relay.txt", "runtime-config/graph/graph.json", "parameters/{module}.params")
_3 = replace(_1, code="{module}_lib")
_4 = replace(_3, relay="src/relay.txt")
_5 = replace(_4, graph="executor-config/graph/graph.json")
_7 = replace(_5, relay="src/{module}.relay", graph="executor-config/graph/{module}.graph")
_FULL_MODEL: Final[Mapping[int, Layout]] = {1: _1, 2: _1, 3: _3, 4: _4, 5: _5, 6: _5, 7: _7}
_OPERATOR = Layout(METADATA, "lib", None, None, None)
OPERATOR_VERSIONS: Final = (4, 5, 6, 7)


def layout_of(version: int, form: str = TVM, style: str = FULL_MODEL) -> Layout:
    """Return the places of an archive of version 1 to 7."""
    if form == RFC:
        return replace(_1, metadata=f"metadata-{version}.json", runtime="crt")
    return _OPERATOR if style == OPERATOR else _FULL_MODEL[version]


def find_metadata(paths: Iterable[str]) -> tuple[str, str] | None:
    """Return the path of the metadata among these files and the form of archive that it tells; None without any.

    The proposal numbers the file by version, so that an archive may serve readers of several ages: the highest that
    we know counts.
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


def is_module_name(name: str) -> bool:
    """Tell whether a module may have this name in an archive."""
    return _MODULE_NAME.fullmatch(name) is not None


def relay_path(module: str) -> str:
    """Return the path of the module's source as Relay text."""
    return f"src/{module}.relay"


def params_path(module: str) -> str:
    """Return the path of the parameters that the executor loads: an empty dictionary for AOT."""
    return f"parameters/{module}.params"


def source_params_path(module: str) -> str:
    """Return the path of the model's own weights under their own names."""
    return f"src/{module}.params"


def graph_path(module: str) -> str:
    """Return the path of the graph executor's JSON."""
    return f"executor-config/graph/{module}.graph"


def moved(path: str, module: str, old: Layout, new: Layout) -> str:
    """Return where a file of an archive of one module lies in another layout; the same path where both agree.

    Code files are renamed with all that their names begin: a ``.S`` file finds its constants under its own name and
    ``.bin``. Headers stay, for code includes them by name.
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


def module_files(module: str, modules: Iterable[str], paths: Iterable[str], layout: Layout) -> ModuleFiles:
    """Return which files of an archive belong to one module.

    Parameters
    ----------
    module : str
    modules : iterable of str
        The names of all modules of the archive. Code that bears the name of another one is not this module's; code
        that bears no module's name is everyone's.
    paths : iterable of str
        All files.
    layout : Layout
    """
    known = sorted(paths)
    others = {*modules} - {module}
    headers_of_others = {header_path(other) for other in others}
    device_code = [path for path in _inside(known, CODEGEN) if not path.startswith(f"{CODE}/")]
    return ModuleFiles(
        sources=_without(_inside(known, SOURCES), others, "_lib"),
        objects=_without(_inside(known, OBJECTS), others, "_lib"),
        headers=tuple(path for path in _inside(known, HEADERS) if path not in headers_of_others),
        devices=_without(device_code, others, "_mod"),
        graph=_present(known, layout.graph, module),
        params=next(
            (path for form in (".params", ".json", ".bson") if (path := f"parameters/{module}{form}") in known), None
        ),
        relay=_present(known, layout.relay, module),
        source_params=_present(known, source_params_path("{module}"), module),
        tir=tuple(path for path in known if re.fullmatch(r"src/tir-[0-9]{1,4}\.txt", path)),
    )


def header_path(module: str) -> str:
    """Return the path of the module's C interface."""
    return f"{HEADERS}/tvmgen_{module.lower()}.h"


def _present(paths: list[str], place: str | None, module: str) -> str | None:
    path = place and place.format(module=module)
    return path if path in paths else None


def _inside(paths: list[str], folder: str) -> list[str]:
    return [path for path in paths if path.startswith(f"{folder}/")]


def _without(paths: list[str], modules: set[str], mark: str) -> tuple[str, ...]:
    """Leave out files that bear the name of one of these modules, the mark and a number."""
    numbered = re.compile(rf"{mark}[0-9]+\.")

    def is_left(path: str) -> bool:
        name = path.rpartition("/")[2]
        return not any(name[: found.start()] in modules for found in numbered.finditer(name))

    return tuple(filter(is_left, paths))

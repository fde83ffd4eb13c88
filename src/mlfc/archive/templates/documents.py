"""Files of an archive beside its code: README.md, Makefile, CMakeLists.txt, and a demo with test vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.archive.read.layout import CODE, CODEGEN, HEADERS, OBJECTS, SOURCES, VERSION
from mlfc.archive.templates import render, text_of
from mlfc.archive.templates.subject import TemplateSubject, given_pools
from mlfc.byoc.generator import supply_of
from mlfc.codegen.c_types import HALF_FLOATS, literal
from mlfc.codegen.templates import LICENCE
from mlfc.crt import TRACE_HEADER
from mlfc.memory.plan import DEFAULT_POOL
from mlfc.support import dtypes
from mlfc.support.version import __version__

FOLDER = "demo"
_SOURCES = (".c", ".S")
_OBJECT = ".o"
# target names that CMake reserves
_RESERVED = {"all", "clean", "depend", "edit_cache", "help", "install", "package", "rebuild_cache", "test"}
_RUNTIME_PARTS = ("common", "graph_executor", "memory")
_OBJECTS = "build"
_SHOWN_DIGITS = 12
_FILES = (
    (SOURCES, "generated C: entry and workspace in `lib0`, operators and constants behind it"),
    (OBJECTS, "objects: entry and workspace in `lib0`, operators and constants behind it"),
    (HEADERS, "its headers: what your program includes"),
    ("codegen", "what devices and external code generators have, a folder each"),
    ("parameters", "weights that an executor loads; empty for modules compiled ahead of time"),
    ("executor-config/vm", "descriptions of dynamic models: inputs, outputs, dimensions, memory"),
    ("executor-config", "the graph executor's graphs"),
    ("runtime", "the C runtime: headers and sources that microTVM's firmware knows, and its graph executor"),
    ("templates", "a configuration and a platform of the runtime, to be filled in for a board"),
    (FOLDER, "the demo, with its test vectors"),
    ("src", "the model as Relay text and its weights: what compiling for another target takes"),
)
VECTORS = "_vectors.c"
"""Suffix of a file with a module's test vectors."""

_PER_LINE = 16


@dataclass(frozen=True)
class BuildPlan:
    """Files to compile, by path in the archive."""

    name: str  # of the library
    # sources of the modules, their objects from LLVM or an external generator, and sources of the runtime
    # if the modules need it
    library: tuple[str, ...]
    demo: tuple[str, ...]  # sources of the demo, and of a runtime platform for the host
    headers: tuple[str, ...]  # generated headers
    binaries: tuple[str, ...]  # included by sources, but not headers
    includes: tuple[str, ...]  # folders to search for headers
    runtime: str | None  # the folder of the C runtime; None for modules that do not need it
    # of all compiled files. Members of archives have old times, so make would treat objects of a previous extraction to
    # this folder as up to date: the objects of different content are in different folders.
    digest: str

    @property
    def folder(self) -> str:
        """Folder of the Makefile's objects."""
        return f"{_OBJECTS}/{self.digest[:_SHOWN_DIGITS]}"

    @property
    def has_vectors(self) -> bool:
        """True if the demo has test vectors."""
        return any(path.endswith(VECTORS) for path in self.demo)

    @property
    def has_sources(self) -> bool:
        """True if the library has sources: CMake cannot infer the language of objects alone."""
        return any(path.endswith(_SOURCES) for path in self.library)

    @property
    def has_assembly(self) -> bool:
        """True if the library has assembler sources."""
        return any(path.endswith(".S") for path in self.library)

    def object_of(self, path: str) -> str:
        """Return the object of a source, named after its folder too, so that names are unique."""
        return f"{self.folder}/{'_'.join(PurePosixPath(path).parent.parts)}_{PurePosixPath(path).stem}.o"


def build_plan(name: str, paths: Iterable[str], runtime: str | None, digest: str) -> BuildPlan:
    """Sort an archive's files into those of the library and those of the demo.

    `runtime`: the folder of the C runtime, for modules that call it.
    """
    ordered = sorted(paths)
    library, demo = [f"{CODEGEN}/"], [f"{FOLDER}/"]
    if runtime is not None:
        library += [f"{runtime}/src/runtime/crt/{part}/" for part in _RUNTIME_PARTS]
        demo.append(f"{runtime}/host/")

    def sources(folders: Sequence[str]) -> tuple[str, ...]:
        return tuple(path for path in ordered if path.startswith(tuple(folders)) and path.endswith(_SOURCES))

    return BuildPlan(
        name,
        (*(path for path in ordered if path.startswith(f"{CODEGEN}/") and path.endswith(_OBJECT)), *sources(library)),
        sources(demo),
        tuple(path for path in ordered if path.startswith((f"{HEADERS}/", f"{FOLDER}/")) and path.endswith(".h")),
        tuple(path for path in ordered if path.startswith(f"{CODE}/") and path.endswith(".bin")),
        # tracing code needs one header of the runtime, even if it does not need the runtime
        (HEADERS, *sorted({str(PurePosixPath(path).parent) for path in ordered if path.endswith(f"/{TRACE_HEADER}")})),
        runtime,
        digest,
    )


def makefile(plan: BuildPlan) -> str:
    """Return the Makefile."""
    return render("Makefile", plan=plan)


def cmake_target(name: str) -> str:
    """Return the CMake target name of a library, different from CMake's reserved names."""
    return f"{name}_model" if name in _RESERVED else name


def cmake_lists(plan: BuildPlan) -> str:
    """Return CMakeLists.txt."""
    return render("CMakeLists.txt", plan=plan, target=cmake_target(plan.name))


def readme(subjects: Sequence[TemplateSubject], paths: Iterable[str], library: str | None, date: str) -> str:
    """Return the text of README.md; `paths` are the other members, `library` is built by the Makefile, if any."""
    known = list(paths)
    return render(
        "README.md",
        what="A compiled model" if len(subjects) == 1 else f"{len(subjects)} compiled models",
        title=", ".join(item.name for item in subjects[:8]) + (", ..." if len(subjects) > 8 else ""),
        version=VERSION,
        writer=__version__,
        date=date,
        subjects=subjects,
        llvm_targets=list(dict.fromkeys(item.target for item in subjects if item.target.startswith("llvm"))),
        library=library,
        runtime=any(path.startswith("runtime/") for path in known),
        folders=list(_folders(known)),
        supply_of=supply_of,
    )


def _folders(paths: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Yield the folders in the archive with their descriptions; a file belongs to the first folder that matches."""
    taken: set[str] = set()
    for folder, what in _FILES:
        found = [path for path in paths if path not in taken and path.startswith(f"{folder}/")]
        taken.update(found)
        if found:
            yield folder, what


def demo_files(subjects: Sequence[TemplateSubject]) -> dict[str, bytes]:
    """Return the demo's files by path in the archive."""
    graphs, loads_pools = any(item.is_graph for item in subjects), any(item.loaded for item in subjects)
    program = render(
        "demo.c",
        subjects=subjects,
        functions=[module_function(item, checked=bool(item.vectors)) for item in subjects],
        graphs=graphs,
        loads_pools=loads_pools,
        reads_files=graphs or loads_pools,
    )
    files = {"demo.c": program.encode(), **check_files()}
    for name, needed in (("graph_runner", graphs), ("pool_loader", loads_pools)):
        if needed:
            files.update({f"{name}{suffix}": text_of(f"{name}{suffix}").encode() for suffix in (".c", ".h")})
    # inputs of modules, and the outputs that their code computed during the export
    for item in (item for item in subjects if item.vectors):
        for name, template in zip(vector_names(item.name), ("vectors.h", "vectors.c"), strict=True):
            files[name] = render(template, item=item, licence=LICENCE, rows=_rows).encode()
    return {f"{FOLDER}/{name}": data for name, data in files.items()}


def check_files() -> dict[str, bytes]:
    """Return the C that compares tensors, by name; it prints through a function of the program."""
    names = ("tensor_check.c", "tensor_check.h", "tensor_text.c", "tensor_text.h")
    return {name: text_of(name).encode() for name in names}


def module_function(item: TemplateSubject, *, checked: bool, embedded: bool = False) -> str:
    """Return the C function ``demo_<module>``, which runs a module on its test vectors, or on zeros unless `checked`.

    In an `embedded` program, which has no files, their contents are part of the code.
    """
    given = given_pools(item) if item.is_aot and embedded else ()
    values: dict[str, Any] = {"given": given, "checked": checked, "embedded": embedded, "default_pool": DEFAULT_POOL}
    return render("demo_vm.c" if item.is_vm else "demo_module.c", item=item, **values)


def vector_names(module: str) -> tuple[str, str]:
    """Return the names of the header and of the C file with a module's test vectors."""
    return f"{module}_vectors.h", f"{module}{VECTORS}"


def vector_paths(module: str) -> tuple[str, ...]:
    """Return the paths of a module's test vectors in an archive; empty if it has none."""
    return tuple(f"{FOLDER}/{name}" for name in vector_names(module))


def _rows(array: npt.NDArray[Any], dtype: str) -> list[str]:
    """Return the elements as C literals; narrow dtypes and half floats as their bits."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtypes.is_narrow(dtype) or dtype in HALF_FLOATS:
        flat = flat.view(np.uint8 if dtypes.is_narrow(dtype) else np.uint16)
        dtype = flat.dtype.name
    is_small = dtype in ("int8", "uint8", "int16", "uint16", "bool")
    texts = [str(int(number)) if is_small else literal(number, dtype) for number in flat.tolist()] or ["0"]
    return [", ".join(texts[start : start + _PER_LINE]) for start in range(0, len(texts), _PER_LINE)]

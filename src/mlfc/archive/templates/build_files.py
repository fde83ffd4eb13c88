"""Makefile and CMakeLists.txt of an archive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from mlfc.archive.read.layout import CODE, CODEGEN, HEADERS
from mlfc.archive.templates import filled, listed
from mlfc.archive.templates.demo import FOLDER
from mlfc.archive.templates.vectors import VECTORS
from mlfc.crt import TRACE_HEADER

_SOURCES = (".c", ".S")
_OBJECT = ".o"
# names that CMake keeps for targets of its own
_RESERVED = {"all", "clean", "depend", "edit_cache", "help", "install", "package", "rebuild_cache", "test"}
_RUNTIME_PARTS = ("common", "graph_executor", "memory")
_OBJECTS = "build"
_SHOWN_DIGITS = 12


@dataclass(frozen=True)
class BuildPlan:
    """What is compiled, by path in the archive."""

    name: str  # of the library
    # sources of the modules, their objects where LLVM or an external generator made some, and sources of the runtime
    # where they need it
    library: tuple[str, ...]
    demo: tuple[str, ...]  # sources of the demo, and of a platform for the runtime on the host
    headers: tuple[str, ...]  # generated headers
    binaries: tuple[str, ...]  # what sources include beside headers
    includes: tuple[str, ...]  # folders that are searched for headers
    runtime: str | None  # the folder of the C runtime; None for modules that need none
    # of all that is compiled. Members of archives have old times, so make would take objects of what was extracted
    # here before for new ones: those of another content lie in another folder.
    digest: str


def build_plan(name: str, paths: Iterable[str], runtime: str | None, digest: str) -> BuildPlan:
    """Sort an archive's files into what a library and a demo are made of."""
    ordered = sorted(paths)
    library, demo = [f"{CODEGEN}/"], [f"{FOLDER}/"]
    if runtime is not None:
        library += [f"{runtime}/src/runtime/crt/{part}/" for part in _RUNTIME_PARTS]
        demo.append(f"{runtime}/host/")

    def sources(folders: Sequence[str]) -> tuple[str, ...]:
        return tuple(
            path for path in ordered if path.startswith(tuple(folders)) and PurePosixPath(path).suffix in _SOURCES
        )

    return BuildPlan(
        name,
        (*(path for path in ordered if path.startswith(f"{CODEGEN}/") and path.endswith(_OBJECT)), *sources(library)),
        sources(demo),
        tuple(path for path in ordered if path.startswith((f"{HEADERS}/", f"{FOLDER}/")) and path.endswith(".h")),
        tuple(path for path in ordered if path.startswith(f"{CODE}/") and path.endswith(".bin")),
        # code that traces needs one header of the runtime, whether or not it needs the runtime
        (HEADERS, *sorted({str(PurePosixPath(path).parent) for path in ordered if path.endswith(f"/{TRACE_HEADER}")})),
        runtime,
        digest,
    )


def makefile(plan: BuildPlan) -> str:
    """Return the Makefile."""
    folders, config = list(plan.includes), ""
    if plan.runtime is not None:
        folders.append("$(CRT_CONFIG)")
        config = (
            f"# the folder of crt_config.h: how large the runtime's tables are\nCRT_CONFIG ?= {plan.runtime}/host\n"
        )
    values = {
        "library": f"lib{plan.name}.a",
        "config": config,
        "includes": "".join(f" -I{folder}" for folder in folders),
        "headers": _continued(plan.headers),
        "objects": _continued([_object(plan, path) for path in plan.library]),
        "selftest": _selftest(plan),
        "demo_objects": _continued([_object(plan, path) for path in plan.demo]),
        "rules": "\n".join(_rule(plan, path) for path in (*plan.library, *plan.demo)),
    }
    return filled("Makefile.in", values)


def _selftest(plan: BuildPlan) -> str:
    if any(path.endswith(VECTORS) for path in plan.demo):
        return "selftest: test"
    return 'selftest:\n\t@echo "there are no test vectors: compile the model with --test-vectors N" >&2; exit 2'


def _continued(items: Sequence[str]) -> str:
    return "".join(f" \\\n  {item}" for item in items)


def _folder(plan: BuildPlan) -> str:
    return f"{_OBJECTS}/{plan.digest[:_SHOWN_DIGITS]}"


def _object(plan: BuildPlan, path: str) -> str:
    """Return the object of a source, named after its folder too, so that no two names meet."""
    folder = PurePosixPath(path).parent
    return f"{_folder(plan)}/{'_'.join(folder.parts)}_{PurePosixPath(path).stem}.o"


def _rule(plan: BuildPlan, path: str) -> str:
    if path.endswith(_OBJECT):  # a copy is new, whenever what is copied was made
        return f"{_object(plan, path)}: {path}\n\t@mkdir -p {_folder(plan)}\n\tcp {path} $@\n"
    inputs = [path, *(binary for binary in plan.binaries if binary == f"{path}.bin")]
    target = _object(plan, path)
    return f"{target}: {' '.join(inputs)} $(HEADERS)\n\t@mkdir -p {_folder(plan)}\n\t$(CC) $(FLAGS) -c -o $@ {path}\n"


def cmake_target(name: str) -> str:
    """Return the name of a library's target for CMake, which keeps some for targets of its own."""
    return f"{name}_model" if name in _RESERVED else name


def cmake_lists(plan: BuildPlan) -> str:
    """Return CMakeLists.txt."""
    target = cmake_target(plan.name)
    assembler = any(path.endswith(".S") for path in plan.library)
    folders, setting = list(plan.includes), ""
    if plan.runtime is not None:
        folders.append("${CRT_CONFIG}")
        place = f"${{CMAKE_CURRENT_SOURCE_DIR}}/{plan.runtime}/host"
        setting = f'set(CRT_CONFIG "{place}" CACHE PATH "Folder of crt_config.h")\n'
    values = {
        "target": target,
        "project": f"{target}_archive",
        "languages": "C ASM" if assembler else "C",
        "option": f"{target.upper()}_DEMO",
        "settings": setting,
        "sources": listed(plan.library, "  "),
        # which CMake cannot tell from objects
        "linker": "" if any(path.endswith(_SOURCES) for path in plan.library) else " LINKER_LANGUAGE C",
        "folders": listed(folders, "  "),
        "demo_sources": listed(plan.demo, "    "),
    }
    return filled("CMakeLists.txt.in", values)

"""README.md of an archive: what it is, what it needs, how it is built and called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlfc.archive.read.layout import HEADERS, OBJECTS, SOURCES, VERSION
from mlfc.archive.templates import render
from mlfc.archive.templates.demo import FOLDER
from mlfc.archive.templates.subject import Subject
from mlfc.byoc.generator import supply_of
from mlfc.support.version import __version__

_FILES = (
    (SOURCES, "generated C: entry and workspace in `lib0`, operators and constants behind it"),
    (OBJECTS, "objects: entry and workspace in `lib0`, operators and constants behind it"),
    (HEADERS, "its headers: what your program includes"),
    ("codegen", "what devices and external code generators have, a folder each"),
    ("parameters", "weights that an executor loads; empty for modules compiled ahead of time"),
    ("executor-config", "the graph executor's graphs"),
    ("runtime", "the C runtime: headers and sources that microTVM's firmware knows, and its graph executor"),
    ("templates", "a configuration and a platform of the runtime, to be filled in for a board"),
    (FOLDER, "the demo, with its test vectors"),
    ("src", "the model as Relay text and its weights: what compiling for another target takes"),
)


def readme(subjects: Sequence[Subject], paths: Iterable[str], library: str | None, date: str) -> str:
    """Return the text.

    `paths`: the archive's other members.
    `library`: file name of the static library that the Makefile makes; None without a Makefile.
    """
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
    """Yield the folders that there are, with their descriptions; a file is in the first that has it."""
    taken: set[str] = set()
    for folder, what in _FILES:
        found = [path for path in paths if path not in taken and path.startswith(f"{folder}/")]
        taken.update(found)
        if found:
            yield folder, what

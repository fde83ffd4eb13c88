"""Linking objects to one file: a shared library, a static one, a single object, or a tar of them."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from mlfc.errors import ToolchainError
from mlfc.library.toolchain import Compiler, has_zig, link_shared, place_binary, run_tool
from mlfc.objfile.digest import add_digest
from mlfc.objfile.exports import exports
from mlfc.objfile.head import OBJECT, read_head
from mlfc.support.atomic import atomic_file
from mlfc.support.content import ArrayContent, FileContent
from mlfc.support.platforms import this_platform
from mlfc.support.tar import source_date, write_tar

_C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def link(
    objects: Sequence[Path],
    target: Path,
    flags: Sequence[str],
    compiler: Compiler,
    constants: Sequence[ArrayContent],
) -> None:
    """Make the kind of file that the target's suffix asks for, by default a shared library."""
    suffix = target.suffix.lower()
    folder = objects[0].parent  # of the objects, which are all ours
    if suffix == ".tar":
        write_object_tar(objects, target)
    elif suffix == ".a":
        # D: no times and no owners, so the same objects give the same bytes
        run_tool([*_archiver(compiler), "rcsD", "linked.a", *(path.name for path in objects)], folder)
        place_binary(folder / "linked.a", target, executable=False)
    elif suffix == ".o":
        built = folder / "linked.o"
        run_tool([*compiler.command, "-r", "-nostdlib", *flags, "-o", str(built), *map(str, objects)], folder)
        place_binary(built, target, executable=False)
    else:
        # the name of a library for Windows or macOS goes into it
        name = target.name if target.suffix else f"{target.name}{compiler.platform().suffix}"
        linked = list(objects)
        if compiler.system == "windows":
            linked.append(write_exports(objects, folder / "exports.def"))
        library = link_shared(linked, folder / name, flags, compiler)
        add_digest(library, constants)
        place_binary(library, target)


def write_object_tar(files: Sequence[Path], target: Path) -> None:
    """Write files under their bare names into a tar compressed with gzip, the same bytes each time."""
    seconds = source_date()
    with atomic_file(target) as file, gzip.GzipFile("", "wb", 6, file, seconds) as packed:
        write_tar(cast("BinaryIO", packed), {path.name: FileContent(path) for path in files}, seconds)


def _archiver(compiler: Compiler) -> list[str]:
    """Return the archiver: of ``$AR``, else ``ar`` for this machine's objects, else that of the ziglang wheel."""
    chosen = os.environ.get("AR", "").strip()
    if chosen:
        return shlex.split(chosen)
    found = shutil.which("ar")
    if found and not compiler.is_zig and compiler.platform().arch == this_platform().arch:
        return [found]
    if has_zig():
        return [sys.executable, "-m", "ziglang", "ar"]
    raise ToolchainError(
        "no archiver for static libraries found",
        place=found or "ar",
        next_step='Install binutils, or run: pip install "mlfc[cross]". Or set AR to one',
    )


def write_exports(objects: Iterable[Path], place: Path) -> Path:
    """Write the module-definition file that exports the functions and variables of objects; return `place`.

    Linkers for Windows export only what is marked in the code as soon as anything is marked.
    """
    names = sorted({name for path in objects for name in _defined(path.read_bytes())})
    place.write_text("".join(["EXPORTS\n", *(f"  {name}\n" for name in names)]), encoding="ascii")
    return place


def _defined(data: bytes) -> Iterator[str]:
    """Yield the C symbols that an object for Windows defines for others; nothing for other files."""
    head = read_head(data)
    if head is not None and (head.kind, head.system) == (OBJECT, "windows"):
        yield from (item.name for item in exports(memoryview(data)) if _C_NAME.fullmatch(item.name))

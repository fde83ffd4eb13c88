"""Objects become one file: a shared library, a static one, a single object, or a tar of them."""

from __future__ import annotations

import gzip
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, cast

from mlfc.errors import ToolchainError
from mlfc.library.toolchain import Compiler, has_zig, link_shared, place_binary, run_tool
from mlfc.library.windows_exports import write_exports
from mlfc.objfile.write.digest import add_digest
from mlfc.support.atomic import atomic_file
from mlfc.support.content import ArrayContent, FileContent
from mlfc.support.platforms import this_platform
from mlfc.support.tar import source_date, write_tar

Linker = Callable[[Sequence[Path], Path, Sequence[str], Compiler, Sequence[ArrayContent]], None]


def linker_of(target: Path) -> Linker:
    """Return what makes the file that a name asks for by its suffix; any other than those known is a shared library."""
    return _BY_SUFFIX.get(target.suffix.lower(), _shared)


def _shared(
    objects: Sequence[Path],
    target: Path,
    flags: Sequence[str],
    compiler: Compiler,
    constants: Sequence[ArrayContent],
) -> None:
    # the name of a library for Windows or macOS goes into it
    name = target.name if target.suffix else f"{target.name}{compiler.platform().suffix}"
    folder = _scratch(objects)
    linked = list(objects)
    if compiler.system == "windows":
        linked.append(write_exports(objects, folder / "exports.def"))
    library = link_shared(linked, folder / name, flags, compiler)
    add_digest(library, constants)
    place_binary(library, target)


def _relocatable(
    objects: Sequence[Path], target: Path, flags: Sequence[str], compiler: Compiler, _constants: Sequence[ArrayContent]
) -> None:
    built = _scratch(objects) / "linked.o"
    run_tool([*compiler.command, "-r", "-nostdlib", *flags, "-o", str(built), *map(str, objects)], built.parent)
    with atomic_file(target) as file, built.open("rb") as source:
        shutil.copyfileobj(source, file, 1 << 20)


def _static(
    objects: Sequence[Path], target: Path, _flags: Sequence[str], compiler: Compiler, _constants: Sequence[ArrayContent]
) -> None:
    built = _scratch(objects) / "linked.a"
    names = [path.name for path in objects]
    # D: no times and no owners, so the same objects give the same bytes
    run_tool([*_archiver(compiler), "rcsD", built.name, *names], built.parent)
    with atomic_file(target) as file, built.open("rb") as source:
        shutil.copyfileobj(source, file, 1 << 20)


def _tar(
    objects: Sequence[Path],
    target: Path,
    _flags: Sequence[str],
    _compiler: Compiler,
    _constants: Sequence[ArrayContent],
) -> None:
    write_object_tar(objects, target)


def write_object_tar(files: Sequence[Path], target: Path) -> None:
    """Write files under their bare names into a tar compressed with gzip, the same bytes each time."""
    seconds = source_date()
    with atomic_file(target) as file, gzip.GzipFile("", "wb", 6, file, seconds) as packed:
        write_tar(cast("BinaryIO", packed), {path.name: FileContent(path) for path in files}, seconds)


_BY_SUFFIX: Mapping[str, Linker] = MappingProxyType({".tar": _tar, ".a": _static, ".o": _relocatable})


def _scratch(objects: Sequence[Path]) -> Path:
    """Return a folder for what is linked: that of the objects, which are all ours."""
    return objects[0].parent


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
        next_step="Install binutils, or run: pip install ziglang. Or set AR to one",
    )

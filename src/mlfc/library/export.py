"""`export_library`: a tree of modules as one machine code file, which includes the data of its other members."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

import numpy as np

from mlfc.errors import OptionError, ToolchainError
from mlfc.library.build import BuildPart, parts_of, write_blob
from mlfc.library.cache import find_entry, store_entry
from mlfc.library.module_tree import PackedTree, pack
from mlfc.library.toolchain import (
    NATIVE,
    OBJECT_SUFFIX,
    SOURCES,
    Compiler,
    cache_key,
    compile_objects,
    cross_compiler,
    find_compiler,
    has_zig,
    link_shared,
    named_compiler,
    place_binary,
    processor_here,
    run_tool,
    scratch,
)
from mlfc.objfile.digest import add_digest, constants_in
from mlfc.objfile.exports import exports
from mlfc.objfile.head import OBJECT, read_head
from mlfc.runtime.libraries.factory import AOT, GRAPH
from mlfc.runtime.libraries.factory import KIND as SET
from mlfc.runtime.libraries.library_module import SYSTEM_LIB
from mlfc.runtime.modules.module import Module
from mlfc.runtime.modules.tvm_kinds import METADATA
from mlfc.support.atomic import atomic_file, check_writable, output_error
from mlfc.support.content import ArrayContent, Data, FileContent, write_data
from mlfc.support.platforms import EXAMPLES, Platform, parse_platform, this_platform
from mlfc.support.progress import bar, reported
from mlfc.support.tar import source_date, write_tar
from mlfc.support.temporary import TemporaryFolder
from mlfc.target.features import AUTO, LEVELS, LIBRARY_CPUS, Level

ABIS = ("classic", "ffi")
"""Calling conventions that functions of libraries may have."""

# files that users keep beside libraries
_MODELS, _TABLES = (".onnx", ".tflite", ".relay", ".mlf"), (".params", ".json", ".npz", ".npy", ".toml", ".txt", ".md")
_TEXTS, _PACKED = (".c", ".h", ".cc", ".cpp", ".py"), (".gz", ".tgz", ".xz", ".zip")
_NO_LIBRARIES = frozenset((*_MODELS, *_TABLES, *_TEXTS, *_PACKED))
# attributes that a library's description contains as well
_AHEAD_OF_TIME = (AOT, METADATA, SET)
Build: TypeAlias = Callable[..., Any]
PathLike: TypeAlias = "str | os.PathLike[str]"
_SYSTEMS_OF_SUFFIX = {".so": ("linux", "macos"), ".dylib": ("macos",), ".dll": ("windows",), ".wasm": ("wasi",)}
STATIC = (".tar", ".a", ".o")
"""Suffixes of objects, which a program links."""
_CHOICES = ("-march", "-mcpu", "-mtune", "-target", "--target")


def export_library(
    root: Module,
    path: PathLike,
    fcompile: Build | None = None,
    addons: Sequence[PathLike] = (),
    workspace_dir: PathLike | None = None,
    *,
    cc: str | None = None,
    options: Sequence[str] = (),
    target_triple: str | None = None,
    abi: Sequence[str] = ABIS,
    system_lib: bool = False,
    progress: Callable[[int, int, str], None] | bool | None = None,
) -> Path:
    """Write a tree of modules as one file.

    Parameters
    ----------
    root : Module
        Result of loading the file. Members that are code are compiled and linked, the others stored in it.
    path : path
        ``.tar``: a tar of objects; ``.a``: a static library; ``.o``: one object; anything else a shared library.
    fcompile : callable, optional
        Custom linker: ``fcompile(file, files, options=[...])``, with C and objects. Its attribute ``object_format`` is
        the suffix of objects, and ``get_target_triple()`` returns the machine that it links for.
    addons : sequence of path
        Additional sources, objects and libraries to link.
    workspace_dir : path, optional
        A folder for sources and objects, which are kept; default: a temporary one.
    cc : str, optional
        The compiler's command: ``"aarch64-linux-gnu-gcc"``. Default: ``$CC`` or a compiler on the PATH.
    options : sequence of str
        Additional flags for compiler and linker. By default, a library for this machine uses all features of its
        processor, and one for another machine those of all processors of its kind; a target's ``-mcpu`` overrides both.
        With ``-mcpu=auto`` a library has kernels for several processor levels, and processor flags are rejected.
    target_triple : str, optional
        The machine in the notation of LLVM, Debian or zig: ``aarch64-linux-gnu``. Without `cc` the ziglang wheel
        compiles.
    abi : sequence of str
        Calling conventions of its functions: ``classic``, ``ffi``.
    system_lib : bool
        Write objects for programs with TVM's C runtime, as TVM does for ``Runtime("crt", {"system-lib": True})``:
        ``lib0.o`` (function table), ``lib1.o`` (code) and ``devc.o`` (module tree), without a runtime. `path` ends in
        ``.tar``, ``.a`` or ``.o``, and `abi` has no effect.
    progress : callable or bool, optional
        Called after each source with the number compiled, the number of all, and its processor level. True: show a bar.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    OptionError
        If modules can neither be linked nor stored; the error names all of them.
    ToolchainError
        If no compiler is found, or it rejects the code.
    OutputError
        If `path` cannot be written.
    """
    target = Path(path)
    _check(target, abi, {"addons": addons, "options": options})
    trees = [_system_tree(root, target, fcompile)] if system_lib else _trees(root, abi)
    with scratch(workspace_dir), _folder(workspace_dir) as folder:
        if fcompile is None:
            wanted = None if target_triple is None else parse_platform(target_triple)
            if cc is not None:
                compiler = named_compiler(cc, wanted)
            else:
                compiler = find_compiler() if wanted is None else cross_compiler(wanted)
            machine = compiler.platform()
            _check_name(target, machine)
            is_native = NATIVE in processor_flags(compiler, "generic", options)
            parts = parts_of(trees[0], abi, machine, is_native=is_native, system_lib=system_lib)
            _check_levels(parts, options)
            with reported(progress, partial(bar, f"compiling {target.name}")) as say:
                objects = _objects(folder, compiler, options, parts, trees, addons, say, system_lib=system_lib)
            link(objects, target, options, compiler, _constants(parts, trees))
        else:
            _link_by(fcompile, folder, target, trees, abi, addons, options)
    return target


def cached_library(root: Module, abi: Sequence[str] = ABIS, key: str | None = None) -> Path:
    """Return the result of `export_library` for this machine with default options, cached; raise the same errors.

    `abi` may be empty for libraries that only mlfc loads. `key` is that of `find_entry`, by default a hash of the code.
    """
    compiler = find_compiler()
    trees = _trees(root, abi)
    machine = compiler.platform()
    parts = parts_of(trees[0], abi, machine, is_native=NATIVE in processor_flags(compiler, "generic", ()))
    if key is None:
        settings = [*compiler.command, compiler.version, *compiler.flags, processor_here()]
        files: dict[str, Data] = {f"{tree.symbol}/blob": tree.content for tree in trees if tree.is_needed}
        for number, part in enumerate(parts):
            files |= {f"{number}/{name}": data for name, data in part.files.items()}
            levels = [f"{name} {' '.join(level_flags(compiler, level))}" for name, level in sorted(part.levels.items())]
            settings += [*part.includes, *processor_flags(compiler, part.cpu, ()), *levels]
        key = cache_key(files, settings, {})
        found = find_entry(key, machine.suffix)
        if found is not None:
            return found
    with scratch(), TemporaryFolder() as folder:
        made = Path(folder, f"model{machine.suffix}")
        objects = _objects(Path(folder), compiler, (), parts, trees, (), lambda *_: None)
        link(objects, made, (), compiler, _constants(parts, trees))
        return store_entry(key, machine.suffix, FileContent(made))


def _check(target: Path, abi: Sequence[str], lists: Mapping[str, object]) -> None:
    """Raise OptionError for invalid arguments, or a suffix of other files, which could be the model itself."""
    if target.suffix.lower() in _NO_LIBRARIES:
        raise OptionError(
            f"files with the suffix '{target.suffix}' are not libraries",
            place=str(target),
            next_step="Use a name that ends in .so, .dll, .dylib, .wasm, .o, .a or .tar",
        )
    check_writable(target)
    wrong = [abi] if isinstance(abi, str) else sorted(set(abi) - set(ABIS))
    if wrong or not abi:
        raise OptionError(
            f"unknown calling convention '{', '.join(wrong)}'" if wrong else "a library needs a calling convention",
            place="abi",
            next_step=f"Pass a list of some of: {', '.join(ABIS)}",
        )
    for name, values in lists.items():
        if isinstance(values, str):
            raise OptionError(
                f"expected a list of strings, got the string '{values}'", place=name, next_step=f"Pass ['{values}']"
            )


def _check_name(target: Path, machine: Platform) -> None:
    """Raise OptionError if the name of a shared library implies another operating system."""
    others = _SYSTEMS_OF_SUFFIX.get(target.suffix, (machine.system,))
    if machine.system not in others:
        raise OptionError(
            f"the name '{target.name}' is for another system than {machine}",
            next_step=f"Name it {target.stem}{machine.suffix}, or name a machine of that system: {EXAMPLES}",
        )


def _trees(root: Module, abi: Sequence[str]) -> list[PackedTree]:
    """Return the whole tree and, for readers of tvm-ffi, the subtree that starts at the code.

    These readers do not support factories, so modules above the code would prevent them from loading the library.
    Everything else in the library is found through the first tree, regardless of calling conventions.
    """
    whole = pack(root, "classic")
    if "classic" not in abi and all(module is None or module.type_key in _AHEAD_OF_TIME for module in whole.modules):
        # a factory whose code has no functions for readers of the blob would be useless to them
        return [replace(whole, content=b"", modules=(None,), children=((),))]
    if "ffi" in abi and len(whole.code) == 1:
        return [whole, pack(whole.code[0], "ffi")]
    return [whole]


def _system_tree(root: Module, target: Path, fcompile: Build | None) -> PackedTree:
    """Return the tree of a library for TVM's C runtime; raise OptionError if the runtime cannot run a member."""
    if fcompile is not None or target.suffix.lower() not in STATIC:
        raise OptionError(
            "option system_lib excludes a linker (fcompile)"
            if fcompile is not None
            else f"option system_lib requires objects, got the library '{target.name}'",
            place="system_lib",
            next_step=f"Name a file that ends in {', '.join(STATIC)}, without fcompile",
        )
    tree = pack(root)
    others = {module.type_key for module in tree.modules if module is not None} - {GRAPH, *_AHEAD_OF_TIME}
    if others:
        raise OptionError(
            f"TVM's C runtime has no modules of the kind '{min(others)}'",
            place="system_lib",
            next_step="Compile for the CPU, with the executor graph or aot",
        )
    return tree


@contextmanager
def _folder(given: PathLike | None) -> Iterator[Path]:
    if given is None:
        with TemporaryFolder() as name:
            yield Path(name)
        return
    folder = Path(given).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise output_error(folder, error) from error
    yield folder


def _check_levels(parts: Sequence[BuildPart], options: Sequence[str]) -> None:
    """Raise OptionError if the user selects one processor for code with several processor levels."""
    chosen = [option for option in options if option.startswith(_CHOICES)]
    if chosen and any(part.cpu == AUTO for part in parts):
        raise OptionError(
            f"the target's -mcpu={AUTO} is for several processors, and '{chosen[0]}' for one",
            place="options",
            next_step="Remove one of them",
        )


def _objects(
    folder: Path,
    compiler: Compiler,
    options: Sequence[str],
    parts: Sequence[BuildPart],
    trees: Sequence[PackedTree],
    addons: Sequence[PathLike],
    say: Callable[[int, int, str], None],
    *,
    system_lib: bool = False,
) -> list[Path]:
    """Return the objects to link, in order: the user's, code as ``lib0.o``, ``lib1.o``, ... in a folder, blobs."""
    common = AUTO if any(part.cpu == AUTO for part in parts) else "generic"  # of objects outside of modules
    levels = {name: level.name for part in parts for name, level in part.levels.items()}
    total = sum(Path(name).suffix in SOURCES for part in parts for name in part.files)
    finished: list[str] = []

    def tell(name: str) -> None:
        finished.append(name)
        say(len(finished), max(total, len(finished)), levels.get(name, ""))

    def built(part: BuildPart) -> list[Path]:
        usual = processor_flags(compiler, part.cpu, options)
        own = {name: level_flags(compiler, part.levels[name]) if name in part.levels else usual for name in part.files}
        return compile_objects(
            part.files, folder, tuple(options), includes=part.includes, compiler=compiler, own_flags=own, done=tell
        )

    found: list[Path] = []
    for addon in map(Path, addons):
        if not addon.is_file():
            raise OptionError("file to link not found", place=str(addon), next_step="Look at addons")
        if addon.suffix in SOURCES:
            found += built(BuildPart({f"addons/{addon.name}": addon.read_bytes()}, ("addons",), common))
        else:
            found.append(addon.absolute())
    first = len(found)
    for part in parts:
        found += [
            path.replace(folder / f"lib{index}{OBJECT_SUFFIX}")
            for index, path in enumerate(built(part), len(found) - first)
        ]
    if system_lib:
        found[first:] = _system_objects(found[first:], compiler, options)
    for tree in trees:
        if tree.is_needed or system_lib:
            place = write_blob(tree, folder, compiler.platform())
            is_object = place.suffix == OBJECT_SUFFIX
            found += [place] if is_object else built(BuildPart({place.name: place.read_bytes()}, (), common))[:1]
    return found


def _system_objects(objects: Sequence[Path], compiler: Compiler, flags: Sequence[str]) -> list[Path]:
    """Return the objects of code as TVM's exporter names them: ``lib0.o``, the function table, and ``lib1.o``."""
    tables = [
        path for path in objects if any(item.name == SYSTEM_LIB for item in exports(np.memmap(path, mode="r").data))
    ]
    if len(tables) != 1:
        raise OptionError(
            f"expected code with one {SYSTEM_LIB}, got {len(tables)}",
            place="system_lib",
            next_step="Export the result of mlfc.build or mlfc.compile",
        )
    folder, rest = objects[0].parent, [path for path in objects if path != tables[0]]
    table = tables[0].rename(folder / f"table{OBJECT_SUFFIX}")
    code = _combine(rest, folder / f"code{OBJECT_SUFFIX}", compiler, flags)
    return [path.replace(folder / f"lib{index}{OBJECT_SUFFIX}") for index, path in enumerate((table, code))]


def _combine(objects: Sequence[Path], built: Path, compiler: Compiler, flags: Sequence[str]) -> Path:
    run_tool([*compiler.command, "-r", "-nostdlib", *flags, "-o", str(built), *map(str, objects)], built.parent)
    return built


def _written(
    folder: Path, suffix: str, machine: Platform | None, parts: Sequence[BuildPart], trees: Sequence[PackedTree]
) -> list[Path]:
    """Write parts unchanged for a user's linker; return what to link, in order: ``lib0.c``, ``lib1.o``, ..., blobs."""
    linked: list[Path] = []
    for part in parts:
        for name, data in part.files.items():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            write_data(place, data)
        for name in sorted(part.files):
            kind, number = Path(name).suffix, len(linked)
            if kind == OBJECT_SUFFIX:
                linked.append((folder / name).replace(folder / f"lib{number}{suffix}"))
            elif kind in SOURCES:  # a line that includes it from its folder
                linked.append(folder / f"lib{number}{kind}")
                linked[-1].write_text(f'#include "{name}"\n', encoding="utf-8")
    for tree in trees:
        if tree.is_needed:
            place = write_blob(tree, folder, machine)
            linked.append(place.replace(place.with_suffix(suffix)) if place.suffix == OBJECT_SUFFIX else place)
    return linked


def _link_by(
    fcompile: Build,
    folder: Path,
    target: Path,
    trees: Sequence[PackedTree],
    abi: Sequence[str],
    addons: Sequence[PathLike],
    options: Sequence[str],
) -> None:
    """Have a user's function link a library, from files in a folder."""
    suffix = f".{getattr(fcompile, 'object_format', 'o')}"
    triple = getattr(fcompile, "get_target_triple", lambda: None)()
    machine = parse_platform(triple) if triple else None
    # one call compiles all files, with the same flags
    parts = parts_of(trees[0], abi, machine, has_levels=False)
    built = folder / "linked" / target.name
    built.parent.mkdir(exist_ok=True)
    linked = [str(name) for name in (*addons, *_written(folder, suffix, machine, parts, trees))]
    includes = dict.fromkeys(str(folder / name) for part in parts for name in part.includes)
    try:
        fcompile(str(built), linked, options=[*options, *(f"-I{name}" for name in includes)])
    except OSError as error:
        raise ToolchainError(f"the linker passed as fcompile does not start: {error}", place=str(built)) from error
    if not built.is_file():
        raise ToolchainError(
            "the linker passed as fcompile did not write a file",
            place=built.name,
            next_step="It must write the file that is its first argument",
        )
    add_digest(built, _constants(parts, trees))
    place_binary(built, target)


def _constants(parts: Sequence[BuildPart], trees: Sequence[PackedTree]) -> list[ArrayContent]:
    """Return the constants of a library that its digest may leave out, in linking order."""
    data = [*(data for part in parts for data in part.files.values()), *(tree.content for tree in trees)]
    return [array for item in data for array in constants_in(item)]


def processor_flags(compiler: Compiler, cpu: str, options: Sequence[str]) -> tuple[str, ...]:
    """Return the flags that select a library's processor: that of the user's `options`, else `cpu`, the target's.

    A `cpu` that the library's machine does not support is ignored. By default, code for this machine uses every feature
    of its processor, and other code those that all processors of its kind have.
    """
    if any(option.startswith(_CHOICES) for option in options):
        return ()
    machine = compiler.platform()
    if cpu == AUTO:
        return level_flags(compiler, LEVELS.get(machine.arch).levels[0]) if machine.arch in LEVELS else ()
    if any(cpu.startswith(start) and machine.arch == LIBRARY_CPUS.get(start) for start in LIBRARY_CPUS):
        if compiler.is_zig:
            return (f"-mcpu={cpu.replace('-', '_')}",)
        name, *more = cpu.split("+")
        return (f"-march={name}", *(f"-m{item}" for item in more)) if machine.arch == "x86_64" else (f"-mcpu={cpu}",)
    if machine.arch in LEVELS and (named := [each for each in LEVELS.get(machine.arch).levels if each.name == cpu]):
        return level_flags(compiler, named[0])
    here = this_platform()
    if compiler.target is None and (machine.arch, machine.system) == (here.arch, here.system):
        return (NATIVE,)
    return ()


def level_flags(compiler: Compiler, level: Level) -> tuple[str, ...]:
    """Return the flags for processors of a level."""
    machine = compiler.platform()
    known = LEVELS.get(machine.arch).levels if machine.arch in LEVELS else ()
    if level not in known:  # the file is empty in this case
        return ()
    return (*((f"-mcpu={level.zig}",) if compiler.is_zig else level.flags), *level.both)


_C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def link(
    objects: Sequence[Path], target: Path, flags: Sequence[str], compiler: Compiler, constants: Sequence[ArrayContent]
) -> None:
    """Create a file of the kind implied by the target's suffix, by default a shared library."""
    suffix = target.suffix.lower()
    folder = objects[0].parent  # of the objects, which are all ours
    if suffix == ".tar":
        seconds = source_date()
        with atomic_file(target) as file, gzip.GzipFile("", "wb", 6, file, seconds) as packed:
            # under their file names, which makes the bytes reproducible
            write_tar(cast("BinaryIO", packed), {path.name: FileContent(path) for path in objects}, seconds)
    elif suffix == ".a":
        # D: no times or owners, so equal objects produce equal bytes
        run_tool([*_archiver(compiler), "rcsD", "linked.a", *(path.name for path in objects)], folder)
        place_binary(folder / "linked.a", target, executable=False)
    elif suffix == ".o":
        place_binary(_combine(objects, folder / "linked.o", compiler, flags), target, executable=False)
    else:
        # libraries for Windows and macOS contain their own name
        name = target.name if target.suffix else f"{target.name}{compiler.platform().suffix}"
        linked = list(objects)
        if compiler.system == "windows":
            # with a single marked symbol in the code, linkers for Windows export only marked ones
            names = sorted({name for path in objects for name in _defined(path.read_bytes())})
            linked.append(folder / "exports.def")
            linked[-1].write_text("".join(["EXPORTS\n", *(f"  {name}\n" for name in names)]), encoding="ascii")
        library = link_shared(linked, folder / name, flags, compiler)
        add_digest(library, constants)
        place_binary(library, target)


def _archiver(compiler: Compiler) -> list[str]:
    """Return the archiver: ``$AR``, else ``ar`` for this machine's objects, else that of the ziglang wheel."""
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
        next_step='Install binutils, or run in a checkout of mlfc: pip install ".[cross]". Or set AR to one',
    )


def _defined(data: bytes) -> Iterator[str]:
    """Yield the C symbols that a Windows object exports; none for other files."""
    head = read_head(data)
    if head is not None and (head.kind, head.system) == (OBJECT, "windows"):
        yield from (item.name for item in exports(memoryview(data)) if _C_NAME.fullmatch(item.name))

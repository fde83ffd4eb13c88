"""Finding a C compiler and building shared libraries with it, once for each content."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from mlfc.errors import OptionError, OutputError, ToolchainError
from mlfc.library.cache import cache_folder, find_entry, store_entry
from mlfc.support.atomic import atomic_file, output_error, temporary_error
from mlfc.support.content import Data, FileContent, sha256_of, write_data
from mlfc.support.platforms import Platform, parse_platform
from mlfc.support.tar import source_date

_JOBS = 2
_MESSAGE_LINES = 12
SOURCES = (".c", ".S")
"""Suffixes of what is compiled."""
OBJECT_SUFFIX = ".o"
_GCC = "Free Software Foundation"  # in what gcc says of itself, whatever it is called
_ZIG = ("-m", "ziglang", "cc")  # behind the Python that has the wheel
# what makes a library of objects, by system: on Linux it calls its own runtime, even where the process has one with
# the same symbols; on macOS functions of tvm-ffi may be missing until it is loaded; callers of wasm allocate in it
_SHARED = {
    "linux": ("-shared", "-Wl,-Bsymbolic"),
    "windows": ("-shared",),
    "macos": ("-shared", "-Wl,-undefined,dynamic_lookup"),
    "wasi": ("-mexec-model=reactor", "-Wl,--export-dynamic", "-Wl,--export=malloc", "-Wl,--export=free"),
}

FLAGS = (
    "-std=c99",
    "-O3",
    "-fPIC",
    # nobody reads errno or floating-point flags: square roots and rounding become instructions, selects vectorize
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=default",
)
NATIVE = "-march=native"
"""For libraries that run where they are built."""


@dataclass(frozen=True)
class Compiler:
    """A C compiler.

    Attributes
    ----------
    command : tuple of str
        How it is called.
    version : str
        What it says of itself.
    target : Platform, optional
        What it was asked to build for; None for what it builds for by itself.
    """

    command: tuple[str, ...]
    version: str
    target: Platform | None = None

    @property
    def is_zig(self) -> bool:
        """Whether it is that of the ziglang wheel."""
        return self.command[1 : 1 + len(_ZIG)] == _ZIG

    @property
    def flags(self) -> tuple[str, ...]:
        """`FLAGS`, and fused multiply-adds: twice the speed and a smaller error, but -std=c99 alone turns them off.

        Modules that need every product rounded forbid them by a pragma. Clang obeys it only with ``on``, which
        means off to gcc; gcc obeys it with ``fast`` too. Tuned for some of AMD's processors, gcc would leave sums that
        are carried through a loop unfused: results would depend on where code was compiled.
        """
        # WebAssembly's modules are placed by whoever instantiates them
        plain = [flag for flag in FLAGS if flag != "-fPIC" or self.system != "wasi"]
        # zig adds information for debuggers, with the names of folders, unless it is told not to
        debug = ("-g0",) if self.is_zig else ()
        everywhere = ("--param=avoid-fma-max-bits=0",) if _GCC in self.version else ()
        return (*plain, *debug, f"-ffp-contract={'on' if 'clang' in self.version else 'fast'}", *everywhere)

    @property
    def shared_flags(self) -> tuple[str, ...]:
        """What makes it link a shared library."""
        return (*_SHARED[self.system], *(("-s",) if self.is_zig else ()))

    @property
    def system(self) -> str:
        """The system that it builds for, in `Platform`'s words."""
        if self.target is not None:
            return self.target.system
        return {"win32": "windows", "darwin": "macos"}.get(sys.platform, "linux")

    def platform(self) -> Platform:
        """Return what it builds for, as it says itself if nobody asked it.

        Raises
        ------
        ToolchainError
            If it does not say.
        """
        return self.target or _own_platform(self.command)


def find_compiler() -> Compiler:
    """Return the C compiler: of ``$CC``, else ``cc``, ``gcc`` or ``clang`` on the PATH, else of the ziglang wheel.

    Raises
    ------
    ToolchainError
        If there is none, or the one of ``$CC`` does not run.
    """
    return _find(os.environ.get("CC", "").strip(), os.environ.get("PATH", ""))


@cache
def _find(chosen: str, path: str) -> Compiler:
    if chosen:
        try:
            command = tuple(shlex.split(chosen))
        except ValueError:  # a quotation mark without its other half
            command = (chosen,)
        version = _version(command)
        if version is None:
            raise ToolchainError(
                f"the compiler '{chosen}' of the environment variable CC does not run",
                next_step="Set CC to a C compiler, or unset it",
            )
        return Compiler(command, version)
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name, path=path)
        version = _version((found,)) if found else None
        if found and version is not None:
            return Compiler((found,), version)
    if has_zig():
        command = (sys.executable, *_ZIG)
        version = _version(command)
        if version is not None:
            return Compiler(command, version)
    raise ToolchainError(
        "no C compiler found: neither CC, cc, gcc, clang nor the ziglang package",
        next_step="Install gcc or clang, or run: pip install ziglang",
    )


def cross_compiler(target: Platform) -> Compiler:
    """Return the ziglang wheel's compiler for another machine.

    Raises
    ------
    ToolchainError
        If the wheel is not there or does not run.
    """
    command = (sys.executable, *_ZIG)
    version = _zig_version(command) if has_zig() else None
    if version is None:
        raise ToolchainError(
            f"there is no compiler for {target}: the ziglang package, which builds for all machines, is not there",
            next_step="Run: pip install ziglang. Or name a compiler of yours: cc='aarch64-linux-gnu-gcc'",
        )
    return Compiler((*command, "-target", target.triple), version, target)


def has_zig() -> bool:
    """Tell whether the ziglang wheel is installed."""
    return importlib.util.find_spec("ziglang") is not None


@cache
def _zig_version(command: tuple[str, ...]) -> str | None:
    return _version(command)


def named_compiler(text: str, target: Platform | None = None) -> Compiler:
    """Return the compiler that a user names as a command: ``aarch64-linux-gnu-gcc``, ``clang -m32``.

    Raises
    ------
    ToolchainError
        If it does not run.
    """
    try:
        command = tuple(shlex.split(text))
    except ValueError:  # a quotation mark without its other half
        command = (text,)
    version = _version(command) if command else None
    if version is None:
        raise ToolchainError(f"the compiler '{text}' does not run", next_step="Name a C compiler that is on the PATH")
    return Compiler(command, version, target)


@cache
def _own_platform(command: tuple[str, ...]) -> Platform:
    import subprocess

    try:
        asked = subprocess.run(
            [*command, "-dumpmachine"],
            capture_output=True, text=True, timeout=60, check=True, env=_environment(command),
        )  # fmt: skip
        return parse_platform(asked.stdout)
    except (OSError, subprocess.SubprocessError, OptionError) as error:
        raise ToolchainError(
            "the compiler does not say which machine it builds for",
            place=shlex.join(command),
            next_step="Name the machine: target_triple='aarch64-linux-gnu'",
        ) from error


def _environment(command: Sequence[str]) -> dict[str, str]:
    """Return the environment of a compiler: zig spins for minutes where it cannot write its cache.

    Files for a while go where ours do, which can be written, and a time that is none, which clang refuses, is left out.
    """
    found = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    try:
        source_date()
    except OptionError:
        del found["SOURCE_DATE_EPOCH"]
    if tuple(command[1 : 1 + len(_ZIG)]) == _ZIG:
        found.setdefault("ZIG_GLOBAL_CACHE_DIR", str(cache_folder() / "zig"))
    return found


def _version(command: tuple[str, ...]) -> str | None:
    """Return what a compiler says of itself, None if it does not run.

    A plain program is asked once: as long as its file stays as it is, the answer lies in the cache. Starting it would
    take as long as everything else of loading what is in the cache.
    """
    key = _version_key(command)
    known = find_entry(key, ".txt") if key is not None else None
    if known is not None:
        with suppress(OSError, UnicodeDecodeError):
            return known.read_text(encoding="utf-8")
    import subprocess

    try:
        result = subprocess.run(
            [*command, "--version"],
            capture_output=True, text=True, timeout=60, check=False, env=_environment(command),
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    if result.returncode != 0:
        return None
    if key is not None:
        with suppress(OutputError):
            store_entry(key, ".txt", result.stdout.encode())
    return result.stdout


def _version_key(command: tuple[str, ...]) -> str | None:
    """Return the key under which the answer of a compiler that is one file is kept; None for one with arguments."""
    if len(command) != 1:
        return None
    try:
        path = Path(shutil.which(command[0]) or command[0]).resolve()
        state = path.stat()
    except OSError:
        return None
    identity = f"{command[0]}\0{path}\0{state.st_size}\0{state.st_mtime_ns}\0{state.st_ino}"
    return f"compiler-{hashlib.sha256(identity.encode()).hexdigest()[:40]}"


def compile_cached(
    files: Mapping[str, Data],
    flags: Sequence[str] = (NATIVE,),
    *,
    includes: Sequence[str] | None = None,
    digests: Mapping[str, str] | None = None,
) -> Path:
    """Return a shared library of `files` from the cache, built first if it is not there.

    Parameters
    ----------
    files, flags, includes
        As for `compile_shared`.
    digests : mapping of str to str, optional
        The SHA-256 of files for which it is known; the others are hashed.

    Notes
    -----
    The key is a hash of the files, the compiler, the flags and the processor. Processes may race: each builds in a
    folder of its own, and the last rename wins with the same content.
    """
    compiler = find_compiler()
    settings = (*compiler.command, compiler.version, *compiler.flags, *flags, *(includes or ()), _processor())
    key = _key(files, settings, digests or {})
    found = find_entry(key, ".so")
    if found is not None:
        return found
    with _built_library(files, flags, includes) as library:
        return store_entry(key, ".so", FileContent(library))


def _key(files: Mapping[str, Data], settings: Sequence[str], digests: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for part in settings:
        digest.update(part.encode() + b"\0")
    for name, data in sorted(files.items(), key=lambda item: item[0]):
        digest.update(f"{name}\0{digests.get(name) or sha256_of(data)}\0".encode())
    return digest.hexdigest()[:40]


@cache
def _processor() -> str:
    """Return what tells processors apart: a cache in a shared home must not mix their code."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                return f"{platform.machine()} {line}"
    return f"{platform.machine()} {platform.processor()}"


def compile_shared(
    files: Mapping[str, Data],
    out: str | os.PathLike[str],
    flags: Sequence[str] = (NATIVE,),
    *,
    includes: Sequence[str] | None = None,
) -> Path:
    """Compile `files` to the shared library `out`, which appears whole or not at all.

    Parameters
    ----------
    files : mapping of str to Data
        Sources, headers and what they include, by relative path; ``.c`` and ``.S`` files are compiled, ``.o`` files
        linked.
    out : path
    flags : sequence of str
        Flags beside those of the compiler.
    includes : sequence of str, optional
        Folders of `files` to search for headers; by default all.

    Raises
    ------
    ToolchainError
        If there is no compiler or it refuses the files; the message has its first lines.
    OutputError
        If `out` cannot be written.
    """
    target = Path(out)
    with _built_library(files, flags, includes) as library:
        place_binary(library, target)
    return target


@contextmanager
def _built_library(files: Mapping[str, Data], flags: Sequence[str], includes: Sequence[str] | None) -> Iterator[Path]:
    """Give the library of some files in a temporary folder."""
    with scratch(), tempfile.TemporaryDirectory(prefix="mlfc-build-") as folder:
        objects = compile_objects(files, Path(folder), flags, includes=includes)
        yield link_shared(objects, Path(folder) / "library.so", flags)


@contextmanager
def scratch(folder: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Say which folder, default that of temporary files, has no room or cannot be written, where that fails."""
    try:
        yield
    except OSError as error:
        place = error.filename or folder
        raise (temporary_error(error) if place is None else output_error(place, error)) from error


def link_shared(
    objects: Sequence[Path], library: Path, flags: Sequence[str] = (), compiler: Compiler | None = None
) -> Path:
    """Link objects to the shared library `library`, whose folder nobody else uses; return it."""
    chosen = compiler or find_compiler()
    command = [*chosen.command, *chosen.shared_flags, *flags, "-o", str(library), *map(str, objects), "-lm"]
    run_tool(command, library.parent)
    return library


def place_binary(built: Path, target: Path) -> None:
    """Copy what was built to `target`, which appears whole or not at all; a new file may be executed."""
    with atomic_file(target, executable=True) as file, built.open("rb") as source:
        shutil.copyfileobj(source, file, 1 << 20)


def compile_objects(
    files: Mapping[str, Data],
    folder: Path,
    flags: Sequence[str] = (),
    *,
    includes: Sequence[str] | None = None,
    compiler: Compiler | None = None,
) -> list[Path]:
    """Write `files` under `folder` and compile each source to an object beside it, two at a time.

    Without `compiler` it is `find_compiler`'s.

    Returns
    -------
    list of Path
        The objects in the order of their sources' names, and behind them those that were among `files`.
    """
    chosen = compiler or find_compiler()
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_data(path, data)
    places = sorted({str(PurePosixPath(name).parent) for name in files}) if includes is None else includes
    found = [f"-I{place}" for place in places]
    sources = sorted(name for name in files if PurePosixPath(name).suffix in SOURCES)

    def compile_one(name: str) -> Path:
        target = f"{name}.o"
        run_tool([*chosen.command, *chosen.flags, *flags, *found, "-c", name, "-o", target], folder)
        return folder / target

    # importing it takes longer than loading what is in the cache
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_JOBS) as pool:
        compiled = list(pool.map(compile_one, sources))
    return compiled + [folder / name for name in sorted(files) if PurePosixPath(name).suffix == OBJECT_SUFFIX]


def run_tool(command: Sequence[str], folder: Path) -> None:
    """Run a compiler or a program of its in `folder`; raise ToolchainError with its first lines if it fails."""
    import subprocess

    try:
        result = subprocess.run(
            command,
            cwd=folder, capture_output=True, text=True, errors="replace", check=False, env=_environment(command),
        )  # fmt: skip
    except OSError as error:
        raise ToolchainError(f"the compiler does not start: {error}", place=command[0]) from error
    if result.returncode != 0:
        for number in (errno.ENOSPC, errno.EDQUOT):
            if os.strerror(number) in result.stderr:
                raise temporary_error(OSError(number, os.strerror(number)))
        lines = (result.stderr or result.stdout).strip().splitlines()[:_MESSAGE_LINES]
        raise ToolchainError(
            f"the C compiler failed with status {result.returncode}:\n  " + "\n  ".join(lines),
            place=command[0],
            next_step="Try another compiler by setting CC",
        )

"""Detection of a C compiler, and builds of shared libraries that are cached by content."""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from mlfc.errors import OptionError, OutputError, ToolchainError
from mlfc.library.cache import cache_folder, find_entry, store_entry
from mlfc.support.atomic import atomic_file, output_error, temporary_error
from mlfc.support.content import Data, FileContent, sha256_of, write_data
from mlfc.support.platforms import Platform, host_arch, parse_platform
from mlfc.support.tar import source_date
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.text import first_lines

_JOBS = 2
SOURCES = (".c", ".S")
"""Suffixes of files to compile."""
OBJECT_SUFFIX = ".o"
RUNTIME = "runtime"
"""The folder of the C runtime among the files of a library."""
_GCC = "Free Software Foundation"  # in gcc's --version, even if the command has another name
_ZIG = ("-m", "ziglang", "cc")  # after the Python interpreter that has the wheel
_INSTALL_ZIG = 'pip install ".[cross]" in a checkout of mlfc'
# linker flags for a library of objects, by system: on Linux it calls its own runtime, even if the process has one with
# the same symbols; on macOS functions of tvm-ffi may be undefined until it is loaded; callers of wasm allocate in it
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
    # errno and floating-point flags are never read: square roots and rounding become instructions, selects vectorize
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=default",
    # dynamic models report their kernels' calls to callers that profile them
    "-DMLFC_LIBRARY",
)
# options that name no file, whose content the keys of cached objects would have to contain
_OF_COMMAND = ("-D", "-O", "-m")
NATIVE = "-mcpu=native" if host_arch() == "aarch64" else "-march=native"
"""Flag for libraries that run on the machine that builds them."""


@dataclass(frozen=True)
class Compiler:
    """A C compiler: its command, and its self-description."""

    command: tuple[str, ...]
    version: str
    target: Platform | None = None  # None for the compiler's default machine

    @property
    def is_zig(self) -> bool:
        """True for the ziglang wheel."""
        return self.command[1 : 1 + len(_ZIG)] == _ZIG

    @property
    def flags(self) -> tuple[str, ...]:
        """`FLAGS` and fused multiply-adds: twice as fast and more accurate, but -std=c99 alone disables them.

        Modules that need every product rounded disable them by a pragma. Clang obeys it only with ``on``, which means
        off to gcc; gcc obeys it with ``fast`` too. When tuned for some AMD processors, gcc would leave sums carried
        through a loop unfused, and results would depend on the machine that compiles.
        """
        # the host places WebAssembly modules in memory
        plain = [flag for flag in FLAGS if flag != "-fPIC" or self.system != "wasi"]
        # zig adds debug information with folder names by default
        debug = ("-g0",) if self.is_zig else ()
        everywhere = ("--param=avoid-fma-max-bits=0",) if _GCC in self.version else ()
        return (*plain, *debug, f"-ffp-contract={'on' if 'clang' in self.version else 'fast'}", *everywhere)

    @property
    def system(self) -> str:
        """The target system, by its name in `Platform`."""
        if self.target is not None:
            return self.target.system
        return {"win32": "windows", "darwin": "macos"}.get(sys.platform, "linux")

    def platform(self) -> Platform:
        """Return the machine that it builds for; raise ToolchainError if it does not report its default."""
        return self.target or _own_platform(self.command)


def find_compiler() -> Compiler:
    """Return the C compiler: ``$CC``, else ``cc``, ``gcc`` or ``clang`` on the PATH, else the ziglang wheel.

    Raises ToolchainError if none is found, or the one in ``$CC`` does not run.
    """
    return _find(os.environ.get("CC", "").strip(), os.environ.get("PATH", ""))


def has_compiler() -> bool:
    """Return True if `find_compiler` finds one; raise ToolchainError if the one in ``$CC`` does not run."""
    return bool(os.environ.get("CC", "").strip()) or _first_compiler(os.environ.get("PATH", "")) is not None


def _split(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError:  # an unmatched quotation mark
        return (text,)


@cache
def _find(chosen: str, path: str) -> Compiler:
    if chosen:
        command = _split(chosen)
        version = _version(command)
        if version is None:
            raise ToolchainError(
                f"the compiler '{chosen}' of the environment variable CC does not run",
                next_step="Set CC to a C compiler, or unset it",
            )
        return Compiler(command, version)
    compiler = _first_compiler(path)
    if compiler is None:
        raise ToolchainError(
            "no C compiler found: neither CC, cc, gcc, clang nor the ziglang package",
            next_step=f"Install gcc or clang, or run: {_INSTALL_ZIG}",
        )
    return compiler


@cache
def _first_compiler(path: str) -> Compiler | None:
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name, path=path)
        version = _version((found,)) if found else None
        if found and version is not None:
            return Compiler((found,), version)
    command = (sys.executable, *_ZIG)
    version = _version(command) if has_zig() else None
    return None if version is None else Compiler(command, version)


def cross_compiler(target: Platform) -> Compiler:
    """Return the ziglang wheel's compiler for another machine; raise ToolchainError if none runs."""
    command = (sys.executable, *_ZIG)
    version = _zig_version(command) if has_zig() else None
    if version is None:
        raise ToolchainError(
            f"no compiler for {target} found: the ziglang package, which builds for all machines, is not installed",
            next_step=f"Run: {_INSTALL_ZIG}. Or pass your own compiler: cc='aarch64-linux-gnu-gcc'",
        )
    return Compiler((*command, "-target", target.triple), version, target)


def has_zig() -> bool:
    """Return True if the ziglang wheel is installed."""
    return importlib.util.find_spec("ziglang") is not None


def named_compiler(text: str, target: Platform | None = None) -> Compiler:
    """Return the compiler of a user's command, such as ``clang -m32``; raise ToolchainError if it does not run."""
    command = _split(text)
    version = _version(command) if command else None
    if version is None:
        raise ToolchainError(f"the compiler '{text}' does not run", next_step="Name a C compiler that is on the PATH")
    return Compiler(command, version, target)


@cache
def _own_platform(command: tuple[str, ...]) -> Platform:
    try:
        return parse_platform(_answer(command, "-dumpmachine") or "")
    except OptionError as error:
        raise ToolchainError(
            "the compiler does not report its target machine",
            place=shlex.join(command),
            next_step="Pass the machine: target_triple='aarch64-linux-gnu'",
        ) from error


def _environment(command: Sequence[str]) -> dict[str, str]:
    """Return the environment of a compiler, with a writable folder for temporary files."""
    found = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    try:
        source_date()
    except OptionError:  # clang rejects an invalid time
        del found["SOURCE_DATE_EPOCH"]
    # zig spins for minutes if it cannot write its cache
    if tuple(command[1 : 1 + len(_ZIG)]) == _ZIG:
        found.setdefault("ZIG_GLOBAL_CACHE_DIR", str(cache_folder() / "zig"))
    return found


def _version(command: tuple[str, ...]) -> str | None:
    """Return a compiler's description of itself; None if it does not run."""
    # a compiler is run once until its file changes, as that takes as long as the rest of loading from the cache
    key = None
    if len(command) == 1:
        with suppress(OSError):
            path = Path(shutil.which(command[0]) or command[0]).resolve()
            state = path.stat()
            identity = f"{command[0]}\0{path}\0{state.st_size}\0{state.st_mtime_ns}\0{state.st_ino}"
            key = f"compiler-{hashlib.sha256(identity.encode()).hexdigest()[:40]}"
    known = find_entry(key, ".txt") if key is not None else None
    if known is not None:
        with suppress(OSError, UnicodeDecodeError):
            return known.read_text(encoding="utf-8")
    answer = _answer(command, "--version")
    if key is not None and answer is not None:
        with suppress(OutputError):
            store_entry(key, ".txt", answer.encode())
    return answer


_zig_version = cache(_version)


def _answer(command: tuple[str, ...], question: str) -> str | None:
    """Return the output of a compiler for an option; None if it fails."""
    import subprocess

    try:
        result = subprocess.run(
            [*command, question],
            capture_output=True, text=True, timeout=60, check=False, env=_environment(command),
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout if result.returncode == 0 else None


def compile_cached(
    files: Mapping[str, Data],
    flags: Sequence[str] = (NATIVE,),
    *,
    includes: Sequence[str] | None = None,
    digests: Mapping[str, str] | None = None,
    own_flags: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Return a shared library of `files` from the cache, built first if necessary.

    `files` are by relative path: ``.c`` and ``.S`` files are compiled, ``.o`` files linked. `includes` are folders of
    `files` to search for headers, by default all; `own_flags` are those of single files, after `flags`. Raises
    ToolchainError with the compiler's first lines.

    The key is a hash of the files (`digests` has known SHA-256s), the compiler, the flags and the processor. Processes
    may race: each builds in a private folder, and the last rename wins with the same content.
    """
    compiler = find_compiler()
    settings = (*compiler.command, compiler.version, *compiler.flags, *flags, *(includes or ()), processor_here())
    settings += tuple(f"{path} {' '.join(own)}" for path, own in sorted((own_flags or {}).items()))
    key = cache_key(files, settings, digests or {})
    found = find_entry(key, ".so")
    if found is not None:
        return found
    with scratch(), TemporaryFolder() as folder:
        objects = compile_objects(files, Path(folder), flags, includes=includes, own_flags=own_flags)
        library = link_shared(objects, Path(folder) / "library.so", flags)
        return store_entry(key, ".so", FileContent(library))


def cache_key(files: Mapping[str, Data], settings: Sequence[str], digests: Mapping[str, str]) -> str:
    """Return the hash of a build's inputs: files, whose SHA-256 may be known, and settings."""
    digest = hashlib.sha256()
    for part in settings:
        digest.update(part.encode() + b"\0")
    for name, data in sorted(files.items(), key=lambda item: item[0]):
        digest.update(f"{name}\0{digests.get(name) or sha256_of(data)}\0".encode())
    return digest.hexdigest()[:40]


@cache
def processor_here() -> str:
    """Return an identifier of this processor: a cache in a shared home must not mix code for different ones."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                return f"{platform.machine()} {line}"
    return f"{platform.machine()} {platform.processor()}"


@contextmanager
def scratch(folder: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Name the folder, by default that of temporary files, in errors of writing to it."""
    try:
        yield
    except OSError as error:
        place = error.filename or folder
        raise (temporary_error(error) if place is None else output_error(place, error)) from error


def link_shared(
    objects: Sequence[Path], library: Path, flags: Sequence[str] = (), compiler: Compiler | None = None
) -> Path:
    """Link objects to the shared library `library`, whose folder is private; return it."""
    chosen = compiler or find_compiler()
    # zig compiles its runtime when it first links for a system: -O2 makes it small, in half the time
    shared = (*_SHARED[chosen.system], *(("-s", "-O2") if chosen.is_zig else ()))
    command = [*chosen.command, *shared, *flags, "-o", str(library), *map(str, objects), "-lm"]
    run_tool(command, library.parent)
    return library


def place_binary(built: Path, target: Path, *, executable: bool = True) -> None:
    """Copy a built file to `target` atomically; a new file is `executable` if requested."""
    with atomic_file(target, executable=executable) as file, built.open("rb") as source:
        shutil.copyfileobj(source, file, 1 << 20)


def compile_objects(
    files: Mapping[str, Data],
    folder: Path,
    flags: Sequence[str] = (),
    *,
    includes: Sequence[str] | None = None,
    compiler: Compiler | None = None,
    own_flags: Mapping[str, Sequence[str]] | None = None,
    done: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write `files` under `folder`, compile each source, two at a time, and return all objects, compiled first.

    `own_flags` are those of single files, after `flags`; `done` is called with each source's name. The runtime is
    compiled with ``-O1``, in half the time of ``-O3``: execution time is spent in kernels.
    """
    chosen = compiler or find_compiler()
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_data(path, data)
    places = sorted({str(PurePosixPath(name).parent) for name in files}) if includes is None else includes
    sources = sorted(name for name in files if PurePosixPath(name).suffix in SOURCES)

    def compile_one(name: str) -> Path:
        target, is_common = f"{name}.o", name.startswith(f"{RUNTIME}/")
        own = (*(("-O1",) if is_common else ()), *(own_flags or {}).get(name, ()))
        found = [f"-I{place}" for place in places if not is_common or place.startswith(f"{RUNTIME}/")]
        command = [*chosen.command, *chosen.flags, *flags, *own, *found, "-c", name, "-o", target]
        if is_common and all(flag.startswith(_OF_COMMAND) for flag in flags):
            _compile_common(files, command, chosen.version, folder)
        else:
            run_tool(command, folder)
        if done is not None:
            done(name)
        return folder / target

    # importing it takes longer than loading a library from the cache
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_JOBS) as pool:
        compiled = list(pool.map(compile_one, sources))
    return compiled + [folder / name for name in sorted(files) if PurePosixPath(name).suffix == OBJECT_SUFFIX]


def _compile_common(files: Mapping[str, Data], command: Sequence[str], version: str, folder: Path) -> None:
    """Compile a file of the runtime, or copy its object from the cache: libraries of all models have the same."""
    *_, source, _, target = command
    others = {name: data for name, data in files.items() if name.startswith(f"{RUNTIME}/")}
    read = {name: data for name, data in others.items() if name == source or PurePosixPath(name).suffix not in SOURCES}
    key = cache_key(read, (*command, version, processor_here()), {})
    found = find_entry(key, OBJECT_SUFFIX)
    if found is not None:
        shutil.copyfile(found, folder / target)
        return
    run_tool(command, folder)
    with suppress(OutputError):  # a full disk
        store_entry(key, OBJECT_SUFFIX, FileContent(folder / target))


def run_tool(command: Sequence[str], folder: Path) -> None:
    """Run a compiler or one of its programs in `folder`; raise ToolchainError with its first lines if it fails."""
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
        raise ToolchainError(
            f"the C compiler failed with status {result.returncode}:{first_lines(result.stderr or result.stdout)}",
            place=command[0],
            next_step="Try another compiler by setting CC",
        )

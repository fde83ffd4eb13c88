"""Build programs with the C runtime from the files in an archive, as a user of the archive does."""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from mlfc.crt import crt_files
from tests.conftest import WATCHDOG, need
from tests.session_cache import compiled

PROGRAMS = Path(__file__).parent / "crt"
PACKAGES = {"gcc": "gcc", "clang": "clang", "arm-none-eabi-gcc": "gcc-arm-none-eabi"}
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
NO_SYSTEM_LIB = "-DTVM_CRT_SYSTEM_LIB=0"


def write_tree(folder: Path) -> Path:
    """Write the runtime's files into a folder, and compilable copies of its templates into ``board``."""
    for name, content in crt_files().items():
        path = folder / "runtime" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if path.suffix == ".template":
            board = folder / "board" / path.stem
            board.parent.mkdir(exist_ok=True)
            board.write_bytes(content)
    return folder


def sources(tree: Path, *, rpc: bool = True) -> list[Path]:
    """Return the runtime's C files except those of a platform; the RPC server's need more platform functions."""
    found = sorted((tree / "runtime/src").rglob("*.c"))
    assert len(found) > 10
    return [path for path in found if rpc or not any("rpc" in part for part in path.relative_to(tree).parts)]


def compile_c(
    tree: Path, output: str, files: Sequence[Path], flags: Sequence[str] = (), compiler: str = "gcc", host: bool = True
) -> Path:
    """Compile and link files with the runtime's headers and the limits of the host or of the template."""
    limits = tree / ("runtime/host" if host else "board")
    command = [need(compiler, PACKAGES[compiler]), *flags, "-I", str(tree / "runtime/include"), "-I", str(limits)]
    parts: list[str | Path] = list(files)
    if compiler == "gcc":  # clang rejects linker flags when it only compiles
        # the runtime's own files are the same for all programs
        own = [path for path in files if path.is_relative_to(tree / "runtime") and path.suffix == ".c"]
        objects = compiled(command, own, [tree / "runtime", limits], tree)
        parts = [objects.get(path, path) for path in files]
    command += ["-o", str(tree / output), *map(str, parts), "-lm"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return tree / output


def check_c(tree: Path, files: Sequence[Path], flags: Sequence[str], compiler: str, host: bool = True) -> None:
    """Compile files without keeping the output and fail on warnings; gcc emits some of them only after parsing."""
    parses = compiler == "clang" and not any(flag.startswith("-O") for flag in flags)
    command = [need(compiler, PACKAGES[compiler]), *STRICT, *flags, "-I", str(tree / "runtime/include")]
    command += ["-I", str(tree / ("runtime/host" if host else "board")), "-fsyntax-only" if parses else "-S"]
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run([*command, *map(str, files)], cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def run(program: Path, *arguments: str | Path) -> bytes:
    """Run a program and return its standard output; fail if it writes to standard error."""
    result = subprocess.run([str(program), *map(str, arguments)], capture_output=True, check=False, timeout=WATCHDOG)
    assert result.returncode == 0, result.stderr.decode()
    assert not result.stderr, result.stderr.decode()
    return result.stdout


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack an archive written by TVM."""
    with tarfile.open(archive) as tar:
        for member in tar:
            assert ".." not in PurePosixPath(member.name).parts
            if member.isfile():
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                file = tar.extractfile(member)
                assert file is not None
                path.write_bytes(file.read())
    return folder

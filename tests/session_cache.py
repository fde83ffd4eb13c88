"""Cache of builds for one test session: the same command on the same files runs once.

The key of a build contains all of its inputs, so a test checks what the command would produce. Failed builds are not
cached.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mlfc.library import toolchain
from mlfc.micro.run import firmware_build

_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*include\b[ \t]*(.*)$", re.MULTILINE)
_HAS_INCLUDE = re.compile(rb'__has_include\(([<"][^>"]+[>"])\)')
_NAME = re.compile(rb'[<"]([^>"]+)[>"]')
# debug information and coverage contain the folder; assemblers read more files than sources include
_ELSEWHERE = re.compile(r"^(-g[1-9]?|-ggdb.*|--coverage|@.*)$")
# flags that do not change an object
_BESIDE = {"-MMD", "-MP", "-fstack-usage"}
# flags and macros that may put the path of a source into its object
_NAMES_ITSELF = re.compile(rb"__FILE__|\bassert\b")
_HEADERS = {".h", ".inc", ".bin", ".S"}
_FOLDER: list[Path] = []


def key_of(parts: Iterable[str | bytes]) -> str:
    """Return a cache key from `parts` and the environment variables that compilers read."""
    digest = hashlib.sha256()
    variables = ("PATH", "SOURCE_DATE_EPOCH", "CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "LANG", "LC_ALL")
    for part in (*parts, *(f"{name}={os.environ.get(name)}" for name in variables)):
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:40]


def files_under(folder: Path) -> dict[str, bytes]:
    """Return the content of all files by relative path; files that a concurrent compiler renames are skipped."""
    found = {}
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):
            if path.is_file():
                found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def known(key: str) -> Mapping[str, bytes] | None:
    """Return the cached files for a key; None if it has none."""
    place = _FOLDER[0] / key if _FOLDER else None
    return files_under(place) if place is not None and place.is_dir() else None


def built(key: str, make: Callable[[], Mapping[str, bytes]]) -> Mapping[str, bytes]:
    """Return the files that `make` returned in the session's first call with this key."""
    place = _FOLDER[0] / key if _FOLDER else None
    kept = known(key)
    if kept is not None:
        return kept
    found = make()
    if place is not None:
        # the folder appears whole or not at all, and the first one stays
        partial = Path(tempfile.mkdtemp(dir=place.parent, prefix="partial-"))
        for name, data in found.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).write_bytes(data)
        try:
            partial.rename(place)
        except OSError:
            shutil.rmtree(partial)
    return found


def place(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files into a folder; existing files stay unchanged."""
    for name, data in files.items():
        if not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
            with suppress(OSError):
                (folder / name).chmod(0o755)


def _headers(folder: Path) -> bytes:
    files = {name: data for name, data in files_under(folder).items() if Path(name).suffix in _HEADERS}
    return json.dumps({name: hashlib.sha256(data).hexdigest() for name, data in files.items()}).encode()


def compiled(
    command: Sequence[str], sources: Iterable[Path], headers: Sequence[Path], folder: Path
) -> dict[Path, Path]:
    """Return the objects that a command with ``-c`` compiles from C files.

    Parameters
    ----------
    command : sequence of str
        Without the source and the object.
    sources : iterable of Path
    headers : sequence of Path
        Folders with all included files; the command may name them.
    folder : Path
        Receives the objects.
    """
    words = list(command)
    for number, path in enumerate(headers):
        words = [word.replace(str(path), f"<{number}>") for word in words]
    surroundings = [*words, *map(_headers, headers)]
    objects = {}
    for source in sources:
        key = key_of([*surroundings, source.name, source.read_bytes()])
        objects[source] = target = folder / f"{key}.o"

        def make(line: Sequence[str] = (*command, "-c", str(source), "-o", str(target))) -> dict[str, bytes]:
            result = subprocess.run(line, capture_output=True, text=True, check=False)
            assert result.returncode == 0, result.stderr
            return {"object": Path(line[-1]).read_bytes()}

        data = built(key, make)["object"]
        target.write_bytes(data)
    return objects


def object_key(words: Sequence[str], source: Path, folder: Path) -> str | None:
    """Return the cache key of an object: its flags, its source, and all files that the source may include.

    None if the object depends on more than these.
    """
    if any(map(_ELSEWHERE.match, words)):
        return None
    pairs = list(zip(words, [*words[1:], ""], strict=True))
    places = [folder / (word[2:] or after) for word, after in pairs if word.startswith("-I")]
    read = _included(source, places) if "-include" not in words else None
    if read is None or not all(path.is_relative_to(folder) for path in read):
        return None
    # relative paths, as a model's includes lie at the same place next to it in any project
    files = sorted((os.path.relpath(path, source.parent), data) for path, data in read.items())
    searched = [
        os.path.relpath(place, source.parent)
        for place in places
        if any(path.is_relative_to(place) for path in read if path != source)
    ]
    left_out = {*_BESIDE, "-I", "-o", *(word for option, word in pairs if option in ("-I", "-o"))}
    text = b"".join(read.values())
    for word in words:
        macro = word[2:].partition("=")[0].encode()
        if word.startswith("-DMLFC_") and macro not in text:
            left_out.add(word)
    level = [word for word in words if word.startswith("-O")][-1:]  # the last one counts
    flags = [word for word in words if not (word in left_out or word[:2] in ("-I", "-O") or word.endswith(".c"))]
    is_named = any(map(_NAMES_ITSELF.search, read.values())) or any("sanitize" in word for word in words)
    place = os.path.relpath(source, folder) if is_named else source.name
    return key_of([*flags, *level, "in", *searched, place, *(part for item in files for part in item)])


def _included(source: Path, places: Sequence[Path]) -> dict[Path, bytes] | None:
    """Return a source and all files that it may include under any condition; None if they cannot be determined."""
    found: dict[Path, bytes] = {}
    left = [source]
    while left:
        path = left.pop()
        if path in found:
            continue
        if not path.is_file():
            return None
        found[path] = data = path.read_bytes()
        if b"incbin" in data or b"__DATE__" in data:
            return None
        for included in (*_INCLUDE.findall(data), *_HAS_INCLUDE.findall(data)):
            name = _NAME.match(included)
            if name is None:
                return None
            beside = [place / name[1].decode() for place in (path.parent, *places)]
            left += [candidate for candidate in beside if candidate.is_file()]
    return found


def _tool(real: Callable[..., None]) -> Callable[..., None]:
    """Wrap `toolchain.run_tool` so that it compiles a source with the same headers and flags once."""

    def run_tool(command: Sequence[str], folder: Path) -> None:
        words = list(map(str, command))
        # a test's own programs may have side effects, such as counting their calls
        is_known = Path(shutil.which(words[0]) or "").is_relative_to("/usr") or "ziglang" in words
        if not is_known or words[-4:-3] != ["-c"] or words[-2:-1] != ["-o"]:
            return real(command, folder)
        key = object_key(words, folder / words[-3], folder)
        if key is None:
            around = {
                name: data
                for name, data in files_under(folder).items()
                if Path(name).suffix in _HEADERS or name == words[-3]
            }
            key = key_of([*words, *(part for item in around.items() for part in item)])

        def make() -> dict[str, bytes]:
            real(command, folder)
            return {"object": (folder / words[-1]).read_bytes()}

        return place({words[-1]: built(key, make)["object"]}, folder)

    return run_tool


def _make(real: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `firmware_build.run` so that it makes the same firmware once."""

    def run(command: Sequence[str], folder: Path, timeout: float) -> Any:
        before = files_under(folder)
        key = key_of([*command, *(part for item in before.items() for part in item)])

        def make() -> dict[str, bytes]:
            result = real(command, folder, timeout)
            if result.returncode != 0:
                raise _FailedError(result)
            return {name: data for name, data in files_under(folder).items() if before.get(name) != data}

        try:
            place(built(key, make), folder)
        except _FailedError as error:
            return error.args[0]
        return subprocess.CompletedProcess(command, 0, "", "")

    return run


class _FailedError(Exception):
    """The result of a failed program, which bypasses the cache."""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache builds in a folder that all workers of a session share."""
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(f"{__name__}._FOLDER", [folder])
    monkeypatch.setattr(toolchain, "run_tool", _tool(toolchain.run_tool))
    monkeypatch.setattr(firmware_build, "run", _make(firmware_build.run))

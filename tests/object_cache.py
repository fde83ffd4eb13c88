"""Objects that make would build are put in place where the session has built the same ones before.

A dry run of make says which objects it would build, and how. What an object is made of is its command, its source and
all files that the source may include.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests import session_cache

_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*include\b[ \t]*(.*)$", re.MULTILINE)
_NAME = re.compile(rb'[<"]([^>"]+)[>"]')
# debuggers and coverage are told of the folder; assemblers read more than sources include
_ELSEWHERE = re.compile(r"^(-g[1-9]?|-ggdb.*|--coverage|@.*)$")
Result = TypeVar("Result")


def with_known_objects(command: Sequence[str], folder: Path, run: Callable[[], Result]) -> Result:
    """Run a command of make in a folder where the objects that are known lie already, and keep those that it makes.

    Parameters
    ----------
    command : sequence of str
        With all variables of make that `run` uses; flags may say more.
    folder : Path
    run : callable
        Returns what `subprocess.run` does.
    """
    wanted = _wanted(command, folder)
    missing = {}
    for name, key in wanted.items():
        found = session_cache.known(key)
        if found is None:
            missing[name] = key
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(found["object"])
    result = run()
    # what a compiler said would not be said again
    if getattr(result, "returncode", 1) == 0 and "warning" not in str(getattr(result, "stderr", "")):
        for name, key in missing.items():
            if (folder / name).is_file():
                session_cache.built(key, lambda path=folder / name: {"object": path.read_bytes()})  # type: ignore[misc]
    return result


def firmware(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return `firmware_build.run` that compiles what all firmware of a board has in common once."""

    def run(command: Sequence[str], folder: Path, timeout: float) -> Any:
        real([*command, "build/flags"], folder, timeout)  # what is older than its flags is built again
        return with_known_objects(command, folder, lambda: real(command, folder, timeout))

    return run


def _wanted(command: Sequence[str], folder: Path) -> dict[str, str]:
    """Return the keys of the objects that make would build, by their paths in the folder."""
    dry = subprocess.run([*command, "-n"], cwd=folder, capture_output=True, text=True, check=False)
    wanted = {}
    for line in dry.stdout.replace("\\\n", " ").splitlines() if dry.returncode == 0 else ():
        try:
            words = shlex.split(line)
        except ValueError:
            continue
        sources = [word for word in words if word.endswith(".c")]
        if "-c" not in words or "-o" not in words[:-1] or len(sources) != 1:
            continue
        name = words[words.index("-o") + 1]
        key = None if Path(name).is_absolute() else _key(words, folder / sources[0], folder)
        if key is not None and not (folder / name).exists():
            wanted[name] = key
    return wanted


def _key(words: Sequence[str], source: Path, folder: Path) -> str | None:
    """Return the name of an object; None where it depends on more than what it includes."""
    if any(map(_ELSEWHERE.match, words)):
        return None
    pairs = zip(words, [*words[1:], ""], strict=True)
    places = [folder / (word[2:] or after) for word, after in pairs if word.startswith("-I")]
    read = _included(source, places) if "-include" not in words else None
    if read is None:
        return None
    files = sorted((str(path.relative_to(folder)), data) for path, data in read.items() if path.is_relative_to(folder))
    return (
        session_cache.key_of([*words, *(part for item in files for part in item)]) if len(files) == len(read) else None
    )


def _included(source: Path, places: Sequence[Path]) -> dict[Path, bytes] | None:
    """Return a source and all files that it may include, whatever its conditions say; None if that cannot be told."""
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
        for included in _INCLUDE.findall(data):
            name = _NAME.match(included)
            if name is None:
                return None
            beside = [place / name[1].decode() for place in (path.parent, *places)]
            left += [candidate for candidate in beside if candidate.is_file()]
    return found

"""Cache of objects that make builds, shared by all tests of a session.

A dry run of make lists the objects that it would build and their commands. The key of an object consists of its flags,
its source, and all files that the source may include. All firmware is compiled with stack usage files, so that the
build that measures a model on its own can use the same objects.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests import session_cache
from tests.session_cache import object_key

_COMPILER = re.compile(r"^CC := (\S+gcc)$", re.MULTILINE)
Result = TypeVar("Result")


def with_known_objects(command: Sequence[str], folder: Path, run: Callable[[], Result]) -> Result:
    """Run a command of make with the cached objects already in the folder, and cache the objects that it makes.

    Parameters
    ----------
    command : sequence of str
        With all variables of make that `run` uses; it may have additional flags.
    folder : Path
    run : callable
        Returns the result of `subprocess.run`.
    """
    wanted = _wanted(command, folder)
    missing = {}
    for name, key in wanted.items():
        found = session_cache.known(key)
        if found is None:
            missing[name] = key
        else:
            _place(found, folder / name)
    result = run()
    if _is_silent(result):
        for name, key in missing.items():
            if (folder / name).is_file():
                session_cache.built(key, lambda path=folder / name: _made(path))  # type: ignore[misc]
    return result


def firmware(real: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `firmware_build.run` so that the objects that all firmware of a board has in common are compiled once."""

    def run(command: Sequence[str], folder: Path, timeout: float) -> Any:
        compiler = _COMPILER.search((folder / "Makefile").read_text())
        # avr-gcc does not support -fstack-usage and warns about it
        stating = [*command, *([f"CC={compiler[1]} -fstack-usage"] if compiler and compiler[1] != "avr-gcc" else [])]
        real([*stating, "build/flags"], folder, timeout)  # make rebuilds objects that are older than the flags file
        return with_known_objects(stating, folder, lambda: real(stating, folder, timeout))

    return run


def trial(real: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `planned_memory.run` so that it uses cached objects of the model's firmware if their flags are the same."""

    def run(command: Sequence[str], folder: Path, timeout: float) -> Any:
        source = folder / command[list(command).index("-c") + 1] if "-c" in command else None
        key = object_key(command, source, folder) if source is not None and source.suffix == ".c" else None
        if key is None:
            return real(command, folder, timeout)
        path, found = folder / command[-1], session_cache.known(key)
        if found is not None and "usage" in found:
            _place(found, path)
            return subprocess.CompletedProcess(command, 0, "", "")
        result = real(command, folder, timeout)
        if _is_silent(result):
            session_cache.built(key, lambda: _made(path))
        return result

    return run


def _is_silent(result: Any) -> bool:
    """Return whether a compiler succeeded without warnings; a cached object would not repeat them."""
    return getattr(result, "returncode", 1) == 0 and "warning" not in str(getattr(result, "stderr", ""))


def _made(path: Path) -> dict[str, bytes]:
    """Return an object and, if the compiler wrote one, its stack usage file."""
    usage = path.with_suffix(".su")
    return {"object": path.read_bytes(), **({"usage": usage.read_bytes()} if usage.is_file() else {})}


def _place(found: Mapping[str, bytes], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(found["object"])
    if "usage" in found:
        path.with_suffix(".su").write_bytes(found["usage"])


def _wanted(command: Sequence[str], folder: Path) -> dict[str, str]:
    """Return the cache keys of the objects that make would build, by their paths in the folder."""
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
        key = None if Path(name).is_absolute() else object_key(words, folder / sources[0], folder)
        if key is not None and not (folder / name).exists():
            wanted[name] = key
    return wanted

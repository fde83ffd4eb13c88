"""Python files that users name, which add operators and generators to registries."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from mlfc.errors import MlfcError, OptionError
from mlfc.registry import Registry, recorded, remove
from mlfc.support.plain_file import read_small

_LARGEST = 1 << 22


# by path, the texts that a file was made from, and the entries that it added
_loaded: dict[Path, tuple[dict[Path, str], list[tuple[Registry[Any], str]]]] = {}
_loading: list[dict[Path, str]] = []


def loading() -> Path | None:
    """Return the file that is being loaded, or None."""
    return next(iter(_loading[-1])) if _loading else None


def read_text(path: Path) -> str:
    """Return the text of a file, which belongs to the file being loaded; raise OptionError if it cannot be read."""

    def fault(reason: str) -> OptionError:
        return OptionError(reason, place=str(path))

    try:
        text = read_small(path, _LARGEST, fault).decode("utf-8")
    except UnicodeDecodeError as error:
        raise fault(f"expected UTF-8 text: {error.reason} at byte {error.start}") from None
    if _loading:
        _loading[-1][path] = text
    return text


def load_user_files(paths: Iterable[str | PathLike[str]]) -> None:
    """Run Python files that add entries to registries; a file is run again only if it has changed.

    If a file fails, its entries are removed. Raises OptionError with the file and line.
    """
    if isinstance(paths, (str, PathLike)):
        raise OptionError(f"expected a list of Python files, got '{paths}'", next_step=f"Pass ['{paths}']")
    for path in map(Path, paths):
        texts, entries = _loaded.get(path.resolve(), ({}, []))
        if not texts or any(not file.is_file() or read_text(file) != text for file, text in texts.items()):
            remove(entries)
            _loaded.pop(path.resolve(), None)
            _load(path)


def texts_of(path: Path) -> dict[Path, str]:
    """Return the texts that a Python file is made from, its own first; it is run, but adds no entries."""
    load_user_files([path])
    texts, entries = _loaded.pop(path.resolve())
    remove(entries)
    return texts


def _load(path: Path) -> None:
    texts = {path: read_text(path)}
    module = ModuleType(f"mlfc_user_{path.stem}")
    module.__file__ = str(path)
    with recorded() as entries:
        _loading.append(texts)
        try:
            code = compile(texts[path], str(path), "exec")
            sys.modules[module.__name__] = module  # dataclasses look up their module
            exec(code, module.__dict__)  # noqa: S102  (the user named this file to be run)
        except (Exception, SystemExit) as error:
            raise _fault(path, error) from error
        finally:
            _loading.pop()
    if not entries:
        raise OptionError(
            "the file declares no operator and no external code generator",
            place=str(path),
            next_step="Call mlfc.operators.declare(...) in it",
        )
    _loaded[path.resolve()] = texts, entries


def _fault(path: Path, error: BaseException) -> OptionError:
    """Return the error of a file that cannot be loaded, with the line."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    place = str(path) if line is None else f"{path}:{line}"
    if isinstance(error, MlfcError):
        cause = f"{error.place}: {error.cause}" if error.place else error.cause
        return OptionError(cause, place=place, next_step=error.next_step)
    if isinstance(error, (SyntaxError, ValueError)) and not lines:
        return OptionError(f"expected a Python file: {getattr(error, 'msg', error)}", place=place)
    return OptionError(f"the file raises {type(error).__name__}: {error}", place=place)

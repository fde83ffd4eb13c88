"""``--config build.toml``: options of a command from a file; the command line takes precedence."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import typer

from mlfc.errors import MlfcError, OptionError, ProblemsError, unknown
from mlfc.support.plain_file import parse_toml, read_toml
from mlfc.support.text import byte_count

_EXPECTED: dict[Any, str] = {
    bool: "true or false", int: "an integer", float: "a number", str: "a string", Path: "a path",
    list: "a list of strings",
}  # fmt: skip
_FOUND = {bool: "true or false", int: "an integer", float: "a number", str: "a string", list: "a list", dict: "a table"}


def read_options(ctx: typer.Context, path: Path | None) -> Path | None:
    """Set the defaults of a command from the options of a TOML file; the callback of ``--config``.

    `ctx`: the command's, before its other options are read.
    `path`: the file; paths in it are relative to its folder.

    Raises OptionError or ProblemsError for a file that cannot be read, and for all unknown options and wrong values
    together.
    """
    if path is None:
        return None
    text = read_toml(path)
    document = parse_toml(text, str(path))
    kinds = get_type_hints(inspect.unwrap(ctx.command.callback)) if ctx.command.callback else {}
    names = {option[2:]: param.name for param in ctx.command.params for option in param.opts if option[:2] == "--"}
    names = {key: name for key, name in names.items() if name in kinds and key != "config"}
    sizes = {param.name for param in ctx.command.params if param.metavar == "BYTES"}
    found: dict[str, Any] = {}
    problems: list[MlfcError] = []
    for key, value in document.items():
        place = _place(path, text, key)
        name = names.get(key.replace("_", "-"))
        if name is None:
            problems.append(OptionError(unknown("option", key, names, where=f" in {path.name}"), place=place))
            continue
        kind = _kind(kinds[name])
        if name in sizes and isinstance(value, str):
            try:
                found[name] = byte_count(value)
            except OptionError as error:
                problems.append(OptionError(f"{error} for '{key}'", place=place))
        elif _fits(value, kind):
            found[name] = _value(value, kind, path.parent)
        else:
            shown = _FOUND.get(type(value), f"a {type(value).__name__}")
            problems.append(OptionError(f"expected {_EXPECTED[kind]} for '{key}', got {shown}", place=place))
    if problems:
        raise problems[0] if len(problems) == 1 else ProblemsError(problems, place=str(path))
    ctx.default_map = {**(ctx.default_map or {}), **found}
    return path


def _place(path: Path, text: str, key: str) -> str:
    """Return the file and, if the key starts a line, as outside tables, the line number."""
    start = re.search(rf"""^[ \t]*\[*["']?{re.escape(key)}["']?[ \t]*[=.\]]""", text, re.MULTILINE)
    return str(path) if start is None else f"{path}:{text.count(chr(10), 0, start.start()) + 1}"


def _kind(hint: Any) -> Any:
    """Return the type of an option's value without ``None``."""
    kinds = get_args(hint)
    inner = next((item for item in kinds if item is not type(None)), hint) if type(None) in kinds else hint
    return get_origin(inner) or inner


def _fits(value: object, kind: Any) -> bool:
    if kind is list:
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is (str if kind is Path else kind)


def _value(value: Any, kind: Any, folder: Path) -> Any:
    if kind is list:
        items = [value] if isinstance(value, str) else value
        return [str(folder / item) if item.endswith(".py") else item for item in items]
    if kind is Path or (kind is str and value.endswith(".toml")):  # a board's file
        return str(folder / value)
    return value

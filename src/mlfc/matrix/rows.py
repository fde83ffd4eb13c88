"""Matrix files: TOML tables of models, targets and options, where every combination is a row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlfc.errors import MlfcError, OptionError, ProblemsError, unknown
from mlfc.support.plain_file import parse_toml, read_toml

MOST_ROWS = 10_000
_TABLES = ("models", "targets", "options", "exclude")
_KINDS = ("model", "target", "option")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MODEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# options that the matrix sets itself
_OWN = ("output", "config", "matrix", "scheduler", "json", "as_json", "module_name")


@dataclass(frozen=True)
class MatrixRow:
    """A model compiled with some options of ``mlfc compile``."""

    model: str
    target: str
    option: str
    path: Path  # of the model
    options: Mapping[str, Any]
    folder: Path  # base folder of files in options

    @property
    def name(self) -> str:
        """Name of its files and of its line in the index."""
        return "-".join(filter(None, (self.model, self.target, self.option)))


def read_rows(path: Path) -> list[MatrixRow]:
    """Return the rows of a matrix file; raise OptionError or ProblemsError for all faults in it."""
    tables = parse_toml(read_toml(path), str(path))
    problems: list[MlfcError] = []
    models = _entries(path, tables, "models", problems)
    targets = _entries(path, tables, "targets", problems) or {"": {}}
    options = _entries(path, tables, "options", problems) or {"": {}}
    excluded = _excluded(path, tables, (models, targets, options), problems)
    if not models and not problems:
        problems.append(
            OptionError("expected a table 'models'", place=str(path), next_step='Write [models] and kws = "kws.tflite"')
        )
    if len(models) * len(targets) * len(options) > MOST_ROWS:
        problems.append(OptionError(f"the matrix has more than {MOST_ROWS:,} rows", place=str(path)))
    if problems:
        raise problems[0] if len(problems) == 1 else ProblemsError(problems, place=str(path))
    rows = []
    for model, file in models.items():
        for target, of_target in targets.items():
            for option, of_option in options.items():
                names = dict(zip(_KINDS, (model, target, option), strict=True))
                if not any(all(names[kind] == name for kind, name in item.items()) for item in excluded):
                    given = {**of_target, **of_option, **{key: file[key] for key in file if key != "file"}}
                    rows.append(MatrixRow(model, target, option, path.parent / file["file"], given, path.parent))
    if not rows:
        raise OptionError("the matrix has no rows: all are excluded", place=str(path))
    if len({row.name for row in rows}) < len(rows):
        raise OptionError("two rows have the same name", place=str(path), next_step="Use no - in names")
    return rows


def _entries(path: Path, tables: Mapping[str, Any], kind: str, problems: list[MlfcError]) -> dict[str, dict[str, Any]]:
    """Return the entries of a table by name; append faults to `problems`."""
    if kind == "models":
        problems += [OptionError(unknown("table", key, _TABLES), place=str(path)) for key in set(tables) - set(_TABLES)]
    table = tables.get(kind, {})
    found: dict[str, dict[str, Any]] = {}
    if not isinstance(table, dict):
        problems.append(OptionError(f"expected a table '{kind}'", place=str(path)))
        return found
    for name, entry in table.items():
        place = f"{path}, {kind}.{name[:80]}"
        given = {"file": entry} if kind == "models" and isinstance(entry, str) else entry
        if isinstance(entry, str) and kind == "targets":
            given = {"target": entry}
        problems += _faults(kind, name, given, place)
        if isinstance(given, dict):
            found[name] = {key.replace("-", "_"): value for key, value in given.items()}
    return found


def _faults(kind: str, name: str, entry: object, place: str) -> Iterator[MlfcError]:
    if not (_MODEL_NAME if kind == "models" else _NAME).fullmatch(name):
        yield OptionError("expected letters, digits and underscores for a name", place=place)
    if not isinstance(entry, dict):
        yield OptionError(f"expected a table of options, got {type(entry).__name__}", place=place)
        return
    if kind == "models" and not isinstance(entry.get("file"), str):
        yield OptionError("expected the model's file", place=place, next_step='Write file = "model.onnx"')
    for key, value in entry.items():
        is_texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if key.replace("-", "_") in _OWN:
            yield OptionError(f"option '{key}' is set by the matrix", place=place, next_step="Remove it")
        elif not (is_texts or isinstance(value, (str, int, float, bool))):
            yield OptionError(f"expected a string, a number, true, false or strings for '{key}'", place=place)


def _excluded(
    path: Path, tables: Mapping[str, Any], known: tuple[Mapping[str, Any], ...], problems: list[MlfcError]
) -> list[dict[str, str]]:
    found = tables.get("exclude", [])
    if not isinstance(found, list) or not all(isinstance(item, dict) and item for item in found):
        problems.append(
            OptionError(
                "expected a list of tables 'exclude'", place=str(path), next_step='Write [[exclude]] and model = "kws"'
            )
        )
        return []
    for item in found:
        for kind, name in item.items():
            if kind not in _KINDS:
                problems.append(OptionError(unknown("key", kind, _KINDS), place=f"{path}, exclude"))
            elif name not in (names := known[_KINDS.index(kind)]):
                problems.append(OptionError(unknown(kind, str(name), names), place=f"{path}, exclude"))
    return found

"""Compilation of all rows of a matrix, on this machine or on a cluster. Rows that fail do not stop the others.

Matrix files are TOML tables of models, targets and options, where every combination is a row.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from mlfc.cluster import BUILD, Workers, opened_workers
from mlfc.errors import InputError, MlfcError, OptionError, OutputError, ProblemsError, RunError, unknown
from mlfc.support.atomic import atomic_file, check_writable, write_folder
from mlfc.support.content import Data, FileContent
from mlfc.support.plain_file import open_plain, parse_toml, private_folder, read_toml
from mlfc.support.progress import bar, reported
from mlfc.support.tar import source_date, write_tar
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.text import Displayed
from mlfc.support.user_files import texts_of
from mlfc.support.version import __version__

MOST_ROWS = 10_000
_TABLES = ("models", "targets", "options", "exclude")
_KINDS = ("model", "target", "option")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MODEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# options that the matrix sets itself
_OWN = ("output", "config", "matrix", "scheduler", "json", "as_json", "module_name")
_SUFFIXES = {"so": ".so", "a": ".a", "tar": "_lib.tar", "c": "", "o": ""}
_CONFIG, _OUT = "build.toml", "out"
_SHOWN = 4000

Files = dict[str, bytes]
_ARCHIVE = ".tar"
_STYLE = (
    "body{font:14px sans-serif;margin:2em}td,th{padding:3px 10px;text-align:left;vertical-align:top}"
    ".n{text-align:right}.bad{color:#b00}"
)
_MEMORY = ("workspace_bytes", "constants_bytes", "io_bytes")
_TITLES = ("row", "file", "bytes", "workspace", "constants", "inputs and outputs", "board: RAM", "board: flash", "note")
_MOST_LINKS = 8


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


def job_of(row: MatrixRow) -> tuple[str, str, Files, str]:
    """Return the arguments of `compile_row`; raise InputError if the model or a file in its options cannot be read."""
    files: Files = {}

    def shipped(path: Path) -> str:
        name = f"{len(files)}_{path.name}"
        try:
            with open_plain(path) as file:
                files[name] = file.read()
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", place=str(path)) from error
        return name

    def sent(text: object, key: str) -> object:
        if not isinstance(text, str):
            return text
        head, equals, tail = text.rpartition("=")
        path = row.folder / tail
        if key == "op":  # with the C files that it names, at the same places relative to it
            texts = {file.resolve(): text for file, text in texts_of(path).items()}
            root, folder = os.path.commonpath([file.parent for file in texts]), f"{len(files)}_op"
            names = [f"{folder}/{file.relative_to(root).as_posix()}" for file in texts]
            files.update(zip(names, (text.encode() for text in texts.values()), strict=True))
            return names[0]
        is_file = tail and "\0" not in tail and len(tail) < 1000 and path.is_file()
        return f"{head}{equals}{shipped(path)}" if is_file else text

    model = shipped(row.path)
    options = {
        key: [sent(item, key) for item in value] if isinstance(value, list) else sent(value, key)
        for key, value in row.options.items()
    }
    # JSON strings are valid TOML
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in options.items()]
    files[_CONFIG] = "\n".join((*lines, "")).encode()
    suffix = _SUFFIXES.get(str(row.options.get("emit")), ".model-lib" if row.options.get("rfc") is True else ".tar")
    return f"{row.model}={model}", row.name + suffix, files, row.name


def compile_row(model: str, output: str, files: Files, name: str) -> tuple[dict[str, Any], Files]:
    """Compile a row with ``mlfc compile`` in a separate process, so that a crash does not affect other rows.

    `model`: NAME=FILE. `output`: the name of the file or folder to create. `files`: all files that the options name.
    Returns the report of ``mlfc compile --json``, and the files. Raises RunError with the error output of the process.
    """
    with TemporaryFolder() as folder:
        for path, data in files.items():
            Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, path).write_bytes(data)
        Path(folder, _OUT).mkdir()
        words = ("compile", model, "--config", _CONFIG, "-o", f"{_OUT}/{output}", "--json")
        command = [sys.executable, "-m", "mlfc", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, check=False)
        said = done.stderr.decode(errors="replace").strip()
        if done.returncode:
            reason = said.removeprefix("error: ")[-_SHOWN:] or f"mlfc ended with status {done.returncode}"
            raise RunError(reason, place=name)
        report = json.loads(done.stdout)
        report.pop("output", None)
        if said:
            report["warnings"] = said.splitlines()
        made = {
            path.relative_to(Path(folder, _OUT)).as_posix(): path.read_bytes()
            for path in sorted(Path(folder, _OUT).rglob("*"))
            if path.is_file()
        }
    return report, made


@dataclass(frozen=True, repr=False)
class MatrixResult(Displayed):
    """Result of compiling a matrix."""

    output: Path
    entries: tuple[Mapping[str, Any], ...]  # of ``index.json``, in the order of the matrix
    problems: tuple[MlfcError, ...]  # of the rows that failed

    def _facts(self) -> Mapping[str, object]:
        return {"output": self.output, "rows": len(self.entries), "failed": len(self.problems)}


def compile_matrix(
    matrix: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    scheduler: str | None = None,
    progress: Callable[[int, int, str], None] | bool | None = None,
) -> MatrixResult:
    """Compile every combination of models, targets and options of a matrix file.

    Parameters
    ----------
    matrix : path
        A TOML file with the tables ``models``, ``targets`` and ``options``.
    output : path
        Folder or ``.tar`` for the compiled rows and the index.
    scheduler : str, optional
        The address of a dask scheduler, whose workers with the resource ``BUILD`` compile; default: this machine.
    progress : callable or bool, optional
        Called with the number of finished rows, of all rows, and the name of the last one. True: a bar, on a terminal
        or in a notebook.

    Returns
    -------
    MatrixResult

    Raises
    ------
    MlfcError
        If the matrix file is invalid, the output cannot be written, or the scheduler does not answer. Errors of rows
        are in the result.

    Examples
    --------
    >>> mlfc.compile_matrix("matrix.toml", "all").problems     # doctest: +SKIP
    ()
    """
    place = Path(output)
    rows = read_rows(Path(matrix))
    if place.suffix == _ARCHIVE:
        check_writable(place)
    elif place.exists() and not place.is_dir():
        raise OutputError(
            "expected a folder or a .tar, got a file", place=str(place), next_step="Choose another output"
        )
    reporting = reported(progress, partial(bar, f"compiling {Path(matrix).name}"))
    with (
        reporting as report,
        opened_workers(scheduler, BUILD) as workers,
        tempfile.TemporaryDirectory(dir=private_folder()) as stage,
    ):
        entries, problems = _compiled(rows, Path(stage), report, workers)
        paths = [one["path"] for item in entries for one in item.get("files", ())]
        files: dict[str, Data] = {path: FileContent(Path(stage, path)) for path in paths}
        text = json.dumps({"mlfc": __version__, "rows": list(entries)}, indent=2) + "\n"
        files |= {"index.json": text.encode(), "index.html": index_html(entries).encode()}
        if place.suffix == _ARCHIVE:
            with atomic_file(place) as file:
                write_tar(file, files, source_date())
        else:
            write_folder(place, files)
    return MatrixResult(place, tuple(entries), problems)


def _compiled(
    rows: list[MatrixRow], stage: Path, progress: Callable[[int, int, str], None], workers: Workers
) -> tuple[list[dict[str, Any]], tuple[MlfcError, ...]]:
    """Compile all rows into a folder; return the entries of the index, and the errors of the rows that failed."""
    entries: dict[int, dict[str, Any]] = {}
    problems: dict[int, MlfcError] = {}

    def done(number: int, result: tuple[dict[str, Any], Files] | MlfcError) -> None:
        name = rows[number].name
        if isinstance(result, MlfcError):
            result.place = name if result.place in (None, name) else f"{name}: {result.place}"
            problems[number] = result
            entries[number] = index_entry(rows[number], {}, {}, str(result))
        else:
            report, files = result
            write_folder(stage, files)
            sizes = {path: len(data) for path, data in files.items()}
            entries[number] = index_entry(rows[number], sizes, report, None)
        progress(len(entries), len(rows), name)

    jobs: dict[int, tuple[Any, ...]] = {}
    for number, row in enumerate(rows):
        try:
            jobs[number] = job_of(row)
        except MlfcError as error:
            done(number, error)
    numbers = list(jobs)
    for outcome in workers.run(BUILD, compile_row, list(jobs.values())):
        done(numbers[outcome.index], outcome.error or outcome.value)
    return [entries[number] for number in range(len(rows))], tuple(problems[number] for number in sorted(problems))


def index_entry(
    row: MatrixRow, files: Mapping[str, int], report: Mapping[str, Any], error: str | None
) -> dict[str, Any]:
    """Return the index entry of a row; `files` have their sizes."""
    found: dict[str, Any] = {
        "row": row.name,
        "model": row.model,
        "target": row.target,
        "option": row.option,
        "options": dict(row.options),
        "status": "ok" if error is None else "failed",
    }
    if error is not None:
        return {**found, "error": error}
    return {**found, "files": [{"path": path, "bytes": files[path]} for path in sorted(files)], **report}


def memory_of(item: Mapping[str, Any]) -> list[int | None]:
    """Return the bytes of workspace, constants, and inputs and outputs; None for unknown ones."""
    modules = item.get("modules", {}).values()
    memories = [module.get("memory", {}) for module in modules]
    return [sum(memory.get(name) or 0 for memory in memories) if memories else None for name in _MEMORY]


def board_memory(item: Mapping[str, Any]) -> list[int | None]:
    """Return the bytes of RAM and flash on a board; None without a board."""
    regions = (item.get("board") or {}).get("regions", [])
    kinds = {region["kind"] for region in regions}
    return [
        sum(region["used"] for region in regions if region["kind"] == kind) if kind in kinds else None
        for kind in ("ram", "flash")
    ]


def index_html(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the index as an HTML page."""
    failed = sum(item["status"] != "ok" for item in entries)
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Compiled models</title>',
        f"<style>{_STYLE}</style></head><body><h1>Compiled models</h1>",
        f"<p>{len(entries)} rows, {failed} failed; mlfc {escape(__version__)}</p>",
        f"<table><tr>{''.join(f'<th>{title}</th>' for title in _TITLES)}</tr>",
    ]
    for item in entries:
        files = item.get("files", [])
        links = "<br>".join(f'<a href="{escape(one["path"])}">{escape(one["path"])}</a>' for one in files[:_MOST_LINKS])
        more = f"<br>and {len(files) - _MOST_LINKS} more" if len(files) > _MOST_LINKS else ""
        numbers = [sum(one["bytes"] for one in files) if files else None, *memory_of(item), *board_memory(item)]
        cells = "".join(f'<td class="n">{"" if number is None else f"{number:,}"}</td>' for number in numbers)
        note = escape(item.get("error") or "; ".join(item.get("warnings", [])))
        kind = ' class="bad"' if item["status"] != "ok" else ""
        lines.append(
            f"<tr><td{kind}>{escape(item['row'])}</td><td>{links}{more}</td>{cells}<td{kind}><pre>{note}</pre></td></tr>"
        )
    return "\n".join((*lines, "</table></body></html>", ""))

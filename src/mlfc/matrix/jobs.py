"""A row as a job: plain data that any machine with mlfc compiles, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlfc.errors import InputError, RunError
from mlfc.matrix.rows import MatrixRow
from mlfc.support.plain_file import open_plain
from mlfc.support.temporary import TemporaryFolder

_SUFFIXES = {"so": ".so", "a": ".a", "tar": "_lib.tar", "c": "", "o": ""}
_CONFIG, _OUT = "build.toml", "out"
_SHOWN = 4000

Files = dict[str, bytes]


@dataclass(frozen=True)
class RowResult:
    """What came of a row."""

    report: Mapping[str, Any]  # what ``mlfc compile --json`` says of it
    files: Files


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

    def sent(text: object) -> object:
        if not isinstance(text, str):
            return text
        head, equals, tail = text.rpartition("=")
        path = row.folder / tail
        is_file = tail and "\0" not in tail and len(tail) < 1000 and path.is_file()
        return f"{head}{equals}{shipped(path)}" if is_file else text

    model = shipped(row.path)
    options = {
        key: [sent(item) for item in value] if isinstance(value, list) else sent(value)
        for key, value in row.options.items()
    }
    # the texts of JSON are those of TOML
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in options.items()]
    files[_CONFIG] = "\n".join((*lines, "")).encode()
    suffix = _SUFFIXES.get(str(row.options.get("emit")), ".model-lib" if row.options.get("rfc") is True else ".tar")
    return f"{row.model}={model}", row.name + suffix, files, row.name


def compile_row(model: str, output: str, files: Files, name: str) -> RowResult:
    """Compile a row with ``mlfc compile`` in a process of its own, which may die without harm to others.

    `model`: NAME=FILE. `output`: the name of what is made, a file or a folder. `files`: all that the options name.
    Raises RunError with what the process said if it fails.
    """
    with TemporaryFolder() as folder:
        for path, data in files.items():
            Path(folder, path).write_bytes(data)
        Path(folder, _OUT).mkdir()
        command = [
            sys.executable,
            "-m",
            "mlfc",
            "compile",
            model,
            "--config",
            _CONFIG,
            "-o",
            f"{_OUT}/{output}",
            "--json",
        ]
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
    return RowResult(report, made)

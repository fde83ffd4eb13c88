"""Writing a tuning log: a line for each measurement that is done, so an interruption loses only what was under way."""

from __future__ import annotations

import json
import os
from pathlib import Path

from mlfc.errors import InputError, OutputError
from mlfc.support.atomic import check_writable, output_error
from mlfc.target.tuned import TEMPLATES
from mlfc.target.tuning_log import FORM, LogEntry, read_log


class LogFile:
    """A log that grows: its `entries` are those in the file, which `add` appends to."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.entries: list[LogEntry] = []
        if not self.path.exists():
            check_writable(self.path)
            return
        self.entries, whole = read_log(self.path)
        if whole < self.path.stat().st_size:  # a line that an interruption cut off
            os.truncate(self.path, whole)

    def add(self, entry: LogEntry) -> None:
        """Append an entry."""
        line = json.dumps(entry.to_json(), separators=(",", ":")) + "\n"
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise output_error(self.path, error) from error
        self.entries.append(entry)

    def current(self, target: str, optimize: str, measured: str) -> list[LogEntry]:
        """Return the entries of this version for a processor, as they were measured."""
        return [
            entry
            for entry in self.entries
            if (entry.form, entry.templates, entry.target, entry.optimize, entry.measured)
            == (FORM, TEMPLATES, target, optimize, measured)
        ]


def require_log_name(path: str | os.PathLike[str]) -> None:
    """Raise OutputError where a log would replace something else: a model, an archive."""
    try:
        if Path(path).exists():
            read_log(path)
    except InputError as error:
        raise OutputError(
            "this file is no tuning log", place=str(path), next_step="Name another file with -o"
        ) from error

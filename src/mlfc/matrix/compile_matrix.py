"""Compiling all rows of a matrix, here or on a cluster. One that fails does not stop the others."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mlfc.cluster import BUILD, Workers, opened_workers
from mlfc.errors import MlfcError, OutputError
from mlfc.matrix import index
from mlfc.matrix.jobs import compile_row, job_of
from mlfc.matrix.rows import MatrixRow, read_rows
from mlfc.support.atomic import atomic_file, check_writable, write_folder
from mlfc.support.content import Data, FileContent
from mlfc.support.plain_file import private_folder
from mlfc.support.progress import bar, reported
from mlfc.support.tar import source_date, write_tar
from mlfc.support.text import Displayed

_ARCHIVE = ".tar"


@dataclass(frozen=True, repr=False)
class MatrixResult(Displayed):
    """What was made of a matrix."""

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
        A folder for what is made and its index, or a ``.tar``.
    scheduler : str, optional
        The address of a dask scheduler, whose workers with the resource ``BUILD`` compile; default: this machine.
    progress : callable or bool, optional
        Called with the number of rows that are done, of all, and the name of the last one. True: a bar, on a terminal
        or in a notebook.

    Returns
    -------
    MatrixResult

    Raises
    ------
    MlfcError
        For a matrix file that is wrong, an output that cannot be written, and a scheduler that does not answer. Rows
        that fail are in the result.

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
        raise OutputError("there is a file of this name", place=str(place), next_step="Name a folder, or a .tar")
    reporting = reported(progress, partial(bar, f"compiling {Path(matrix).name}"))
    with (
        reporting as report,
        opened_workers(scheduler, BUILD) as workers,
        tempfile.TemporaryDirectory(dir=private_folder()) as stage,
    ):
        made = _FinishedRows(rows, Path(stage), report)
        made.compile(workers)
        entries = [made.entries[number] for number in range(len(rows))]
        problems = tuple(made.problems[number] for number in sorted(made.problems))
        files: dict[str, Data] = {path: FileContent(Path(stage, path)) for path in made.files}
        files |= {"index.json": index.as_json(entries).encode(), "index.html": index.as_html(entries).encode()}
        if place.suffix == _ARCHIVE:
            with atomic_file(place) as file:
                write_tar(file, files, source_date())
        else:
            write_folder(place, files)
    return MatrixResult(place, tuple(entries), problems)


class _FinishedRows:
    """The rows of a matrix as they get done; what is made of them is kept in files of a folder."""

    def __init__(self, rows: list[MatrixRow], stage: Path, progress: Callable[[int, int, str], None]) -> None:
        self._rows, self._stage, self._progress = rows, stage, progress
        self.entries: dict[int, dict[str, Any]] = {}
        self.problems: dict[int, MlfcError] = {}
        self.files: list[str] = []

    def compile(self, workers: Workers) -> None:
        """Compile all rows."""
        jobs: list[tuple[Any, ...]] = []
        numbers: list[int] = []
        for number, row in enumerate(self._rows):
            try:
                jobs.append(job_of(row))
                numbers.append(number)
            except MlfcError as error:
                self._failed(number, error)
        for outcome in workers.run(BUILD, compile_row, jobs):
            number = numbers[outcome.index]
            if outcome.error is not None:
                self._failed(number, outcome.error)
                continue
            sizes = {path: len(data) for path, data in outcome.value.files.items()}
            for path, data in outcome.value.files.items():
                (self._stage / path).parent.mkdir(parents=True, exist_ok=True)
                (self._stage / path).write_bytes(data)
            self.files += sizes
            self.entries[number] = index.entry(self._rows[number], sizes, outcome.value.report, None)
            self._show(number)

    def _failed(self, number: int, error: MlfcError) -> None:
        name = self._rows[number].name
        error.place = name if error.place in (None, name) else f"{name}: {error.place}"
        self.problems[number] = error
        self.entries[number] = index.entry(self._rows[number], {}, {}, str(error))
        self._show(number)

    def _show(self, number: int) -> None:
        self._progress(len(self.entries), len(self._rows), self._rows[number].name)

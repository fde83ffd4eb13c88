"""The current work, shown on standard error while a person watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stage(text: str) -> Iterator[None]:
    """Show `text` with a spinner while the block runs, but only if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


@contextmanager
def stages(text: str) -> Iterator[Callable[[str], None]]:
    """Show `text` with a spinner on a terminal while the block runs; yield what adds the name of a step to it."""
    if not sys.stderr.isatty():
        yield lambda _step: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as shown:
        yield lambda step: shown.update(f"{text}: {step}")


@contextmanager
def bar(text: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show a bar on a terminal while the block runs; yield what sets it: done, of how many, and a note."""
    if not sys.stderr.isatty():
        yield lambda _done, _total, _note: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn(text),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(text, total=None, note="")
        yield lambda done, total, note: shown.update(task, completed=done, total=total, note=note)

"""Progress display on a terminal, or in a notebook as one output that is updated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from html import escape
from typing import Any, TypeVar, cast

Show = TypeVar("Show", bound=Callable[..., object])


@contextmanager
def stage(text: str) -> Iterator[Callable[[str], None]]:
    """Show `text` during the block, with a spinner on a terminal; yield a function that appends the name of a step."""
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(text) as shown:
            yield lambda step: shown.update(f"{text}: {step}")
        return
    show = _cell() or _nothing
    show(text, escape(text))
    yield lambda step: show(f"{text}: {step}", escape(f"{text}: {step}"))


@contextmanager
def bar(text: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show a progress bar while the block runs; yield the function that sets it: done, total and a note."""
    if sys.stderr.isatty():
        with _bar_of_terminal(text) as show:
            yield show
        return
    cell = _cell() or _nothing

    def shown(done: int, total: int, note: str) -> None:
        told = f"{text}: {done} of {total} {note}".rstrip()
        meter = f'<progress value="{done}" max="{total}"></progress>'
        cell(told, f"{escape(text)} {meter} {done}/{total} {escape(note)}".rstrip())

    yield shown


@contextmanager
def reported(wanted: Show | bool | None, shown: Callable[[], AbstractContextManager[Show]]) -> Iterator[Show]:
    """Yield a progress function: the caller's own, that of `shown` for True, else one that does nothing."""
    if wanted is True:
        with shown() as show:
            yield show
    else:
        yield wanted or cast("Show", _nothing)


def _nothing(*_: object) -> None:
    pass


@contextmanager
def _bar_of_terminal(text: str) -> Iterator[Callable[[int, int, str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    whole = Column(no_wrap=True)
    columns = (
        TextColumn(text, table_column=whole),
        BarColumn(20),
        MofNCompleteColumn(table_column=whole),
        TimeElapsedColumn(table_column=whole),
        # on a narrow terminal the note is shortened first
        TextColumn("{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
    )
    with Progress(*columns, console=Console(stderr=True), expand=True) as shown:
        task = shown.add_task(text, total=None, note="")
        yield lambda done, total, note: shown.update(task, completed=done, total=total, note=note)


def _cell() -> Callable[[str, str], None] | None:
    """Return a function that shows text or HTML in the current notebook cell; None outside of notebooks."""
    # in a notebook, IPython is already imported
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is None:
        return None
    from importlib import import_module

    display = import_module("IPython.display").display
    handle: list[Any] = []

    def show(text: str, html: str) -> None:
        data = {"text/plain": text, "text/html": html}
        if handle:
            handle[0].update(data, raw=True)
        else:
            handle.append(display(data, raw=True, display_id=True))

    return show

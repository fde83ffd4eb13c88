"""Help of the program and its groups fits a terminal of 80 columns."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from mlfc.cli.main import GROUPS, app


def summaries(words: list[str], command: typer.Typer = app) -> dict[str, str]:
    """Return the summary of each command of a group at 80 columns, by name."""
    done = CliRunner().invoke(command, [*words, "--help"], prog_name="mlfc", terminal_width=80)
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
    rows = done.output.partition("\nCommands:\n")[2].partition("\n\n")[0].splitlines()
    return dict(row.split(maxsplit=1) for row in rows)


@pytest.mark.parametrize("words", [[], *([name] for name, *_ in GROUPS)], ids=["mlfc", *(name for name, *_ in GROUPS)])
def test_no_summary_is_cut_off(words: list[str]) -> None:
    found = summaries(words)
    assert found
    assert [name for name, summary in found.items() if summary.endswith("...")] == []


def test_cut_summaries_are_found() -> None:
    group = typer.Typer(rich_markup_mode=None)
    group.command("short", help="Fits.")(lambda: None)
    group.command("long", help="Does something that takes more words to describe than a line of 80 columns has.")(
        lambda: None
    )
    found = summaries([], group)
    assert found["short"] == "Fits."
    assert found["long"].endswith("...")

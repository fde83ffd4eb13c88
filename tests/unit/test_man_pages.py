"""The manual pages contain the help texts in man's format."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from mlfc.cli.main import app
from tests.conftest import need

DOCS = Path(__file__).resolve().parents[2] / "docs"
MAN = DOCS / "man"
PAGES = sorted(MAN.glob("*.1"))
NO_DATE = 'WARNING: missing date, using "": TH'


def shown(page: Path) -> str:
    """Return a page as man shows it, joined into one line."""
    mandoc = need("mandoc", "mandoc")
    done = subprocess.run([mandoc, "-T", "utf8", page], capture_output=True, text=True, check=True)
    return " ".join(re.sub(".\b", "", done.stdout).split())


def test_pages_have_no_fault() -> None:
    mandoc = need("mandoc", "mandoc")
    command = [mandoc, "-T", "lint", "-W", "warning", *map(str, PAGES)]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    assert len(lines) == len(PAGES)  # without a date, so that pages do not change from day to day
    assert [line for line in lines if not line.endswith(NO_DATE)] == []


def test_every_command_has_a_page_with_its_options() -> None:
    root = typer.main.get_command(app)
    commands = root.commands  # type: ignore[attr-defined]  # a group
    assert {path.stem for path in PAGES} == {"mlfc", *(f"mlfc-{name}" for name in commands)}
    program = shown(MAN / "mlfc.1")
    for name, command in commands.items():
        text = shown(MAN / f"mlfc-{name}.1")
        assert f"mlfc-{name}(1)" in program
        for each in getattr(command, "commands", {name: command}).values():
            for item in each.params:
                assert all(flag in text for flag in item.opts if flag.startswith("-")), (name, item.opts)
                help_text = " ".join((getattr(item, "help", None) or "").split()).replace("-", "‐")
                assert help_text in text.replace("-", "‐"), (name, item.name)


@pytest.mark.parametrize("text", [".so /etc/hostname", "'br", "a\\fBb", 'it\'s -x `y` ^ ~ "z"', "x\\", ".", "\\&"])
def test_text_is_never_a_request(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    from man_pages import _prose

    page = tmp_path / "page.1"
    page.write_text(f'.TH X 1 "" "x" "x"\n.SH NAME\nx \\- y\n.SH TEXT\n{_prose(text)}\n')
    assert f"TEXT {text} x X(1)" in shown(page)

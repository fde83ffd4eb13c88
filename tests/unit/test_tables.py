"""Tables say what they are given, whatever is in it."""

from __future__ import annotations

import re

import pytest

from mlfc.cli.tables import Styled, print_table


def test_a_name_cannot_write_a_row_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("largest of a\nPASS", ("name", "bytes"), [("x\nfine  1\x1b[2J", 7), ("y", None)])
    assert capsys.readouterr().out.splitlines() == [
        r"largest of a\nPASS",
        "  name               bytes",
        r"  x\nfine  1\x1b[2J      7",
        "  y                      -",
    ]


@pytest.mark.parametrize("width", [90, 60, 40, 28])
def test_names_of_boards_stay_whole_and_apart_on_a_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["arduino_nano_33_ble", "arduino_nano_33_iot", "teensy40", "teensy41"]
    rows = [(name, Styled(1000, "green"), "many words " * 9) for name in names]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    print_table("boards", ("board", "bytes", "description"), rows, names=True, optional=("description",))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= width
    shown = [name for line in lines if "1,000" in line for name in [line.split()[1]]]
    assert len({*shown}) == len(names)
    assert (shown == names) == (width > 28)
    assert ("words" in "".join(lines)) == (width >= 60)

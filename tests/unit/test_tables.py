"""Tables say what they are given, whatever is in it."""

from __future__ import annotations

import pytest

from mlfc.cli.tables import print_table


def test_a_name_cannot_write_a_row_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("largest of a\nPASS", ("name", "bytes"), [("x\nfine  1\x1b[2J", 7), ("y", None)])
    assert capsys.readouterr().out.splitlines() == [
        r"largest of a\nPASS",
        "  name               bytes",
        r"  x\nfine  1\x1b[2J      7",
        "  y                      -",
    ]

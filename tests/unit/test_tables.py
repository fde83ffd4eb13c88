"""Tables show their values, regardless of the content."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mlfc.cli.tables import Styled, print_table
from mlfc.support import progress
from mlfc.support.text import shortened


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


def _on_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, *arguments: Any, **options: Any
) -> list[str]:
    """Return the lines of a table on a terminal of this width."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(*arguments, **options)
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()


@pytest.mark.parametrize("width", [160, 120, 80, 50])
def test_long_names_become_shorter_and_stay_different(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Print one line per row, and omit optional columns before shortening names."""
    rows = [
        (index, f"functional_1/stage/activation_{index}/Relu;functional_1/stage/conv2d_{index}/Conv2D", 18_688, 2_688)
        for index in range(12)
    ]
    columns = ("call", "operator", "live bytes", "scratch")
    lines = _on_terminal(monkeypatch, capsys, width, "layers", columns, rows, optional=("scratch",))
    assert max(map(len, lines)) <= width
    shown = [line.split()[3] for line in lines if "18,688" in line]
    assert len({*shown}) == len(rows)
    assert min(map(len, shown)) >= 24
    assert any("scratch" in line for line in lines) == (width > 50)


def test_words_and_headings_are_not_broken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("acos", "elementwise", "what the target's math.h gives: within 2 ULP on common C libraries", "Arc cosine")]
    rows += [("nn.max_pool2d", "reduce", "nearest_neighbor exact; others at most 4 ULP", "Maxima of windows")]
    lines = _on_terminal(
        monkeypatch, capsys, 70, "a title that is longer than it", ("name", "kind", "contract", ""), rows
    )
    assert max(map(len, lines)) <= 70
    text = " ".join(lines)
    assert all(word in text for row in rows for cell in row for word in cell.split())


def test_a_single_row_that_is_too_wide_stands_upright(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ("instructions", "to start up", "ms at 25 MHz", "flash bytes", "RAM bytes", "of these stack")
    lines = _on_terminal(monkeypatch, capsys, 80, "firmware", columns, [(3_544_160, 160, 142.0, 46_024, 9_112, 556)])
    assert [name for name in columns if any(name in line for line in lines)] == list(columns)
    assert any("ms at 25 MHz" in line and "142" in line for line in lines)
    wide = _on_terminal(monkeypatch, capsys, 120, "firmware", columns, [(3_544_160, 160, 142.0, 46_024, 9_112, 556)])
    assert any("instructions" in line and "of these stack" in line for line in wide)


def test_bars_shorten_the_note_and_not_the_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with progress.bar("fitting vww_96_int8.tflite") as say:
        say(22, 23, "c -mcpu=cortex-m0 --workspace-io --ram 14k")
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "fitting vww_96_int8.tflite" in shown
    assert "22/23" in shown
    assert "--ram 14k" not in shown


def test_long_names_stay_different_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Shorten names that differ in the middle alone; programs read --json instead. Names that users type stay whole."""
    names = [f"functional/{'stage/' * 10}conv{index}/{'inner/' * 10}Conv2D" for index in range(2)]
    rows = [(names[0], 7, "a"), (names[1], 8, "b"), ("short", 9, "c")]
    print_table("layers", ("operator", "bytes", "kind"), rows)
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert len({*shown}) == 3
    assert max(map(len, shown)) <= 64
    print_table("layers", ("operator", "bytes", "kind"), rows, names=True)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == [*names, "short"]


def test_the_operator_of_a_long_node_comes_first() -> None:
    name = "functional_1/activation/Relu;" * 9
    assert shortened(f"{name} (CONV_2D #2)").startswith("CONV_2D #2 functional_1/")
    assert shortened(f"{name} (CONV_2D #2), {name} (RELU #13)").startswith("CONV_2D #2, RELU #13 functional")
    assert shortened("relu (RELU #1)") == "relu (RELU #1)"

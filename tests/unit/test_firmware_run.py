"""The output of firmware is read defensively, because the firmware may have stopped at any point."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mlfc.errors import OptionError, RunError
from mlfc.micro.board.board import find_board
from mlfc.micro.firmware.bare_metal import OUTPUTS, REPORT
from mlfc.micro.run.firmware_run import emulate, failure, read_outputs, read_report, run_command
from mlfc.support.tensor_info import TensorInfo


def test_a_report_is_read(tmp_path: Path) -> None:
    (tmp_path / REPORT).write_text("startup 3\nticks 25\nstack 128\n")
    assert read_report(tmp_path) == {"startup": 3, "ticks": 25, "stack": 128}


@pytest.mark.parametrize("text", ["", "ticks 1\nstack 2\n", "startup 1\nticks x\nstack 2\n", "startup\n", "é 1\n"])
def test_damaged_reports_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / REPORT).write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match="report is damaged"):
        read_report(tmp_path)


@pytest.mark.parametrize("nbytes", [0, 11, 13])
def test_outputs_of_another_size_are_refused(nbytes: int, tmp_path: Path) -> None:
    (tmp_path / OUTPUTS).write_bytes(bytes(nbytes))
    infos = [TensorInfo("a", (2, 2), "int8"), TensorInfo("b", (2,), "float32")]
    with pytest.raises(RunError, match=f"wrote {nbytes} bytes"):
        read_outputs(tmp_path, infos)


def test_every_end_has_its_words() -> None:
    assert "signal 11 ended it" in failure(-11, "")
    assert "it reset" in failure(0, "")
    assert "it reset" in failure(None, "")
    assert failure(70, "exception 0x00000003").endswith("(exception 0x00000003)")
    assert len(failure(9, "x" * 10_000)) < 500


def test_boards_without_an_emulator_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="board 'rp2040' has no known emulator"):
        run_command(find_board("rp2040"))
    with pytest.raises(OptionError, match="Emulate its core: --board mps2-an386"):
        run_command(find_board("nrf52840dk"))
    with pytest.raises(OptionError, match="no known emulator"):
        emulate(tmp_path, replace(find_board("mps2-an386"), emulator=None), 1)

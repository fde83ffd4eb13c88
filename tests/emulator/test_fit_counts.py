"""Instructions and times of ``mlfc fit --emulate`` equal those of runs on emulated boards."""

from __future__ import annotations

from pathlib import Path

import pytest

import mlfc
from mlfc.errors import ToolchainError
from mlfc.micro.fit import boards as fit_boards
from mlfc.micro.fit.boards import board_budgets
from mlfc.micro.run.emulator import emulated_factory
from mlfc.runtime.tensor.arrays import fill
from tests.emulator.conftest import need_board


def test_counts_are_those_of_runs_and_are_kept(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    m4, avr, riscv = (need_board(name) for name in ("mps2-an386", "arduino_mega", "qemu-riscv32"))
    chosen = [need_board("nucleo_f446re"), avr, riscv]
    module, params = mlfc.import_model(models / "hello_world_int8.tflite", target=m4.target)
    table = board_budgets(module, params, chosen, emulate=True)
    rows = {row.board.name: row for row in table.rows}
    made = emulated_factory(mlfc.build(module, m4.target, params), m4)
    counted = made.measure(fill(made.inputs)).instructions
    board = rows["nucleo_f446re"]
    assert counted
    assert board.count.instructions == counted
    assert board.milliseconds == pytest.approx(1000 * counted / 180e6)
    on_avr = rows["arduino_mega"]
    assert on_avr.count.instructions is None
    assert on_avr.milliseconds == pytest.approx(1000 * (on_avr.count.cycles or 0) / 16e6)
    assert rows["qemu-riscv32"].count.instructions
    assert rows["qemu-riscv32"].milliseconds is None  # the machine has no clock

    def refuse(*_args: object, **_options: object) -> None:
        raise ToolchainError("run again")

    monkeypatch.setattr(fit_boards, "emulated_factory", refuse)
    assert board_budgets(module, params, chosen, emulate=True) == table
    (other,) = board_budgets(module, params, [need_board("mps3-an547")], emulate=True).rows
    assert other.count.unknown == "run again"

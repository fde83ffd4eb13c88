"""Tuning for a board by the instruction counts of its emulator."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import mlfc
from mlfc.cluster import LocalWorkers
from mlfc.micro.board.board import find_board
from mlfc.target.target import parse_target
from mlfc.tuning.bench import BoardBench
from mlfc.tuning.kernels import tunable_kernels
from mlfc.tuning.tune import tune

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.tflite"


def test_instructions_of_candidates_are_counted_and_their_results_compared(tmp_path: Path) -> None:
    board = find_board("mps2-an386")
    module, params = mlfc.import_model(DIGITS)
    (kernel, *_) = tunable_kernels(module, params, parse_target(board.target))
    candidates = [{"template": "plain"}, {"unroll": "2"}]
    (first,) = BoardBench(LocalWorkers(), board, board.name, 0).measure([(kernel, candidates)])
    plain, unrolled = first.trials
    assert (plain.outcome, unrolled.outcome) == ("right", "right")
    assert plain.ratio is not None
    assert unrolled.ratio is not None
    assert plain.ratio > 1.5 > unrolled.ratio > 1.0, "the plain loops take the most instructions, then short turns"
    assert first.cost is not None
    assert first.cost == int(first.cost)
    # the same through the public function; the log names the board
    log = tmp_path / "tune.jsonl"
    found = tune(DIGITS, output=log, board=board, trials=1)
    assert found.is_complete
    assert {json.loads(line)["measured"] for line in log.read_text().splitlines()} == {"mps2-an386"}
    tuned = mlfc.compile(DIGITS, board.target, tuned=log)
    x = np.random.default_rng(0).integers(-128, 128, tuned.inputs[0].shape, np.int8)
    plain_model = mlfc.compile(DIGITS, board.target)
    assert [y.tobytes() for y in tuned.run(x).values()] == [y.tobytes() for y in plain_model.run(x).values()]

"""A short seeded run of the mutants that ``make fuzz`` compares with ONNX Runtime and LiteRT, and of its own parts."""

from __future__ import annotations

import os
import signal
from collections import Counter

import numpy as np
import pytest

from fuzz import differential
from fuzz.differential import NAME, Known, Outcome, Sample, fuzz, known_differences, sample_of

SEED = 4


def test_mutants_agree_with_the_references() -> None:
    counts: Counter[str] = Counter()
    failures = fuzz(float("inf"), SEED, mutants=64, counts=counts, refusals=Counter())
    assert not failures, "\n".join(failure.cause for failure in failures)
    assert counts["equal"] > 40


def test_a_difference_is_found_and_can_be_replayed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(differential, "close", lambda ours, *_, **__: np.zeros(ours.shape, bool))
    monkeypatch.setattr(differential, "known_differences", list)
    monkeypatch.setattr(differential, "_is_ill_conditioned", lambda *_: False)
    monkeypatch.setattr(differential, "_TURNS", (("llvm", "aot"),))
    counts: Counter[str] = Counter()
    failures = fuzz(float("inf"), SEED, mutants=1, counts=counts, refusals=Counter(), batch=4)
    assert {failure.target for failure in failures} == {NAME}
    assert counts["wrong"] + counts["peers disagree"] == len(failures)
    sample = sample_of(failures[0].data)
    assert sample.expected
    assert differential.replayed(failures[0].data)
    assert sample.title in capsys.readouterr().out


def test_a_crash_ends_its_batch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differential, "outcomes", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    failures = fuzz(float("inf"), SEED, mutants=1, counts=Counter(), refusals=Counter(), batch=2)
    assert failures
    assert all("crash" in failure.cause and "signal 9" in failure.cause for failure in failures)


def test_documented_differences_have_reasons_and_patterns() -> None:
    for known in known_differences():
        assert len(known.reason) > 20
        assert known.operators or known.title or known.cause, known
    wrong = Outcome(Sample(0, "test_x + dtype", ("Mul", "Relu"), b"", {}, ()), "wrong", "1 of 2 differ")
    assert Known("", operators="Mu.", title="dtype", cause="of 2").fits(wrong)
    assert not Known("", operators="Re").fits(wrong)

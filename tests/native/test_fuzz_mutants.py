"""A short seeded run of the mutants that ``make fuzz`` compares with ONNX Runtime and LiteRT, and of its parts."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from mmap import mmap

import numpy as np
import pytest
from onnx import TensorProto, helper

import mlfc
from fuzz import differential
from fuzz.differential import NAME, Known, Outcome, Sample, fuzz, known_differences, sample_of
from tests.onnx_models import model

# tests/native compiles the same operators with the flags of libraries
pytestmark = pytest.mark.usefixtures("quick_builds")

SEED = 4


def _valid() -> Iterator[int]:
    """Yield the numbers of mutants that LiteRT runs."""
    for number in range(99):
        with suppress(Exception):
            differential.tflite_sample(SEED, number)
            yield number


def test_mutants_agree_with_the_references() -> None:
    counts: Counter[str] = Counter()
    failures = fuzz(float("inf"), SEED, mutants=40, counts=counts, refusals=Counter())
    assert not failures, "\n".join(failure.cause for failure in failures)
    assert counts["equal"] > 24


def test_a_difference_is_found_and_can_be_replayed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(differential, "close", lambda ours, *_, **__: np.zeros(ours.shape, bool))
    monkeypatch.setattr(differential, "known_differences", list)
    monkeypatch.setattr(differential, "_is_ill_conditioned", lambda *_: False)
    monkeypatch.setattr(differential, "_way", lambda _: ("llvm", "aot"))
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
    apart = Outcome(Sample(0, "test_x + dtype", ("Mul", "Relu"), b"", {}, ()), "peers disagree", "1 of 2 differ")
    assert Known("", operators="Mu.", title="dtype", cause="of 2").fits(apart)
    assert not Known("", operators="Re").fits(apart)
    wrong = replace(apart, kind="wrong")
    assert not Known("", operators="Relu").fits(wrong)
    assert Known("", operators="Relu", wrong=True).fits(wrong)
    assert not Known("", operators="Relu", wrong=True).fits(replace(apart, kind="crash"))


def test_a_crash_of_a_reference_is_not_that_of_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    once = mmap(-1, 1)

    def outcomes(samples: list[Sample], *_: object) -> list[Outcome]:
        if not once[0]:
            once[0] = 1
            os.kill(os.getpid(), signal.SIGKILL)
        return [Outcome(sample, "equal") for sample in samples]

    monkeypatch.setattr(differential, "outcomes", outcomes)
    found = differential._batch(differential.tflite_sample, SEED, [next(_valid())], 0)
    assert [outcome.kind for outcome in found] == ["equal"]


def test_statistics_of_narrow_floats_are_float32() -> None:
    node = helper.make_node("LayerNormalization", ["x", "scale"], ["y", "mean", "inverse"], epsilon=0.0)
    scale = {"scale": np.array([1, 2, 3, 4], np.float16)}
    data = model([node], {"x": (1, 4)}, ["y", "mean", "inverse"], scale, dtype=TensorProto.FLOAT16)
    found = mlfc.compile(data, "llvm").run({"x": np.array([[1, 1.5, 2, 2.5]], np.float16)})
    assert [str(array.dtype) for array in found.values()] == ["float16", "float32", "float32"]
    np.testing.assert_allclose(found["y"], [[-1.342, -0.894, 1.342, 5.367]], rtol=1e-3)
    np.testing.assert_array_equal(found["mean"], [[1.75]])
    np.testing.assert_allclose(found["inverse"], [[1 / 0.3125**0.5]], rtol=1e-6)


def test_attributes_beside_integers_are_real_numbers() -> None:
    data = model(
        [helper.make_node("Shrink", ["x"], ["y"], bias=1.5, lambd=0.5)], {"x": (4,)}, ["y"], dtype=TensorProto.INT32
    )
    found = mlfc.compile(data, "llvm").run({"x": np.array([-5, 0, 1, 5], np.int32)})
    np.testing.assert_array_equal(found["y"], [-3, 0, 0, 3])

"""TFLite Micro's signal operators, against its own results: integers bit for bit, run by run.

The results are in ``golden/signal.npz``, written by ``golden/make_signal.py``.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.errors import MlfcError
from tests.signal_cases import RUNS, Case, front_end, signal_cases
from tests.tflite_builder import Op, T, build

Results = dict[str, np.ndarray]
CASES = signal_cases()


@pytest.fixture(scope="module")
def golden() -> Results:
    with np.load(Path(__file__).parents[1] / "golden" / "signal.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def results() -> Results:
    """Return the outputs of all runs of all operators, which are in one model."""
    tensors, fed = (
        [tensor for case in CASES for tensor in case.tensors],
        [name for case in CASES for name in case.runs[0]],
    )
    model = mlfc.compile(
        build(
            tensors, [op for case in CASES for op in case.ops], fed, [name for case in CASES for name in case.outputs]
        ),
        target="llvm",
        numerics="tflm",
    )
    runs = [model.run({name: value for case in CASES for name, value in case.runs[run].items()}) for run in range(RUNS)]
    return {name: np.stack([run[name] for run in runs]) for name in runs[0]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operator_gives_what_tflite_micro_gives(case: Case, golden: Results, results: Results) -> None:
    validity = next((golden[name] for name in case.outputs if golden[name].dtype == bool), np.ones(RUNS, bool))
    for name in case.outputs:
        ours, theirs = results[name], golden[name]
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        # results that are not valid yet are uninitialized memory
        rows = np.ones(RUNS, bool) if theirs.dtype == bool else validity
        if case.tolerance:
            largest = float(np.abs(theirs).max())
            np.testing.assert_allclose(ours[rows], theirs[rows], rtol=0, atol=case.tolerance * largest)
        else:
            np.testing.assert_array_equal(ours[rows], theirs[rows])


@pytest.mark.usefixtures("quick_builds")
def test_a_front_end_gives_what_tflite_micro_gives(golden: Results) -> None:
    case = front_end()
    model = mlfc.compile(build(case.tensors, case.ops, ["samples"], case.outputs))
    found = [model.run(run) for run in case.runs]
    for name in case.outputs:
        assert len(np.unique(golden[name])) > 1
        ready = golden["ready"] if name == "stack" else np.ones(len(found), bool)
        np.testing.assert_array_equal(np.stack([run[name] for run in found])[ready], golden[name][ready])


def test_a_circular_buffer_is_the_variable_that_it_writes() -> None:
    tensors = [T("x", (1, 1, 1, 2), "int8", scale=0.1, zero=3), T("flat", (1,), "int32", [6])]
    tensors += [
        T("slots", (1, 3, 1, 2), "int8", scale=0.1, zero=3, is_variable=True),
        T("y", (6,), "int8", scale=0.1, zero=3),
    ]
    ops = [Op("CUSTOM CIRCULAR_BUFFER", ["x"], ["slots"], custom={"cycles_max": 1}),
           Op("RESHAPE", ["slots", "flat"], ["y"], "ReshapeOptions", {"NewShape": [6]})]  # fmt: skip
    model = mlfc.compile(build(tensors, ops, ["x"], ["y"]), target="llvm")
    slices = [np.array([run, -run], np.int8) for run in range(1, 5)]
    found = [model.run({"x": part.reshape(1, 1, 1, 2)})["y"] for part in slices]
    before = [np.full(2, 3, np.int8)] * 2  # the zero point
    for run, result in enumerate(found):
        np.testing.assert_array_equal(result, np.concatenate([*before, *slices][run : run + 3]))
    ops[0].custom = {"cycles_max": 2}
    with pytest.raises(MlfcError, match="a buffer after which most runs stop"):
        mlfc.import_model(build(tensors, ops, ["x"], ["y"]))


_WINDOW = [T("x", (4,), "int16"), T("w", (4,), "int16", [1, 2, 3, 4]), T("y", (4,), "int16")]
_FRAMES = [T("x", (8,), "int16"), T("y", (2, 6), "int16"), T("valid", (), "bool")]
_SPECTRUM = [T("x", (14,), "int16"), T("y", (16,), "int16")]


@pytest.mark.parametrize(
    ("operator", "tensors", "options", "message"),
    [
        ("Window", _WINDOW, None, "expected a map of options"),
        ("Window", _WINDOW, {"shift": 32}, "'shift' between 0 and 31, got 32"),
        ("Window", _WINDOW, {"shift": "much"}, "expected a number"),
        ("Window", _WINDOW, {"other": 1}, "'shift' is missing"),
        ("Framer", _FRAMES, {"frame_size": 6, "frame_step": 3, "prefill": 0}, "do not fit"),
        ("Framer", _FRAMES, {"frame_size": 0, "frame_step": 4, "prefill": 0}, "'frame_size'"),
        ("Framer", _FRAMES, {"frame_size": (1 << 31) - 1, "frame_step": 4, "prefill": 1}, "constants"),
        ("Rfft", _SPECTRUM, {"T": 7, "fft_length": 14}, "prime factors 2, 3 and 5"),
        ("Rfft", _SPECTRUM, {"T": 7, "fft_length": 12}, "do not fit transforms of 12"),
    ],
)
def test_what_cannot_be_is_refused(operator: str, tensors: list[T], options: dict[str, int], message: str) -> None:
    results = [tensor.name for tensor in tensors if tensor.name in ("y", "valid")]
    given = [tensor.name for tensor in tensors if tensor.name not in results]
    model = build(tensors, [Op(f"CUSTOM Signal{operator}", given, results, custom=options)], ["x"], results)
    with pytest.raises(MlfcError, match=message):
        mlfc.import_model(model)


def test_damaged_options_are_refused_or_read() -> None:
    options = {"frame_size": 6, "frame_step": 4, "prefill": True}
    op = Op("CUSTOM SignalFramer", ["x"], ["y", "valid"], custom=options)
    model, rng = build(_FRAMES, [op], ["x"], ["y", "valid"]), np.random.default_rng(1)
    begin = model.index(b"frame_size")
    for _ in range(150):
        damaged = bytearray(model)
        damaged[begin + int(rng.integers(0, 64))] = int(rng.integers(0, 256))
        with suppress(MlfcError):
            mlfc.import_model(bytes(damaged))

"""Tuning without a clock: the search and its log with synthetic measurements, and equal bits for all values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import mlfc
from mlfc.errors import InputError, OptionError, OutputError
from mlfc.runtime.executors.aot_module import AotModule
from mlfc.runtime.tensor.arrays import fill
from mlfc.support.platforms import host_arch
from mlfc.target.target import parse_target
from mlfc.target.tuning_log import TuningLog, opened_log, shipped_log, values_key
from mlfc.tuning import kernels
from mlfc.tuning.bench import Batch, BatchResult, _sampled, build, plain_code
from mlfc.tuning.kernels import tunable_kernels
from mlfc.tuning.log import best_so_far, page
from mlfc.tuning.search import Trial
from mlfc.tuning.tune import TuningResult, tune
from tests.onnx_models import model

TARGET = "c -mcpu=x86-64-v4"


def _integers() -> bytes:
    """Return a convolution and a matrix product on bytes."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return rng.integers(-9, 9, shape, np.int8)

    nodes = [
        helper.make_node("ConvInteger", ["x", "first"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("MatMulInteger", ["x", "second"], ["b"]),
    ]
    given = {"first": weights(16, 8, 3, 3), "second": weights(10, 12)}
    made = model(nodes, {"x": (1, 8, 8, 10)}, ["a", "b"], given, dtype=TensorProto.INT8)
    return bytes(made.SerializeToString())


def _network() -> bytes:
    """Return a strided convolution, a depthwise one and a dense layer, all on floats."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], kernel_shape=[3, 3]),
        helper.make_node("Conv", ["a", "second"], ["b"], kernel_shape=[3, 3], group=40, pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["b", "third"], ["c"], kernel_shape=[1, 1], strides=[2, 2]),
    ]
    given = {"first": weights(40, 20, 3, 3), "second": weights(40, 1, 3, 3), "third": weights(24, 40, 1, 1)}
    made: bytes = model(nodes, {"x": (1, 20, 8, 10)}, ["c"], given).SerializeToString()
    return made


@dataclass
class _MadeUp:
    """Synthetic costs that depend only on the values; `tries` lists all measured candidates."""

    stop_after: int = 1 << 30
    slow: bool = False  # all differences are below the noise
    tries: list[str] = field(default_factory=list)
    name: str = "time"
    margin: float = 0.03
    at_once: int = 2

    def measure(self, batches: Sequence[Batch]) -> Iterator[BatchResult]:
        for index, (kernel, candidates) in enumerate(batches):
            if len(self.tries) >= self.stop_after:
                raise KeyboardInterrupt
            trials = []
            for values in candidates:
                self.tries.append(kernel.facts.key + values_key(values))
                ratio = 0.99 if self.slow else 1.1 - sum(map(len, values.values())) / 20
                trials.append(Trial(values, "wrong" if values.get("order") else "right", ratio, ratio))
            yield BatchResult(index, tuple(trials), 1e-6)


def _tuned(log: Path, bench: Any, **more: Any) -> TuningResult:
    return tune(_network(), TARGET, output=log, bench=bench, trials=12, **more)


def test_an_interrupted_search_goes_on_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    once = _MadeUp()
    result = _tuned(whole, once)
    first = _MadeUp(stop_after=9)
    with pytest.raises(KeyboardInterrupt):
        _tuned(cut, first)
    with cut.open("a") as file:
        file.write('{"form":1,"templ')  # an incomplete line
    second = _MadeUp()
    again = _tuned(cut, second)
    recorded = [line for line in cut.read_text().splitlines() if '"trial"' in line]
    assert len(recorded) == len(set(recorded)) == len(_lines(whole, "trial")), "measured twice, or lost"
    assert sorted(_lines(cut, "choice")) == sorted(_lines(whole, "choice"))
    assert again.kernels == result.kernels
    assert again.is_complete
    assert any(item.values for item in result.kernels)
    assert all("order" not in item.values for item in result.kernels), "wrong results won"
    third = _MadeUp()
    _tuned(cut, third)
    assert not third.tries
    other = _MadeUp()
    _tuned(tmp_path / "other.jsonl", other, seed=1)
    assert other.tries != once.tries


def _lines(path: Path, kind: str) -> list[str]:
    return [line for line in path.read_text().splitlines() if f'"kind":"{kind}"' in line]


def test_what_is_hardly_faster_does_not_win_and_a_spent_budget_ends_the_search(tmp_path: Path) -> None:
    noisy = _tuned(tmp_path / "noise.jsonl", _MadeUp(slow=True))
    assert noisy.is_complete
    assert not any(item.values for item in noisy.kernels)
    ticks = iter((0.0, 1.0, 11.0, *[11.0] * 100))
    seen = []
    spent = _tuned(tmp_path / "spent.jsonl", _MadeUp(), budget=10.0, clock=lambda: next(ticks), progress=seen.append)
    assert not spent.is_complete
    assert (seen[0].done, seen[-1].kernels) == (0, len(spent.kernels))
    entries = opened_log(tmp_path / "noise.jsonl").entries
    assert best_so_far([entry for entry in entries if entry.kind == "trial"])[-1] == pytest.approx(0.99)
    own = {item.key for item in noisy.kernels}
    assert "<polyline" in page("a < b", entries, own)
    assert "a &lt; b" in page("a < b", entries, own)
    assert page("other model", entries, [noisy.kernels[0].key]).count("<tr><td>") == 1


def test_samples_are_taken_by_turns_and_hopeless_candidates_dropped() -> None:
    now, order = [0.0], []

    def candidate(number: int, seconds: float) -> Any:
        def run(repeats: int) -> None:
            order.append(number)
            # other work slows down all candidates increasingly
            now[0] += repeats * seconds * (1 + now[0])

        return run

    samples = _sampled([candidate(0, 1e-3), candidate(1, 5e-4), candidate(2, 9e-3)], 1e9, lambda: now[0])
    assert len(samples[0]) == len(samples[1]) > len(samples[2])
    assert order[1:7] == [0, 1, 2, 1, 2, 0]
    assert np.median(np.array(samples[1]) / samples[0]) == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(
    ("source", "target"),
    [(_integers, "c -mcpu=cortex-m3"), (_network, "c -mcpu=x86-64-v3"), (_network, TARGET)],
    ids=["plain", "16 registers", "32 registers"],
)
def test_all_values_of_a_parameter_give_the_same_bits(source: Callable[[], bytes], target: str) -> None:
    """Build each kernel with one other value per parameter, for this machine and any number of registers."""
    module, params = mlfc.import_model(source())
    for kernel in tunable_kernels(module, params, parse_target(target)):
        parameters = kernel.parameters({})
        # one at a time, and all of them together
        picked = [
            {name: values[1 if name == "strip" else -1]} for name, values in parameters.items() if len(values) > 1
        ]
        candidates = [{}, *picked, {name: values for item in picked for name, values in item.items()}]
        codes = []
        for values in candidates:
            factory = kernel.factory(values)
            tuned = factory.target.features.tuned
            assert tuned is not None
            if len(values) < 2:  # a combination may exclude single values
                assert not tuned.refused, values
            codes.append(plain_code(factory.code.files))
        assert len({tuple(code.items()) for code in codes}) > len(candidates) // 2, "parameters without effect"
        results = []
        for code in codes:
            path = _library(code)
            loaded = AotModule(path, factory.interface())
            (output,) = loaded.run(fill(loaded.inputs, "random", 3)).values()
            results.append(output.tobytes())
        assert set(results) == {results[0]}, (kernel.title, candidates)


def _library(code: dict[str, bytes]) -> Path:
    import tempfile

    path = Path(tempfile.mkdtemp(), "kernel.so")
    path.write_bytes(build(code))
    return path


def test_a_build_takes_the_choices_of_a_log_and_says_which_it_cannot(tmp_path: Path) -> None:
    log = tmp_path / "tune.jsonl"
    _tuned(log, _MadeUp())
    plain = mlfc.compile(_network(), TARGET).factory
    tuned = mlfc.compile(_network(), TARGET, tuned=log).factory
    assert plain.lib.get_source() != tuned.lib.get_source()
    assert tuned.lib.get_source() == mlfc.compile(_network(), TARGET, tuned=opened_log(log)).factory.lib.get_source()
    chosen = next(json.loads(line) for line in _lines(log, "choice") if '"tile"' in line)
    for changes, text in (
        ({"values": {"tile": "99x1x1"}}, "parameters that templates no longer support"),
        ({"templates": 0}, "another version"),
        ({"target": "c -mcpu=cortex-m4"}, "only for: c -mcpu=cortex-m4"),
        ({"form": 7, "kind": "else"}, "another version"),
    ):
        log.write_text(json.dumps({**chosen, **changes}) + "\n")
        with pytest.warns(UserWarning, match=text) as caught:
            made = mlfc.compile(_network(), TARGET, tuned=log).factory
        assert len(caught) == 1
        assert made.lib.get_source() == plain.lib.get_source()
    # additional instructions do not make a processor a different one
    log.write_text(json.dumps(chosen) + "\n")
    native = mlfc.compile(_network(), f"{TARGET} -mattr=+avx512vnni", tuned=log).factory
    assert native.lib.get_source() != mlfc.compile(_network(), f"{TARGET} -mattr=+avx512vnni").factory.lib.get_source()
    # the choices for the highest level determine the order of weights for all levels
    every = mlfc.compile(_network(), "c -mcpu=auto -mtriple=x86_64", tuned=TuningLog((_entry(chosen),))).factory
    constants = sum(value.nbytes for value in every.program.constants)
    assert constants <= 1.4 * sum(value.nbytes for value in plain.program.constants)


@pytest.mark.parametrize("name", ["kws_ref_model", "ad01_int8"])
def test_the_log_that_comes_with_mlfc_fits_the_templates(name: str) -> None:
    """If this fails because a template has new values, measure again: `python -m benchmarks.tuning FOLDER`."""
    path = Path(__file__).resolve().parents[3] / "shared" / "models" / f"{name}.tflite"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    target = parse_target(TARGET)
    log = shipped_log(target)
    assert log is not None
    assert shipped_log(parse_target("c -mcpu=auto -mtriple=x86_64")) is log
    assert shipped_log(parse_target("c -mcpu=cortex-m4")) is None
    module, params = mlfc.import_model(path)
    factory = mlfc.build(module, TARGET, params)
    tuned = factory.unit.target.features.tuned
    assert tuned is not None
    assert len(tuned.used) >= 2
    assert not tuned.refused
    untuned = mlfc.build(module, TARGET, params, tuned="none")
    assert untuned.lib.get_source() != factory.lib.get_source()
    assert mlfc.build(module, TARGET, params).lib.get_source() == factory.lib.get_source()


def _entry(line: dict[str, Any]) -> Any:
    from mlfc.target.tuning_log import LogEntry

    return LogEntry.from_json(line)


_GOOD: dict[str, Any] = {
    "form": 1, "templates": 1, "kind": "choice", "target": "c", "optimize": "speed",
    "kernel": {"operator": "nn.dense", "inputs": [], "attributes": {}}, "values": {}, "outcome": "right",
    "ratio": 1.0, "measured": "time",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\x7fELF\n", "not JSON"),
        (b"\x7fELF" * 10, "expected JSON lines"),
        (b"[1]\n", "expected an object"),
        (b"[" * 70000 + b"\n", "line exceeds"),
        (b"[" * 5000 + b"\n", "nested|too many"),
        (json.dumps({**_GOOD, "values": {"tile": [1, 2]}}).encode() + b"\n", "values.tile"),
        (json.dumps({**_GOOD, "values": {"tile": "1" * 300}}).encode() + b"\n", "values.tile"),
        (json.dumps({**_GOOD, "kind": "other"}).encode() + b"\n", "kind"),
        (json.dumps({**_GOOD, "form": -1}).encode() + b"\n", "form"),
        (json.dumps({key: _GOOD[key] for key in list(_GOOD)[:5]}).encode() + b"\n", "kernel"),
        (b"\n" * 200_001, "lines"),
    ],
)
def test_hostile_logs_are_refused_with_the_line(tmp_path: Path, text: bytes, message: str) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(text)
    with pytest.raises(InputError, match=message) as caught:
        opened_log(log)
    assert str(log) in str(caught.value)
    with pytest.raises(OutputError, match="not a tuning log"):
        _tuned(log, _MadeUp())
    assert log.read_bytes() == text


def test_misuse_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    if host_arch() == "x86_64":
        monkeypatch.setattr(kernels, "native_cpu", lambda: "x86-64-v3")
        assert kernels.level_to_build(parse_target("c -mcpu=x86-64")) == "x86-64"
        assert kernels.level_to_build(parse_target("c -mcpu=x86-64-v3")) is None
        with pytest.raises(OptionError, match="lacks 'x86-64-v4'"):
            tune(_network(), TARGET, output=log)
    with pytest.raises(OptionError, match="cannot run here"):
        tune(_network(), "c -mcpu=cortex-m4", output=log)
    with pytest.raises(OptionError, match="dynamic one for 'x'"):
        tune(_network(), output=log, shapes={"x": (mlfc.Dim("batch", 1, 4), 20, 8, 10)})
    with pytest.raises(OptionError, match="device"):
        tune(_network(), "opencl", output=log)
    with pytest.raises(OptionError, match="at least 1 trial"):
        tune(_network(), output=log, trials=0)
    with pytest.raises(OptionError, match="expected an address"):
        tune(_network(), output=log, scheduler="10.0.0.5")
    with pytest.raises(OptionError, match="expected a tuning log"):
        mlfc.compile(_network(), tuned=3)
    with pytest.raises(InputError, match="No such file"):
        mlfc.compile(_network(), tuned=log)

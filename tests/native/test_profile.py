"""Profiles time the operators that run, and cost nothing unless requested; tested with counting clocks."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.archive import load_profiled
from mlfc.archive.describe.profile import profiled_factory
from mlfc.codegen import c_parallel
from mlfc.errors import InputError, OptionError
from mlfc.factory import Factory
from mlfc.library.toolchain import compile_cached
from mlfc.relay import ir
from mlfc.runtime import AotModule
from mlfc.runtime.executors import profile as profiles
from mlfc.runtime.threads import count_launches
from mlfc.support.dims import Symbol
from mlfc.tir import parallel
from tests.harness import interface, module_of
from tests.native import counting_clocks
from tests.native.counting_clocks import passed
from tests.native.programs import chain, generated

pytestmark = pytest.mark.usefixtures("quick_builds")

RNG = np.random.default_rng(5)
X = RNG.standard_normal((64, 256)).astype(np.float32)
WEIGHTS = RNG.standard_normal((256, 256)).astype(np.float32)


def two_layers(variables: dict[str, ir.Var]) -> ir.Expr:
    product = ir.call("nn.dense", [variables["x"], ir.Constant(WEIGHTS)], units=256)
    return ir.call("nn.softmax", [product], axis=-1)


@pytest.fixture(scope="module")
def factory() -> Factory:
    return mlfc.build(module_of({"x": X}, {"y": two_layers}), module_name="profiled")


@pytest.fixture(scope="module")
def archive(factory: Factory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mlfc.export_model_library_format(factory, tmp_path_factory.mktemp("profile") / "profiled.tar")


def test_rows_are_the_operators_of_the_archive(archive: Path) -> None:
    profile = load_profiled(archive).profile({"x": X}, repeat=3)
    listed = mlfc.inspect(archive)["modules"]["profiled"]["operators"]
    found = [(item.index, item.function, list(item.nodes), item.macs) for item in profile.operators]
    assert found == [(i, entry["function"], entry["nodes"], entry["macs"]) for i, entry in enumerate(listed)]
    assert sum(item.share for item in profile.operators) == pytest.approx(1)
    assert len(profile.runs) == 3


@pytest.mark.parametrize("target", ["c", "llvm"])
def test_the_clock_is_read_before_and_after_each_operator(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counting_clocks.install(monkeypatch)
    factory = mlfc.build(module_of({"x": X}, {"y": two_layers}), target, module_name="profiled")
    profile = profiled_factory(factory).profile({"x": X}, repeat=2)
    number = len(profile.operators)
    # the first run is not measured; the median of two is their mean
    times = [(passed(number + i) + passed(2 * number + i)) / 2 for i in range(number)]
    assert [item.nanoseconds for item in profile.operators] == times
    assert [item.share for item in profile.operators] == pytest.approx(np.asarray(times) / sum(times))
    assert profile.runs == (passed(1), passed(2))
    timeline = profile.timeline
    assert timeline is not None
    begun = [(2 * (number + i) + 1) ** 2 for i in range(2 * number)]
    assert timeline.start.tolist() == [reading - begun[0] for reading in begun]
    assert timeline.duration.tolist() == [passed(number + i) for i in range(2 * number)]


def test_speed_is_work_by_time(archive: Path) -> None:
    dense, *others = load_profiled(archive).profile({"x": X}, repeat=1).operators
    assert dense.macs == 64 * 256 * 256
    assert dense.gmacs_per_second == pytest.approx(dense.macs / dense.nanoseconds)
    assert [item.gmacs_per_second for item in others] == [None] * len(others)


@pytest.mark.parametrize(("target", "executor"), [("c", "aot"), ("llvm", "aot"), ("c", "graph")])
def test_threads_are_timed_where_code_shares_its_work(
    target: str, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting_clocks.install(monkeypatch)
    readings = itertools.count()

    def read() -> list[float]:
        number = next(readings)
        return [number * 1e-6, number * 0.5e-6]

    for module in (parallel, c_parallel):
        monkeypatch.setattr(module, "GRAIN", 1.0)
    monkeypatch.setattr(profiles, "thread_times", read)
    mlfc.set_num_threads(2)
    try:
        made = module_of({"x": X}, {"y": two_layers})
        factory = mlfc.build(made, target, executor=executor, module_name="profiled", parallel=True)
        before = count_launches()
        profile = profiled_factory(factory).profile({"x": X}, repeat=2)
    finally:
        mlfc.set_num_threads(0)
    assert count_launches() > before
    for item in profile.operators:
        assert item.threads == pytest.approx((1000.0, 500.0))
        assert item.balance == pytest.approx(0.75)
    timeline, count = profile.timeline, len(profile.operators)
    assert timeline is not None
    assert timeline.thread.tolist() == [0] * 2 * count + [1] * 2 * count
    assert timeline.start[: 2 * count].tolist() == timeline.start[2 * count :].tolist()
    shared = np.minimum([item.threads[1] for item in profile.operators] * 2, timeline.duration[: 2 * count])
    assert timeline.duration[2 * count :].tolist() == shared.astype(int).tolist()


def test_work_of_the_virtual_machine_is_that_of_the_run(tmp_path: Path) -> None:
    batch = Symbol("batch", 1, 64)
    x = ir.Var("x", ir.TensorType((batch.dim, 256), "float32"))
    module = ir.IRModule({"main": ir.Function((x,), two_layers({"x": x}))}, ("y",))
    made = mlfc.build(module, module_name="profiled")
    archive = load_profiled(mlfc.export_model_library_format(made, tmp_path / "vm.tar"))
    library = load_profiled(made.export_library(tmp_path / "vm.so"))
    for model, rows in ((archive, 3), (archive, 64), (library, 3)):
        profile = model.profile({"x": X[:rows]}, repeat=2)
        dense = profile.operators[0]
        assert dense.macs == rows * 256 * 256
        assert dense.nbytes is not None
        assert rows * 2048 + 256 * 256 * 4 <= dense.nbytes < rows * 2048 + 256 * 256 * 4 + 4096
        assert dense.tensors[0] == dense.tensors[-1] == f"float32[{rows},256]"
        assert profile.timeline is not None
        assert len(profile.timeline) == 2 * len(profile.operators)


def test_the_profiled_module_computes_the_same_and_runs_like_any(archive: Path) -> None:
    profiled, plain = load_profiled(archive), mlfc.load(archive)
    expected = plain.run({"x": X})["y"]
    np.testing.assert_array_equal(profiled.profile({"x": X}, repeat=1).outputs["y"], expected)
    np.testing.assert_array_equal(profiled.run({"x": X})["y"], expected)
    with pytest.raises(InputError):
        profiled.profile({"x": X[0]})
    with pytest.raises(OptionError, match="0 runs"):
        profiled.profile({"x": X}, repeat=0)


def test_a_library_of_a_graph_is_profiled_like_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting_clocks.install(monkeypatch)
    made = mlfc.build(module_of({"x": X}, {"y": two_layers}), module_name="profiled", executor="graph")
    known = load_profiled(mlfc.export_model_library_format(made, tmp_path / "graph.tar")).profile({"x": X}, repeat=2)
    profile = load_profiled(made.export_library(tmp_path / "graph.so")).profile({"x": X}, repeat=2)
    told = [[(item.function, item.nodes, item.macs) for item in each.operators] for each in (profile, known)]
    assert told[0] == told[1]
    assert profile.operators[0].tensors[0] == "float32[64,256]"
    assert profile.timeline is not None
    assert profile.timeline.run.tolist() == [0] * len(profile.operators) + [1] * len(profile.operators)
    assert sum(item.macs for item in profile.operators) > 0
    # one warm-up run and two measured ones, behind three of the archive
    number = len(profile.operators)
    times = [[passed(run * number + i) for i in range(number)] for run in (4, 5)]
    assert [item.nanoseconds for item in profile.operators] == np.median(times, axis=0).tolist()
    np.testing.assert_array_equal(profile.outputs["y"], known.outputs["y"])


def test_a_library_of_code_compiled_ahead_of_time_says_why_it_cannot(factory: Factory, tmp_path: Path) -> None:
    library = factory.export_library(tmp_path / "profiled.so")
    with pytest.raises(OptionError, match=r"cannot be profiled.* Profile the archive"):
        load_profiled(library)


ORDER_HEADER = rb"""
#include <stdio.h>
extern char trace_text[64];
#define MLFC_TRACE_BEGIN(index) ((void)sprintf(trace_text + strlen(trace_text), "<%d", index))
#define MLFC_TRACE_END(index, data, nbytes) \
  ((void)sprintf(trace_text + strlen(trace_text), "%d:%d%c>", index, (int)(nbytes), (data) ? '.' : '0'))
"""
DESCRIPTION = interface(
    entry="tvmgen_chain_v1_run",
    inputs=[{"name": "x", "shape": [5], "dtype": "float32"}],
    outputs=[{"name": "y", "shape": [5], "dtype": "float32"}],
)


def test_a_header_of_the_users_sees_every_operator_in_order() -> None:
    program, added = chain(5)
    files = {
        **generated(program).files,
        "own/mlfc_trace.h": ORDER_HEADER,
        "own/order.c": b"char trace_text[64];",
    }
    library = compile_cached(files, ("-DMLFC_TRACE",))
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_allclose(AotModule(library, DESCRIPTION).run(x)["y"], x + added, rtol=1e-5)
    assert ctypes.string_at(ctypes.CDLL(str(library)).trace_text) == b"<00:20.><11:20.><22:20.>"


def test_without_the_macro_the_files_need_no_header_and_call_nothing() -> None:
    library = compile_cached(generated(chain(5)[0]).files)
    assert not hasattr(ctypes.CDLL(str(library)), "mlfc_trace_begin")

"""Memory of runs of dynamic models: its owners, reads and writes of bound calls, and memory kept for later runs."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive.read.load import load_factory
from mlfc.errors import InputError
from mlfc.factory import Factory
from mlfc.relay import ir
from mlfc.relay.ir import Function, IRModule, Tuple, Var
from mlfc.runtime import VmModel
from mlfc.runtime.executors.vm.native import aligned_zeros
from mlfc.runtime.tensor.ndarray import from_dlpack
from mlfc.support.dims import LARGEST, Symbol
from tests.vm_models import expected, two_layers

TARGETS = ("c", "llvm")
pytestmark = pytest.mark.usefixtures("unoptimized_builds")


@cache
def doubling(target: str, high: int = LARGEST) -> Factory:
    """Return a model of x with outputs 2 x, x itself, 2 x again in the same memory, and a constant."""
    n = Symbol("n", 0, high)
    x = Var("x", ir.TensorType((n.dim,), "int32"))
    y = ir.call("add", [x, x])
    main = Function((x,), Tuple((y, x, y, ir.const(np.int64([3, -1, 7])))))
    names = ("y", "z", "again", "constant")
    return mlfc.build(IRModule({"main": main}, names), target, {}, executor="vm")


def ready(target: str = "c", high: int = LARGEST) -> VmModel:
    model = load_factory(doubling(target, high))
    assert isinstance(model, VmModel)
    return model


def aligned(values: Any) -> np.ndarray[Any, Any]:
    array = aligned_zeros(4 * len(values)).view(np.int32)
    array[:] = values
    return array


def unaligned(values: Any) -> np.ndarray[Any, Any]:
    array = aligned_zeros(4 * len(values) + 4)[4:].view(np.int32)
    array[:] = values
    return array


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("high", [LARGEST, 16])
def test_results_are_the_callers_own(high: int, target: str) -> None:
    model = ready(target, high)
    x = aligned([1, 2, 3])
    first = model.run(x)
    arrays = list(first.values())
    for number, array in enumerate(arrays):
        for other in [x, *arrays[:number]]:
            assert not np.may_share_memory(array, other)
    row = first["y"][1:]
    del arrays, first
    for _ in range(3):
        again = model.run(aligned([7, 8, 9]))
    assert row.tolist() == [4, 6]
    assert [array.tolist() for array in again.values()] == [[14, 16, 18], [7, 8, 9], [14, 16, 18], [3, -1, 7]]
    assert [array.shape for array in model.run(np.int32([])).values()] == [(0,), (0,), (0,), (3,)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("make", [aligned, unaligned, lambda values: aligned([0, *values, 0])[1:-1]])
def test_bound_calls_see_what_inputs_hold(make: Callable[[Any], Any], target: str) -> None:
    x = make([1, 2, 3])
    bound = ready(target).bind([x])
    assert bound.outputs == {}
    assert bound() == 0
    held = bound.outputs
    assert held["y"].tolist() == [2, 4, 6]
    x[1] = 50
    assert bound() == 0
    assert (bound.outputs["y"].tolist(), bound.outputs["z"].tolist()) == ([2, 100, 6], [1, 50, 3])
    assert (held["y"].tolist(), x.tolist()) == ([2, 4, 6], [1, 50, 3])


@pytest.mark.parametrize("target", TARGETS)
def test_bound_inputs_of_other_kinds(target: str) -> None:
    model = ready(target)
    tensor = from_dlpack(np.int32([1, 2]))
    every_other = np.arange(8, dtype=np.int32)[::2]
    for given, expect in ((tensor, [2, 4]), (every_other, [0, 4, 8, 12]), (np.int32([3]), [6])):
        bound = model.bind({"x": given})
        assert (bound(), bound.outputs["y"].tolist()) == (0, expect)
    every_other[0] = 5
    strided = model.bind([every_other])
    every_other[1] = 6
    assert (strided(), strided.outputs["y"].tolist()) == (0, [10, 12, 8, 12])
    for wrong in (np.int64([1]), np.int32([[1]]), [1.5], "text"):
        with pytest.raises(InputError):
            model.bind([wrong])()


def test_memory_of_results_lives_as_long_as_they_do() -> None:
    bound = ready().bind([aligned(range(1000))])
    bound()
    part = bound.outputs["y"][990:]
    bound()
    assert all(not np.may_share_memory(part, array) for array in bound.outputs.values())
    model = ready()
    survivor = model.run(np.int32([4]))["y"]
    del model  # its memory is freed with the last result
    assert survivor.tolist() == [8]
    for _ in range(20):  # results and their model in a reference cycle, which is collected in any order
        circle: list[Any] = [ready()]
        circle += [circle[0].run(np.int32([4])), circle]
        del circle
        assert gc.collect() > 0


@pytest.mark.parametrize("target", TARGETS)
def test_results_go_to_given_outputs(target: str) -> None:
    model = ready(target)
    x = aligned([1, 2, 3])
    outputs = {"y": unaligned([0] * 3), "z": np.zeros((3, 2), np.int32)[:, 0], "again": aligned([0] * 3)}
    outputs["constant"] = np.zeros(3, np.int64)
    for names in (("y", "z", "again", "constant"), ("again", "constant", "y", "z")):
        for array in outputs.values():
            array[:] = 0
        bound = model.bind([x], {name: outputs[name] for name in names})
        assert bound() == 0
        assert [outputs[name].tolist() for name in ("y", "z", "again")] == [[2, 4, 6], [1, 2, 3], [2, 4, 6]]
    outputs["z"] = np.zeros(3, np.int32)
    bound = model.bind([x], outputs)
    x[:] = [4, 5, 6]
    assert (bound(), outputs["z"].tolist(), bound.outputs["y"].tolist()) == (0, [4, 5, 6], [8, 10, 12])
    outputs["z"][:] = 0
    in_place = model.bind([x], {**outputs, "y": x})
    assert (in_place(), x.tolist(), outputs["z"].tolist()) == (0, [8, 10, 12], [4, 5, 6])


@pytest.mark.parametrize("target", TARGETS)
def test_outputs_that_do_not_fit_are_refused(target: str) -> None:
    model = ready(target)
    fitting = [np.zeros(3, np.int32), np.zeros(3, np.int32), np.zeros(3, np.int32), np.zeros(3, np.int64)]
    longer = model.bind([np.int32([1, 2, 3])], [fitting[0], np.zeros(4, np.int32), *fitting[2:]])
    with pytest.raises(InputError, match=r"z: expected an output of int32\[3\], got int32\[4\]"):
        longer()
    assert not fitting[0].any()
    frozen = np.zeros(3, np.int32)
    frozen.flags.writeable = False
    wrong = {"got int64": np.zeros(3), "got int32": np.zeros((3, 1), np.int32), "written": frozen, "a list": [1, 2, 3]}
    wrong["got int64"] = np.zeros(3, np.int64)
    for message, target in wrong.items():
        with pytest.raises(InputError, match=message):
            model.bind([np.int32([1, 2, 3])], [target, *fitting[1:]])
    with pytest.raises(InputError, match=r"expected an output of int64\[3\], got int64\[4\]"):
        model.bind([np.int32([1])], [*fitting[:3], np.zeros(4, np.int64)])


def test_threads_share_a_model_and_a_bound_call() -> None:
    model = ready()
    shared = model.bind([np.int32([1, 2])])

    def work(number: int) -> bool:
        values = aligned(np.arange(number, number + 200 + 50 * (number % 7)))
        own = model.bind([values])
        kept = []
        for _ in range(40):
            own()
            shared()
            kept.append(own.outputs["y"])
            values += 1
        return all(np.array_equal(array, (values - 40 + turn) * 2) for turn, array in enumerate(kept))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(24)))
    assert (shared(), shared.outputs["y"].tolist()) == (0, [2, 4])


class _Usage(ctypes.Structure):  # fields 4 and 7 are bytes in use: in mapped pages and in arenas
    _fields_ = tuple((f"field{number}", ctypes.c_size_t) for number in range(10))


def test_memory_of_a_large_run_goes_after_small_ones() -> None:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("needs the allocator of glibc, which counts")
    libc.mallinfo2.restype = _Usage

    def used() -> int:
        usage = libc.mallinfo2()
        return int(usage.field7 + usage.field4)

    module, params = two_layers()
    model = load_factory(mlfc.build(module, "llvm", params, executor="vm"))
    rows = 1 << 17
    many, few, hidden = np.zeros((rows, 8), np.float32), np.zeros((2, 8), np.float32), 64 * rows
    before = used()
    results = [model.run(many) for _ in range(4)]
    assert used() - before > hidden + 4 * 16 * rows
    del results
    assert hidden < used() - before < 2 * hidden  # the work area is kept for the next run
    for _ in range(100):
        model.run(few)
    assert used() - before < hidden // 2


def test_exported_libraries_of_llvm_run(tmp_path: Path) -> None:
    module, params = two_layers()
    factory = mlfc.build(module, "llvm", params, executor="vm", module_name="net")
    path = factory.export_library(tmp_path / "net.so")
    model = mlfc.load(path)
    assert isinstance(model, VmModel)
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    np.testing.assert_allclose(model.run(x)["probabilities"], expected(x, params), rtol=2e-6)

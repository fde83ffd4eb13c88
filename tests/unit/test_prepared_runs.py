"""Runs whose inputs are passed on unchanged, runs that need conversions, and rejected inputs."""

from __future__ import annotations

from threading import Thread
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import mlfc
from mlfc.errors import InputError
from mlfc.runtime.tensor.arrays import Expected
from mlfc.support.tensor_info import TensorInfo

X = np.arange(6, dtype=np.float32).reshape(2, 3)
INFOS = (TensorInfo("x", (2, 3), "float32"),)


class Subclass(np.ndarray):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({"x": X}, True), ([X], True), ((X,), True), ({"y": X}, False), ({"x": X, "y": X}, False), ([], False),
        ({"x": X.astype(np.float64)}, False), ({"x": X.astype(">f4")}, False), ({"x": X[:1]}, False),
        ({"x": np.asfortranarray(X)}, False), ({"x": X.view(Subclass)}, False), ({"x": X.tolist()}, False),
        ({"x": np.frombuffer(b"\0" * 25, np.uint8)[1:].view(np.float32).reshape(2, 3)}, False),
    ],
)  # fmt: skip
def test_only_arrays_that_fit_are_taken_as_they_are(given: Any, fits: bool) -> None:
    assert (Expected.of(INFOS).taken(given) is not None) is fits


@pytest.mark.parametrize("executor", ["aot", "graph", "vm"])
def test_runs_of_other_arrays_and_of_several_threads_do_not_mix(executor: str) -> None:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])], "twice",
        [info("x", TensorProto.FLOAT, [2, 3])], [info("y", TensorProto.FLOAT, [2, 3])],
    )  # fmt: skip
    model = mlfc.compile(helper.make_model(graph, ir_version=10), "llvm", executor=executor)
    first = model.run({"x": X})["y"]
    for x in (np.asfortranarray(X + 1), (X + 2).view(Subclass), X + 3):
        np.testing.assert_array_equal(model.run({"x": x})["y"], x + x)
    np.testing.assert_array_equal(first, X + X)
    with pytest.raises(InputError):
        model.run({"x": X.astype(np.int8)})
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(50):
            x = np.full((2, 3), number * 100 + turn, np.float32)
            if not np.array_equal(model.run({"x": x})["y"], x + x):
                wrong.append(number)

    threads = [Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

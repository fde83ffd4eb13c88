"""All executors name the argument in errors about their arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.errors import InputError
from tests.native.extracted import imported

pytestmark = pytest.mark.usefixtures("quick_builds")

SOUND = np.zeros((1, 49, 10, 1), np.int8)
FAULTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "unknown name": (lambda executor: executor.set_input("nope", SOUND), "nope: the .* has no such input"),
    "number too large": (lambda executor: executor.set_input(99, SOUND), "99"),
    "negative number": (lambda executor: executor.set_input(-1, SOUND), "-1"),
    "no number": (lambda executor: executor.set_input(0.5, SOUND), "0.5"),
    "dtype": (lambda executor: executor.set_input(0, SOUND.astype(np.float32)), "input_1: .*float32.* int8"),
    "shape": (lambda executor: executor.set_input(0, SOUND[0]), "input_1: .*49, 10, 1"),
    "by name": (lambda executor: executor.run(input_1=SOUND[0]), "input_1: .*49, 10, 1"),
    "nothing": (lambda executor: executor.set_input(0, None), "input_1: "),
    "text": (lambda executor: executor.set_input(0, "text"), "input_1: "),
    "objects": (lambda executor: executor.set_input(0, np.array([object()])), "input_1: .*object"),
    "no such output": (lambda executor: executor.get_output(1), "output 1 is out of range: the .* has 1"),
    "an output's name": (lambda executor: executor.get_output("Identity"), "output Identity is out of range"),
    "place of an output": (lambda executor: executor.get_output(0, np.zeros((1, 12))), "float64.* int8"),
}


@pytest.fixture(scope="module", params=["aot", "graph"])
def factory(request: pytest.FixtureRequest, models: Path) -> Any:
    return imported(models / "kws_ref_model.tflite", "kws", executor=request.param).runtime


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_names_its_argument(factory: Any, fault: str) -> None:
    call, text = FAULTS[fault]
    with pytest.raises(InputError, match=text):
        call(factory["default"](mlfc.cpu(0)))


@pytest.mark.parametrize("device", ["cpu", None, 1, ["cpu"]])
def test_what_is_no_device_is_said(factory: Any, device: Any) -> None:
    with pytest.raises(InputError, match=r"expected a device, got .*Give mlfc.cpu\(0\)"):
        factory["default"](device)


def test_a_graph_executor_wants_devices_too(models: Path) -> None:
    factory = imported(models / "hello_world_int8.tflite", "hello", executor="graph")
    with pytest.raises(InputError, match="expected a device, got 'cpu', a str"):
        mlfc.runtime.GraphExecutor(factory.graph_json, factory.lib, "cpu")  # type: ignore[arg-type]

"""Groups on a device and on the host: tensors are copied once to where they are read, and results stay equal."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfc import memory, transform
from mlfc.codegen.host.graph_json import build_graph
from mlfc.errors import UnsupportedError
from mlfc.frontend.onnx import import_onnx
from mlfc.relay import ir as relay
from mlfc.runtime.executors.graph_json import parse_graph
from mlfc.target.features import Features
from mlfc.tir import interpreter
from mlfc.tir.ir import Buffer
from mlfc.tir.program import Program, Value
from mlfc.transform import device_placement
from mlfc.transform.lower_group import LoweredGroup
from tests.onnx_graphs import GraphMaker
from tests.unit.test_passes import image
from tests.unit.test_random_graphs import networks

HOST, DEVICE = Features(vector_bytes=0), Features(vector_bytes=0, gpu=True)


def refusing(monkeypatch: pytest.MonkeyPatch, refused: Collection[int], operators: Collection[str] = ()) -> None:
    """Make the device reject groups, selected by position in the graph or by a part of their name."""
    lowered = device_placement.lower_group
    asked: list[relay.Function] = []

    def lower(function: relay.Function, features: Features) -> LoweredGroup:
        asked.append(function)
        group = lowered(function, features)
        if len(asked) - 1 in refused or any(name in group.prim.name for name in operators):
            raise UnsupportedError("the device of this test refuses it")
        return group

    monkeypatch.setattr(device_placement, "lower_group", lower)


def placed_program(data: bytes) -> tuple[Program, Program]:
    """Return a model's program for a device, and the one for the host alone."""
    fused = transform.run(*import_onnx(data, "placed"))
    placement = transform.place_on_device(fused, "opencl", DEVICE)
    return transform.lower(fused, HOST, "placed", placement=placement), transform.lower(fused, HOST, "placed")


def run(program: Program, inputs: dict[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Interpret a program; copies are ordinary kernels."""
    values: dict[Value, npt.NDArray[Any]] = {value.root: inputs[value.name] for value in program.inputs}

    def read(value: Value, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        data = value.root.data if value.root.data is not None else values[value.root]
        return np.ascontiguousarray(data).reshape(shape)

    for call in program.calls:
        arguments = [read(v, b.shape) for v, b in zip(call.inputs, call.kernel.inputs, strict=True)]
        constants = [read(v, b.shape) for v, b in zip(call.constants, call.kernel.constants, strict=True)]
        values[call.output.root] = interpreter.run(call.kernel, arguments, constants)
    return [values[value.root].reshape(value.shape) for value in program.outputs]


def check_places(program: Program) -> None:
    """Check that kernels access memory where they run, and that no tensor is copied twice to one device."""
    copied: set[tuple[Value, str | None]] = set()
    for call in program.calls:
        output = call.output.root
        if call.is_copy:
            source = call.inputs[0].root
            assert source.device != output.device
            assert source.data is None
            assert (source, output.device) not in copied
            copied.add((source, output.device))
            continue
        assert {value.root.device for value in (*call.inputs, *call.constants, call.output)} == {call.kernel.device}
    assert all(not kernel.name.startswith("__copy") for kernel in program.kernels)


@given(networks(), st.sets(st.integers(0, 12)))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_whatever_a_device_refuses_the_model_stays_the_same(data: bytes, refused: set[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        refusing(patch, refused)
        program, alone = placed_program(data)
    check_places(program)
    plan = memory.plan(program)
    memory.prove(program, plan)
    plan = memory.assign_storages(program, plan)
    graph = parse_graph(build_graph(program, {kernel.name: kernel.name for kernel in program.kernels}, plan).text)
    types = [
        {item.device_type for item in graph.entries if item.storage_id == block} for block in range(len(plan.storages))
    ]
    assert [{1: None, 4: "opencl"}[kind] for (kind,) in types] == [storage.device for storage in plan.storages]
    np.testing.assert_allclose(run(program, {"x": image()})[0], run(alone, {"x": image()})[0], rtol=1e-4, atol=1e-5)


def chain(*steps: str, size: int = 8) -> bytes:
    """Return a model of consecutive steps on a square image."""
    g = GraphMaker()
    value = "x"
    for step in steps:
        value = str(g.node(step, [value], **({"axis": 1} if step == "Softmax" else {})))
    return g.model(value)


def devices(program: Program) -> list[str]:
    return ["copy" if call.is_copy else call.kernel.device or "host" for call in program.calls]


def test_a_device_that_can_do_everything_gets_everything() -> None:
    program, _ = placed_program(chain("Softmax", "Relu", "Softmax"))
    assert set(devices(program)) == {"opencl"}
    assert {value.device for value in (*program.inputs, *program.outputs)} == {"opencl"}


def test_a_device_that_can_do_nothing_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, range(100))
    program, alone = placed_program(chain("Softmax", "Relu", "Softmax"))
    assert set(devices(program)) == {"host"}
    assert [value.device for value in program.inputs] == [None]
    assert len(program.calls) == len(alone.calls)


def small_between_refused() -> bytes:
    g = GraphMaker()
    first = g.node("Softmax", ["x"], axis=1)
    middle = g.node("GlobalAveragePool", [first])
    return g.model(str(g.node("Softmax", [middle], axis=1)))


def test_a_small_group_between_refused_ones_is_not_worth_a_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, (), ["softmax"])
    program, _ = placed_program(small_between_refused())
    assert set(devices(program)) == {"host"}


def test_a_large_group_between_refused_ones_is(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, (), ["softmax"])
    monkeypatch.setattr(device_placement, "SMALL_WORK", 1)
    program, _ = placed_program(small_between_refused())
    assert devices(program) == ["host", "copy", "opencl", "copy", "host"]
    check_places(program)


def test_a_tensor_that_several_read_elsewhere_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, (), ["softmax"])
    monkeypatch.setattr(device_placement, "SMALL_WORK", 1)
    g = GraphMaker()
    base = g.node("GlobalAveragePool", ["x"])
    parts = [g.node("Softmax", [base], axis=axis) for axis in (1, 2)]
    program, _ = placed_program(g.model(str(g.node("Add", parts))))
    check_places(program)
    assert devices(program) == ["opencl", "copy", "host", "host"]


def test_an_input_that_both_read_lies_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, (), ["softmax"])
    monkeypatch.setattr(device_placement, "SMALL_WORK", 1)
    g = GraphMaker()
    outputs = [str(g.node("GlobalAveragePool", ["x"])), str(g.node("Softmax", ["x"], axis=1))]
    program, _ = placed_program(g.model(*outputs))
    check_places(program)
    assert {value.device for value in program.inputs} == {"opencl"}
    assert sorted(devices(program)).count("copy") == 1
    assert [value.device for value in program.outputs] == ["opencl", None]


def test_scratch_on_a_device_is_a_tensor_of_the_graph() -> None:
    whole, _ = placed_program(chain("Softmax"))
    (call,) = whole.calls
    kernel = replace(call.kernel, scratch=tuple(Buffer(f"s{size}", (size,), "float32", "scratch") for size in (7, 300)))
    program = replace(whole, kernels=(kernel,), instructions=(replace(call, kernel=kernel),))
    plan = memory.assign_storages(program, memory.plan(program))
    graph = parse_graph(build_graph(program, {kernel.name: kernel.name}, plan).text)
    node = graph.nodes[-1]
    entries = [graph.entries[index] for index in node.outputs]
    assert [(entry.shape, entry.device_type) for entry in entries[1:]] == [((7,), 4), ((300,), 4)]
    assert len({entry.storage_id for entry in entries}) == 3
    assert graph.heads == (node.outputs.start,)
    assert plan.bytes_on("opencl") == 4 * 307
    assert plan.bytes_on(None) == 0

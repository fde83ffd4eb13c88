"""The result of `mlfc.build`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import mlfc
from mlfc.errors import OptionError
from mlfc.relay import ir
from mlfc.relay.text import to_text

DOUBLINGS = 100


def test_models_whose_nodes_are_shared_are_shown_at_once() -> None:
    x = ir.Var("x", ir.TensorType((4,), "float32"))
    body: ir.Expr = x
    for _ in range(DOUBLINGS):  # 2**100 nodes if expanded
        body = ir.call("add", [body, body])
    module = ir.IRModule({"main": ir.Function((x,), body)})
    factory = mlfc.build(module, module_name="double")
    assert repr(factory) == "<Factory name=double target=c executor=aot>"
    for shown in (module, module.main, module.main.body, factory.program):
        assert len(repr(shown)) < 100


@pytest.mark.parametrize(
    ("give", "expected"),
    [
        (lambda module, params: ("model.onnx",), "expected IRModule, got str. Pass the module and params"),
        (lambda module, params: ((module, params),), "expected IRModule, got tuple. Pass the module and params"),
        (lambda module, params: (module, params), r"got dict. The order is build\(module, target, params\)"),
        (lambda module, params: (module, "c", [params]), "names to arrays, got list. Pass the params"),
    ],
)
def test_arguments_in_the_wrong_place_are_named(give: Callable[..., tuple[Any, ...]], expected: str) -> None:
    x = ir.Var("x", ir.TensorType((4,), "float32"))
    module = ir.IRModule({"main": ir.Function((x,), ir.call("tanh", [x]))})
    with pytest.raises(OptionError, match=expected):
        mlfc.build(*give(module, {}))


def test_numerics_and_generators_travel_with_the_module() -> None:
    x = ir.Var("x", ir.TensorType((4,), "float32"))
    text = to_text(ir.IRModule({"main": ir.Function((x,), ir.call("tanh", [x]))}))
    module, params = mlfc.import_model(text.encode(), numerics="tflm", byoc=["cmsis_nn"])
    built = mlfc.build(module.with_main(module.main), "c", params).module
    assert (built.numerics, built.byoc) == ("tflm", ("cmsis_nn",))
    module, params = mlfc.import_model(text.encode(), byoc=["absent"])
    with pytest.raises(OptionError, match="absent"):
        mlfc.build(module, "c", params)


@pytest.mark.parametrize("target", ["c", "llvm"])
def test_models_may_have_more_inputs_than_python_has_frames(target: str) -> None:
    inputs = tuple(
        ir.Var(f"x{index}", ir.TensorType((1,), "float32")) for index in range(sys.getrecursionlimit() + 100)
    )
    main = ir.Function(inputs, ir.call("concatenate", [ir.Tuple(inputs)], axis=0))
    factory = mlfc.build(ir.IRModule({"main": main}, ("y",)), target)
    assert len(factory.program.inputs) == len(inputs)
    assert factory.code.files

"""Recurrent layers: rejected models, type rules, and the interpreted loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import mlfc
from mlfc.errors import MlfcError, TypeCheckError
from mlfc.relay import ir
from tests.recurrent_models import GATES, Layer, dynamic_layer, layer
from tests.relay_run import operators, run_main

FUNCTIONS = {"activations": ("sigmoid", "tanh", "tanh"), "alphas": (0.0,) * 3, "betas": (0.0,) * 3}


def run(item: Layer) -> list[Any]:
    module, params = mlfc.import_model(item.model.SerializeToString())
    return run_main(module, {**params, **item.inputs})


@pytest.mark.parametrize(
    ("operator", "options"),
    [
        ("LSTM", {"direction": "bidirectional", "lengths": [2, 3]}),
        ("LSTM", {"computed": True, "clip": 0.3}),
        ("GRU", {"direction": "reverse", "linear_before_reset": 1}),
        ("GRU", {"computed": True}),
        ("RNN", {"direction": "bidirectional", "bare": True}),
    ],
)
def test_the_interpreter_computes_what_onnx_runtime_does(operator: str, options: dict[str, Any]) -> None:
    item = layer(operator, 3, sizes=(3, 2, 3, 4), **options)
    for found, wanted in zip(run(item), item.expected(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_floats_are_within_their_precision(dtype: str) -> None:
    item = layer("LSTM", 4, sizes=(3, 2, 3, 4))
    wanted = item.expected()
    model, kind = onnx.ModelProto(), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model.CopyFrom(item.model)
    for constant in model.graph.initializer:
        constant.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(constant).astype(dtype), constant.name))
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = kind
    found = run(Layer("wide", model, {name: value.astype(dtype) for name, value in item.inputs.items()}))
    for value, other in zip(found, wanted, strict=True):
        assert value.dtype == dtype
        np.testing.assert_allclose(value, other, rtol=0, atol=3e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("operator", GATES)
def test_both_layouts_are_one_layer(operator: str) -> None:
    item = layer(operator, 5, direction="bidirectional", lengths=[4, 2])
    model = onnx.ModelProto()
    model.CopyFrom(item.model)
    model.graph.node[0].attribute.append(helper.make_attribute("layout", 1))
    turned = {}
    for name, value in item.inputs.items():
        turned[name] = value if value.ndim == 1 else np.ascontiguousarray(value.transpose(1, 0, 2))
    for info in model.graph.input:
        info.CopyFrom(
            helper.make_tensor_value_info(info.name, info.type.tensor_type.elem_type, turned[info.name].shape)
        )
    whole, *states = run(Layer("turned", model, turned))
    wanted, *last = run(item)
    np.testing.assert_array_equal(whole, wanted.transpose(2, 0, 1, 3))
    for state, other in zip(states, last, strict=True):
        np.testing.assert_array_equal(state, other.transpose(1, 0, 2))


def refused(item: Layer, **attrs: Any) -> str:
    model = onnx.ModelProto()
    model.CopyFrom(item.model)
    node = model.graph.node[0]
    kept = [attribute for attribute in node.attribute if attribute.name not in attrs]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in attrs.items())])
    with pytest.raises(MlfcError) as caught:
        mlfc.import_model(model.SerializeToString())
    return str(caught.value)


@pytest.mark.parametrize(
    ("operator", "attrs", "message"),
    [
        ("LSTM", {"direction": "sideways"}, "expected direction forward, reverse, bidirectional, got 'sideways'"),
        ("LSTM", {"direction": "bidirectional"}, "do not fit data"),
        ("GRU", {"hidden_size": 7}, "hidden_size is 7, but R has 4 units"),
        ("RNN", {"activations": ["Gelu"]}, "the activation 'gelu' is not supported"),
        ("RNN", {"activations": ["Relu", "Relu"]}, "expected 1 activations, got 2"),
        ("RNN", {"layout": 2}, "expected layout 0 or 1, got 2"),
        ("GRU", {"clip": -1.0}, "expected a clip above 0"),
        ("LSTM", {"clip": float("nan")}, "expected a clip above 0"),
        ("LSTM", {"clip": "much"}, "must be a float"),
        ("LSTM", {"depth": 3}, "opset 22 does not define the attribute 'depth'"),
    ],
)
def test_each_wrong_attribute_is_one_error(operator: str, attrs: dict[str, Any], message: str) -> None:
    assert message in refused(layer(operator), **attrs)


def _without(item: Layer, position: int) -> Layer:
    item.model.graph.node[0].input[position] = ""
    return item


def _reshaped(item: Layer, name: str, shape: tuple[int, ...]) -> Layer:
    for info in item.model.graph.input:
        if info.name == name:
            info.CopyFrom(helper.make_tensor_value_info(name, info.type.tensor_type.elem_type, shape))
    return item


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (_without(layer("GRU"), 2), "requires input 2"),
        (_without(layer("LSTM"), 1), "requires input 1"),
        (_reshaped(layer("RNN"), "x", (5, 6)), "expected X, W and R of 3 dimensions"),
        (_reshaped(layer("RNN"), "x", (5, 2, 9)), "do not fit data of shape (5, 2, 9)"),
        (_reshaped(layer("LSTM"), "h", (1, 2, 5)), "expected input 5 of shape (1, 2, 4), got (1, 2, 5)"),
        (_reshaped(layer("LSTM"), "c", (2, 2, 4)), "expected input 6"),
        (_reshaped(layer("GRU", lengths=[1, 2]), "lengths", (3,)), "expected 2 sequence_lens"),
        (_reshaped(layer("GRU", computed=True), "b", (1, 12)), "expected input 3"),
    ],
)
def test_each_wrong_input_is_one_error(item: Layer, message: str) -> None:
    assert message in refused(item)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("w", np.zeros((1, 6, 27), np.int8), "do not fit data"),
        ("w", np.zeros((1, 6, 28), np.int16), "expected weights of int8 or uint8"),
        ("wz", np.zeros(1, np.uint8), "expected weights of int8 or uint8"),
        ("rz", np.zeros(3, np.int8), "zero points of shape (3,)"),
        ("ws", np.ones((1, 27), np.float32), "scales of shape (1, 27)"),
    ],
)
def test_each_wrong_quantized_weight_is_one_error(name: str, value: Any, message: str) -> None:
    item = dynamic_layer(1)
    for constant in item.model.graph.initializer:
        if constant.name == name:
            constant.CopyFrom(numpy_helper.from_array(value, name))
    with pytest.raises(MlfcError) as caught:
        mlfc.import_model(item.model.SerializeToString())
    assert message in str(caught.value)


def test_type_rules_name_what_is_wrong() -> None:
    def call(attrs: dict[str, Any] | None = None, **changed: Any) -> None:
        shapes = {
            "data": (3, 2, 16),
            "weight": (1, 16, 4),
            "h": (1, 2, 4),
            "lengths": (2,),
            "c": (1, 2, 4),
            "p": (1, 12),
        }
        shapes |= changed.pop("shapes", {})
        types = dict.fromkeys(shapes, "float32") | {"lengths": "int32"} | changed
        args = [ir.Var(name, ir.TensorType(shape, types[name])) for name, shape in shapes.items()]
        ir.call("nn.lstm_steps", args, {**FUNCTIONS, **(attrs or {})})

    call()
    for attrs, message in (
        ({"direction": "up"}, "expected direction"),
        ({"returns": ()}, "expected a non-empty subset of all, hidden, cell"),
        ({"returns": ("cell", "all")}, "in this order"),
        ({"returns": ("gate",)}, "expected a result"),
        ({"activations": ("sigmoid", "tanh")}, "expected 3 activations"),
        ({"activations": ("sigmoid", "tanh", "swish")}, "expected activation"),
        ({"shapes": {"data": (3, 2, 15)}}, "do not fit"),
        ({"shapes": {"h": (1, 2)}}, "3, 3, 3 and 1 dimensions"),
        ({"shapes": {"lengths": (3,)}}, "do not fit"),
        ({"lengths": "float32"}, "takes integer"),
        ({"c": "float64"}, "do not mix"),
        (dict.fromkeys(("data", "weight", "h", "c", "p"), "float16"), "takes float32 and float64"),
    ):
        given = dict(attrs)
        names = {"shapes", "data", "weight", "h", "c", "p", "lengths"}
        changed = {name: given.pop(name) for name in list(given) if name in names}
        with pytest.raises(TypeCheckError, match=message):
            call(given, **changed)


@pytest.mark.parametrize("outputs", [("all", "hidden"), ("all", "hidden", "cell"), ("all", "", "cell"), ("all",)])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_steps_are_taken_once(outputs: tuple[str, ...], direction: str) -> None:
    item = layer("LSTM", outputs=outputs, direction=direction)
    module, _ = mlfc.import_model(item.model.SerializeToString())
    assert operators(module).count("nn.lstm_steps") == 1


def test_steps_stay_on_the_host_beside_a_device() -> None:
    item = layer("GRU", sizes=(40, 8, 300, 64), outputs=("all",))
    module, params = mlfc.import_model(item.model.SerializeToString())
    calls = mlfc.build(module, "opencl", params, module_name="gru").program.calls
    places = {call.kernel.device for call in calls if "gru_steps" in call.kernel.name}
    assert places == {None}
    assert {call.kernel.device for call in calls} == {None, "opencl"}

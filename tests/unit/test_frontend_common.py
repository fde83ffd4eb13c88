"""Code shared by importers: weights become parameters, problems are collected."""

from __future__ import annotations

import numpy as np
import pytest

from mlfc.errors import InternalError, ModelError, ProblemsError, UnsupportedError
from mlfc.frontend.common import Problems, finish, numbered, unique_name
from mlfc.relay.ir import Constant, TensorType, Tuple, Var, call, const, tensor_type


def test_named_constants_become_parameters_in_order_of_use() -> None:
    x = Var("x", TensorType((2, 3), "float32"))
    weight = const(np.ones((4, 3), np.float32), name="w")
    dense = call("nn.dense", [x, weight], units=4)
    result = call("multiply", [call("nn.dense", [call("copy", [x]), weight], units=4), dense])
    result = call("add", [result, const(np.arange(4, dtype=np.float32), name="x")])
    result = call("add", [result, const(2.0, name="scalar")])
    module, params = finish([x], [result], ["y"], {}, {"format": "test"})
    assert [param.name for param in module.main.params] == ["x", "w", "x_1"]
    assert list(params) == ["w", "x_1"]
    np.testing.assert_array_equal(params["x_1"], np.arange(4))
    assert tensor_type(module.main.body) == TensorType((2, 4), "float32")


def test_several_outputs_make_a_tuple() -> None:
    x = Var("x", TensorType((2,), "float32"))
    module, _ = finish([x], [x, call("abs", [x])], ["a", "b"], {}, {})
    assert isinstance(module.main.body, Tuple)
    assert module.output_names == ("a", "b")


def test_problems_are_raised_together() -> None:
    problems = Problems()
    problems.raise_if_any()
    with problems.collecting():
        raise UnsupportedError("first")
    with pytest.raises(UnsupportedError, match="first"):
        problems.raise_if_any("model")
    with problems.collecting():
        raise ModelError("second")
    with pytest.raises(ProblemsError, match=r"(?s)model: 2 problems.*first.*second"):
        problems.raise_if_any("model")


def test_bugs_are_not_collected() -> None:
    with pytest.raises(InternalError), Problems().collecting():
        raise InternalError("a bug")


def test_unique_names_count_up() -> None:
    assert unique_name("a", ["a", "a_1"]) == "a_2"
    assert unique_name("b", ["a"]) == "b"


def test_repeated_names_are_numbered_around_the_names_of_others() -> None:
    assert numbered(["y", "y", "y_1", "y", "z"]) == ["y", "y_2", "y_1", "y_3", "z"]
    many = numbered(["y"] * 50_000)
    assert len(set(many)) == 50_000


def test_a_tensor_beyond_the_reach_of_indices_is_refused() -> None:
    x = Var("x", TensorType((1 << 16, 1 << 15), "int8"))
    with pytest.raises(
        UnsupportedError, match=r"x: a tensor of shape \(65536, 32768\) exceeds .*2,147,483,647, by 1\."
    ):
        finish([x], [call("abs", [x])], ["y"], {}, {})


def test_tensors_without_elements_become_constants() -> None:
    x = Var("x", TensorType((2, 0), "float32"))
    module, _ = finish([x], [call("nn.softmax", [call("abs", [x])])], ["y"], {}, {})
    assert isinstance(module.main.body, Constant)
    assert module.main.body.data.shape == (2, 0)
    product = call("nn.dense", [x, const(np.zeros((3, 0), np.float32))], units=3)
    module, _ = finish([x], [product], ["y"], {}, {})
    assert isinstance(module.main.body, Constant)
    assert module.main.body.data.tolist() == [[0.0] * 3] * 2

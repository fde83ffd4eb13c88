"""Tensors too large for the indices of generated code raise an error about the model, not an internal error."""

from __future__ import annotations

import pytest

import mlfc
import mlfc.ops
from mlfc.errors import UnsupportedError
from mlfc.relay import ir


@pytest.mark.parametrize("executor", ["aot", "graph"])
def test_a_tensor_of_2_to_the_31_elements_is_refused(executor: str) -> None:
    variable = ir.Var("x", ir.TensorType((1 << 16, 1 << 15), "int8"))
    body = ir.call("nn.relu", [variable])
    module = ir.IRModule({"main": ir.Function((variable,), body)}, ("y",))
    with pytest.raises(UnsupportedError, match="2,147,483,648 elements"):
        mlfc.build(module, executor=executor)

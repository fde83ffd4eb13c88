"""Single rules of the simplifying passes: operators that vanish, and similar ones that must not."""

from __future__ import annotations

import numpy as np
import pytest

from mlfc.errors import InputError, UnsupportedError
from mlfc.relay import ir
from mlfc.transform.bind_params import BindParams
from mlfc.transform.decompose import Decompose
from mlfc.transform.fold_constant import FoldConstant
from mlfc.transform.fuse import FuseOps
from mlfc.transform.simplify import Simplify
from tests.relay_run import free_vars, operators

X = ir.Var("x", ir.TensorType((2, 6), "float32"))
Q = ir.Var("q", ir.TensorType((2, 6), "int8"))


def module(body: ir.Expr) -> ir.IRModule:
    return ir.IRModule({"main": ir.Function(tuple(free_vars(body)), body)})


def simplified(body: ir.Expr) -> list[str]:
    result = Simplify()(module(body))
    assert result.main.body.type == body.type
    return operators(result)


def quantize(data: ir.Expr, scale: float = 0.5, zero: int = 3) -> ir.Call:
    return ir.call("qnn.quantize", [data, ir.const(scale), ir.const(zero)], out_dtype="int8")


def dequantize(data: ir.Expr, scale: float = 0.5, zero: int = 3) -> ir.Call:
    return ir.call("qnn.dequantize", [data, ir.const(scale), ir.const(zero)], out_dtype="float32")


def test_rounding_to_integers_and_back_is_kept() -> None:
    assert simplified(dequantize(quantize(X))) == ["qnn.quantize", "qnn.dequantize"]


def test_integers_to_reals_and_back_to_the_same_integers_vanish() -> None:
    assert simplified(quantize(dequantize(Q))) == []
    assert simplified(quantize(dequantize(Q), 0.25)) == ["qnn.dequantize", "qnn.quantize"]
    assert simplified(quantize(dequantize(Q), zero=4)) == ["qnn.dequantize", "qnn.quantize"]


def test_chains_of_shapes_become_one_reshape() -> None:
    wide = ir.call("expand_dims", [X], axis=0)
    assert simplified(ir.call("reshape", [wide], newshape=(3, 4))) == ["reshape"]
    assert simplified(ir.call("squeeze", [wide], axis=(0,))) == []


def test_transposes_merge_and_those_of_unit_axes_are_views() -> None:
    turned = ir.call("transpose", [X], axes=(1, 0))
    assert simplified(ir.call("transpose", [turned], axes=None)) == []
    wide = ir.call("reshape", [X], newshape=(12, 1))
    assert simplified(ir.call("transpose", [wide], axes=(1, 0))) == ["reshape"]


def test_neutral_constants_vanish_only_where_the_shape_stays() -> None:
    assert simplified(ir.call("multiply", [ir.const(np.ones((1, 6), np.float32)), X])) == []
    assert simplified(ir.call("add", [X, ir.const(np.zeros((4, 1, 1), np.float32))])) == ["add"]
    assert simplified(ir.call("subtract", [ir.const(0.0), X])) == ["subtract"]


@pytest.mark.parametrize(
    ("divisor", "name"), [(8.0, "multiply"), (0.125, "multiply"), (3.0, "divide"), (0.0, "divide")]
)
def test_only_divisions_with_exact_reciprocals_become_multiplications(divisor: float, name: str) -> None:
    assert simplified(ir.call("divide", [X, ir.const(divisor)])) == [name]


def test_reversed_slices_are_kept() -> None:
    reverse = {"begin": (5,), "end": (-7,), "strides": (-1,), "axes": (1,)}
    assert simplified(ir.call("strided_slice", [X], reverse)) == ["strided_slice"]
    whole = {"begin": (0,), "end": (6,), "strides": (1,), "axes": (1,)}
    assert simplified(ir.call("strided_slice", [X], whole)) == []


def test_constants_fold_but_do_not_blow_up() -> None:
    small = ir.call("add", [ir.const(np.arange(3.0, dtype=np.float32)), ir.const(1.0)])
    folded = FoldConstant()(module(small)).main.body
    assert isinstance(folded, ir.Constant)
    np.testing.assert_array_equal(folded.data, [1, 2, 3])
    huge = ir.call("broadcast_to", [ir.const(1.0)], shape=(1 << 20, 1 << 10))
    assert operators(FoldConstant()(module(huge))) == ["broadcast_to"]


def test_large_constants_are_joined() -> None:
    parts = [ir.const(np.full((4, 200), number, np.float32)) for number in (1, 2)]
    body = FoldConstant()(module(ir.call("concatenate", [ir.Tuple(tuple(parts))], axis=0))).main.body
    assert isinstance(body, ir.Constant)
    np.testing.assert_array_equal(body.data[:, 0], [1, 1, 1, 1, 2, 2, 2, 2])


def test_parameters_become_constants_with_their_names_and_others_stay_inputs() -> None:
    w = ir.Var("w", X.type)
    value = np.ones((2, 6), np.float32)
    main = BindParams({"w": value})(module(ir.call("add", [X, w]))).main
    assert main.params == (X,)
    assert isinstance(main.body, ir.Call)
    bound = main.body.args[1]
    assert isinstance(bound, ir.Constant)
    assert bound.name == "w"


def test_parameters_of_another_type_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"parameter 'x'.*float64"):
        BindParams({"x": np.ones((2, 6))})(module(ir.call("nn.relu", [X])))


def test_parts_of_a_split_are_slices() -> None:
    parts = ir.call("split", [X], indices_or_sections=(1, 4), axis=1)
    body = ir.Tuple(tuple(ir.TupleGetItem(parts, index) for index in range(3)))
    result = Decompose()(module(body))
    assert operators(result) == ["strided_slice"] * 3
    assert result.main.body.type == body.type


def test_results_that_have_no_loops_are_refused_with_their_node() -> None:
    pair = ir.call("split", [X], indices_or_sections=2, axis=1, span=ir.Span(("the split",)))
    with pytest.raises(UnsupportedError, match="the split"):
        FuseOps()(module(ir.TupleGetItem(pair, 0)))

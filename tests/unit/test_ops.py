"""Operators, evaluated by their own loop-level rules, against numpy and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlfc.errors import TypeCheckError
from mlfc.ops.evaluate import evaluate
from mlfc.relay import ir
from tests.operator_cases import Case, all_cases


def constants(args: Any) -> list[ir.Expr]:
    """Return arrays as constants, tuples of arrays as Relay tuples."""
    return [
        ir.Tuple(tuple(map(ir.const, arg))) if isinstance(arg, tuple) else ir.const(np.asarray(arg)) for arg in args
    ]


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_against_reference(case: Case) -> None:
    call = ir.call(case.operator, constants(case.args), case.attrs)
    result = evaluate(call)
    assert result is not None
    assert ir.TensorType(result.shape, str(result.dtype)) == call.type
    case.check(result)


X = np.zeros((2, 3, 4), np.float32)
PICKS = np.zeros((2, 2), np.int64)


@pytest.mark.parametrize(
    ("operator", "args", "attrs", "message"),
    [
        ("add", [X, X.astype(np.float64)], {}, "do not mix"),
        ("add", [X, np.zeros(3, np.float32)], {}, "do not broadcast"),
        ("exp", [PICKS], {}, "takes float"),
        ("clip", [X], {}, "needs the attribute"),
        ("reshape", [X], {"newshape": (5, -1)}, "expected a multiple of 5"),
        ("reshape", [X], {"newshape": (-1, -1)}, "more than one"),
        ("reshape", [X], {"newshape": (2, 3, 5)}, "24 elements"),
        ("squeeze", [X], {"axis": 1}, "is not 1"),
        ("transpose", [X], {"axes": (0, 0, 1)}, "permutation"),
        ("concatenate", [(X, X[:, :2])], {"axis": 0}, "differ"),
        ("split", [X], {"indices_or_sections": 2, "axis": 1}, "equal parts"),
        ("strided_slice", [X], {"begin": (0,), "end": (1,), "strides": (0,), "axes": None}, "stride is 0"),
        ("take", [X, X], {"axis": 0}, "must be integers"),
        ("take", [X[:0], PICKS], {"axis": 0}, "empty dimension"),
        ("gather", [X, PICKS], {"axis": 0}, "exceed .* outside axis"),
        ("scatter_nd", [X, PICKS, X], {}, "do not match"),
        ("one_hot", [PICKS, X, X], {}, "scalars"),
        ("nn.pad", [X, np.float32(0)], {"pad_width": ((0, 0), (0, -1), (0, 0))}, "at least 0"),
        ("nn.pad", [X, np.float32(0)], {"pad_width": ((0, 0), (0, 3), (0, 0)), "pad_mode": "reflect"}, "too wide"),
        ("nn.bias_add", [X, np.zeros(4, np.float32)], {}, "does not fit axis 1"),
        ("nn.max_pool1d", [X], {"pool_size": (3,), "padding": (3, 3)}, "not smaller than the window"),
        ("nn.max_pool2d", [X], {"pool_size": (2, 2)}, "dimensions"),
        ("nn.softmax", [X], {"axis": 3}, "outside"),
        ("nn.group_norm", [X, X[0, :, 0], X[0, :, 0]], {"num_groups": 2}, "groups"),
        ("arange", [np.int64(0)] * 3, {"start": 0, "stop": 5, "step": 0, "dtype": "int64"}, "step not 0"),
        ("zeros", [], {"shape": (2, -1)}, "at least 0"),
    ],
)
def test_refuses(operator: str, args: Any, attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeCheckError, match=message):
        ir.call(operator, constants(args), attrs)


def test_evaluation_stops_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    pooled = ir.call("nn.max_pool2d", [ir.const(np.zeros((1, 9, 9, 1), np.float32))], pool_size=(2, 2), layout="NHWC")
    assert evaluate(pooled) is not None
    monkeypatch.setattr("mlfc.ops.evaluate._STEP_LIMIT", 50)
    assert evaluate(pooled) is None


def test_evaluation_needs_constants() -> None:
    var = ir.Var("x", ir.TensorType((2,), "float32"))
    assert evaluate(ir.call("exp", [var])) is None
    assert evaluate(ir.call("split", [ir.const(X)], indices_or_sections=2)) is None

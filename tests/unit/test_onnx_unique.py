"""Unique elements and positions of nonzero ones: of constants, and at run time with a declared number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlfc
from mlfc.errors import MlfcError
from tests.harness import loaded_by_llvm
from tests.relay_run import run_main

RNG = np.random.default_rng(8)


def run(
    operator: str, x: Any, shapes: Any, *, late: bool = True, wanted: str = "yifc", compiles: bool = False, **attrs: Any
) -> list[Any]:
    """Run a node whose outputs have these declared shapes; `wanted` names those that are used."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    codes = {"y": TensorProto.INT64 if operator == "NonZero" else kind}
    outputs = [
        helper.make_tensor_value_info(name, codes.get(name, TensorProto.INT64), shape)
        for name, shape in zip(wanted, shapes, strict=True)
    ]
    node = helper.make_node(operator, ["x"], [name if name in wanted else "" for name in "yifc"], name="n", **attrs)
    if operator == "NonZero":
        del node.output[1:]
    given = [helper.make_tensor_value_info("x", kind, x.shape)] if late else []
    constants = [] if late else [numpy_helper.from_array(x, "x")]
    source = helper.make_model(
        helper.make_graph([node], "g", given, outputs, constants), opset_imports=[helper.make_opsetid("", 13)]
    )
    module, params = mlfc.import_model(source.SerializeToString())
    if compiles:
        return list(loaded_by_llvm(module, params).run({"x": x}).values())
    return list(run_main(module, {**({"x": x} if late else {}), **params}))


def expected(x: Any, axis: int | None, *, is_sorted: bool) -> list[Any]:
    found = list(np.unique(x, True, True, True, axis=axis))
    if not is_sorted:
        order = np.argsort(found[1])
        found = [np.take(found[0], order, axis or 0), found[1][order], np.argsort(order)[found[2]], found[3][order]]
    return [*found[:2], found[2].reshape(-1), found[3]]


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool", "float16"])
def test_elements_without_repetitions(is_sorted: bool, dtype: str) -> None:
    for shape in ((3, 5), (1,), (9,)):
        x = RNG.integers(0, 5, shape).astype(dtype)
        wanted = expected(x, None, is_sorted=is_sorted)
        late = run("Unique", x, [part.shape for part in wanted], sorted=int(is_sorted))
        known = run("Unique", x, [None] * 4, late=False, sorted=int(is_sorted))
        for part, other, right in zip(late, known, wanted, strict=True):
            assert part.dtype == other.dtype == right.dtype
            np.testing.assert_array_equal(part, right)
            np.testing.assert_array_equal(other, right)


@pytest.mark.parametrize("is_sorted", [True, False])
def test_slices_without_repetitions(is_sorted: bool) -> None:
    x = RNG.integers(0, 2, (2, 6, 2)).astype(np.int32)
    for axis in (0, 1, -1):
        found = run("Unique", x, [None] * 4, late=False, axis=axis, sorted=int(is_sorted))
        for part, right in zip(found, expected(x, axis, is_sorted=is_sorted), strict=True):
            np.testing.assert_array_equal(part, right)


def test_another_number_than_declared_ends_the_run() -> None:
    x = np.array([3, 1, 3, 2, 1, 0], np.int32)
    for count in (2, 5):
        with pytest.raises(MlfcError, match="contradict a shape that the model declares"):
            run("Unique", x, [(count,), (count,), (6,), (count,)], compiles=True)
    for count in (2, 6):
        shapes = [(count,), (count,), (6,), (count,)]
        found = run("Unique", x, shapes, sorted=0)  # no element outside of the tensors is read
        assert [part.shape for part in found] == shapes
        assert found[2].max() < count
    assert [part.shape for part in run("Unique", x, [(0,), (6,)], wanted="yf")] == [(0,), (6,)]


def test_numbers_of_elements_need_no_stated_shape() -> None:
    x = np.array([[3.0, 1.0], [3.0, -2.0]], np.float32)
    (inverse,) = run("Unique", x, [None], wanted="f")
    assert inverse.tolist() == [2, 1, 2, 0]


def test_places_of_what_is_not_zero() -> None:
    for x in (RNG.integers(0, 2, (2, 3, 4)), RNG.integers(0, 2, 7).astype(bool), np.array([[0.0, -0.0, np.nan]])):
        wanted = np.stack(np.nonzero(x))
        for late in (True, False):
            (found,) = run("NonZero", x, [wanted.shape], late=late, wanted="y")
            np.testing.assert_array_equal(found, wanted)
    with pytest.raises(MlfcError, match="contradict a shape that the model declares"):
        run("NonZero", np.array([0, 5, 0], np.int32), [(1, 2)], wanted="y", compiles=True)


@pytest.mark.parametrize(
    ("operator", "shape", "stated", "attrs", "message"),
    [
        ("Unique", (3,), [None] * 4, {}, "'X' that is not constant"),
        ("Unique", (3, 2), [(2, 2), None, None, None], {"axis": 0}, "'X' that is not constant"),
        ("Unique", (3,), [(4,), None, None, None], {}, "4 different elements are more"),
        ("Unique", (3,), [None] * 4, {"axis": 1}, "axis 1 is outside"),
        ("NonZero", (3,), [(1, 1 << 20)], {}, "cannot give places of shape"),
        ("NonZero", (3,), [(2, 1)], {}, "cannot give places of shape"),
        ("NonZero", (3,), [None], {}, "'X' that is not constant"),
    ],
)
def test_what_nobody_knows_is_refused(operator: str, shape: Any, stated: Any, attrs: Any, message: str) -> None:
    wanted = "y" if operator == "NonZero" else "yifc"
    with pytest.raises(MlfcError, match=message):
        run(operator, np.zeros(shape, np.float32), stated, wanted=wanted, **attrs)

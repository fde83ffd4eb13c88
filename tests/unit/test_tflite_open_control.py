"""IF and WHILE of TFLite with runtime conditions: module functions that compute the same as LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlfc.errors import MlfcError
from mlfc.frontend.shapes import Dim
from mlfc.frontend.tflite import import_tflite
from mlfc.relay import ir
from mlfc.relay.text import from_text, to_text
from mlfc.relay.visitor import post_order
from mlfc.verify.litert import LiteRtReference
from tests.relay_dynamic import run_dynamic
from tests.tflite_builder import Graph, Op, T, build_graphs
from tests.unit.test_tflite_control import branching, looping, uneven
from tests.verify_relay import verify

X = np.array([-2, -0.5, 1.25, 3], np.float32)


def imported(data: bytes, **shapes: Any) -> tuple[ir.IRModule, dict[str, Any]]:
    module, params = import_tflite(data, "m", dynamic=True, shapes=shapes)
    verify(module)
    text = to_text(module, spans=True)
    assert to_text(from_text(text), spans=True) == text
    return module, params


def check(data: bytes, outputs: list[str], inputs: dict[str, Any], **shapes: Any) -> ir.IRModule:
    module, params = imported(data, **shapes)
    wanted = LiteRtReference(data).run(inputs)
    for name, found in zip(outputs, run_dynamic(module, params, inputs), strict=True):
        np.testing.assert_array_equal(found, wanted[name])
    return module


@pytest.mark.parametrize("taken", [True, False])
def test_branches_of_two_shapes(taken: bool) -> None:
    inputs = {"x": X, "condition": np.array(taken)}
    module, params = imported(uneven_rank())
    (found,) = run_dynamic(module, params, inputs)
    np.testing.assert_array_equal(found, LiteRtReference(uneven_rank()).run(inputs)["y"])
    assert sorted(module.functions) == ["main", "y_IF_0__else", "y_IF_0__then"]
    (extent,) = ir.tensor_type(module.main.body).shape
    assert extent.bounds == (4, 8)


def uneven_rank() -> bytes:
    """Return a model whose branches return 8 or 4 elements."""
    op = Op("IF", ["condition", "x"], ["y"], "IfOptions", {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2})
    y = T("y", (8,), signature=(-1,))
    main = Graph([T("x", (4,)), T("condition", (), "bool"), y], [op], ["x", "condition"], ["y"])
    double = Graph([T("x", (4,)), T("y", (8,))], [Op("CONCATENATION", ["x", "x"], ["y"], "ConcatenationOptions",
                   {"Axis": 0})], ["x"], ["y"])  # fmt: skip
    weights = T("weights", (4,), value=np.arange(1.0, 5.0))
    product = Op("MUL", ["x", "weights"], ["y"], "MulOptions")
    single = Graph([T("x", (4,)), weights, T("y", (4,))], [product], ["x"], ["y"])
    return build_graphs(main, double, single)


def test_what_is_cheap_is_computed_twice_and_ranks_must_be_equal() -> None:
    data = branching(T("condition", (), "bool"))
    for taken in (True, False):
        module = check(data, ["y"], {"x": X, "condition": np.array(taken)})
        assert list(module.functions) == ["main"]
    with pytest.raises(MlfcError, match=r"of type Tensor\[\(4\), float32\] or Tensor\[\(2, 2\), float32\], depending"):
        imported(uneven())


@pytest.mark.parametrize("start", [0, 2, 3, 7])
def test_loops_end_by_what_the_run_gives(start: int) -> None:
    data = looping(5, start=None)
    module = check(data, ["y", "end"], {"start": np.array(start, np.int32), "x": X})
    assert sorted(module.functions) == ["end_WHILE_0", "end_WHILE_0_done", "end_WHILE_0_turn", "main"]


def growing() -> bytes:
    """Return a model that appends its rows to themselves up to `limit` rows, and uses constant weights."""
    states = [("rows", (2, 3)), ("limit", ()), ("x", (2, 3)), ("weights", (3,))]
    kinds = {"limit": "int32"}

    def tensors(prefix: str) -> list[T]:
        signature = {"rows": (-1, 3), "x": (-1, 3)}
        return [T(prefix + name, shape, kinds.get(name, "float32"), signature=signature.get(name))
                for name, shape in states]  # fmt: skip

    main = Graph(
        [T("x", (2, 3), signature=(-1, 3)), T("limit", (), "int32"), T("weights", (3,), value=[1.0, 2.0, 3.0]),
         *tensors("end_")],
        [Op("WHILE", ["x", "limit", "x", "weights"], [f"end_{name}" for name, _ in states], "WhileOptions",
            {"CondSubgraphIndex": 1, "BodySubgraphIndex": 2})],
        ["x", "limit"], ["end_rows"],
    )  # fmt: skip
    names = [name for name, _ in states]
    more = Graph(
        [*tensors(""), T("shape", (2,), "int32"), T("count", (), "int32"), T("on", (), "bool"),
         *(T(name, (1,), "int32", value) for name, value in (("b0", 0), ("b1", 1)))],
        [Op("SHAPE", ["rows"], ["shape"], "ShapeOptions", {"OutType": 2}),
         Op("STRIDED_SLICE", ["shape", "b0", "b1", "b1"], ["count"], "StridedSliceOptions", {"ShrinkAxisMask": 1}),
         Op("LESS", ["count", "limit"], ["on"], "LessOptions")],
        names, ["on"],
    )  # fmt: skip
    turn = Graph(
        [*tensors(""), T("scaled", (2, 3), signature=(-1, 3)), T("new", (4, 3), signature=(-1, 3))],
        [Op("MUL", ["x", "weights"], ["scaled"], "MulOptions"),
         Op("CONCATENATION", ["rows", "scaled"], ["new"], "ConcatenationOptions", {"Axis": 0})],
        names, ["new", *names[1:]],
    )  # fmt: skip
    return build_graphs(main, more, turn)


@pytest.mark.parametrize(("rows", "limit"), [(1, 0), (1, 4), (3, 7)])
def test_states_may_grow(rows: int, limit: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
    inputs = {"x": x, "limit": np.array(limit, np.int32)}
    module, params = imported(growing(), x=(Dim("n", 1, 8), 3))
    (found,) = run_dynamic(module, params, inputs)
    count = rows * max(1, -(-limit // rows))
    np.testing.assert_array_equal(found, np.concatenate([x, *[x * [1, 2, 3]] * (count // rows - 1)]).astype(np.float32))
    assert any(isinstance(item, ir.Constant) for item in constants(module))


def constants(module: ir.IRModule) -> list[ir.Expr]:
    turn = next(function for name, function in module.functions.items() if name.endswith("turn"))
    return post_order(turn.body)


@pytest.mark.parametrize("dtype", ["bool", "float32", "int32"])
def test_places_of_what_is_not_zero_are_as_many_as_the_run_finds(dtype: str) -> None:
    tensors = [T("x", (3, 4), dtype, signature=(-1, 4)), T("y", (1, 2), "int64", signature=(-1, 2))]
    data = build_graphs(Graph(tensors, [Op("WHERE", ["x"], ["y"], "WhereOptions")], ["x"], ["y"]))
    module, params = imported(data, x=(Dim("n", 1, 9), 4))
    assert [str(symbol) for symbol in module.main.defines] == ["y"]
    for rows, share in ((3, 0.5), (5, 0.0), (1, 1.0), (9, 0.1)):
        x = (np.random.default_rng(rows).random((rows, 4)) < share).astype(dtype)
        (found,) = run_dynamic(module, params, {"x": x})
        # LiteRT's interpreter does not return arrays without elements
        wanted = LiteRtReference(data).run({"x": x})["y"] if x.any() else np.zeros((0, 2), np.int64)
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(MlfcError, match="the number of nonzero elements is only known at run time"):
        import_tflite(data, "m")

"""The traits that operators declare to passes, checked against their results."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlfc.errors import TypeCheckError
from mlfc.ops.evaluate import evaluate
from mlfc.relay import ir
from mlfc.relay.op import OPERATORS, Elements, Kind, Layout, Trait, kernel_note
from mlfc.support import dtypes
from mlfc.target.features import Features
from mlfc.tir import interpreter
from mlfc.transform import is_rounding_sensitive, lower_group
from mlfc.transform.convert_layout import ConvertLayout
from mlfc.transform.fold_pad import FoldPad
from mlfc.transform.quantize import CanonicalizeQuantized
from mlfc.transform.simplify import Simplify
from mlfc.verify.inputs import index_ends
from mlfc.verify.judge import range_of
from tests.edge_cases import specs
from tests.edge_specs import Given, Spec
from tests.relay_run import operators, run_main

Array = npt.NDArray[Any]

_LARGE = 200  # elements of an operand
_OUTSIDE = (Kind.OPAQUE, Kind.LIST, Kind.EXTERNAL)
# operators that return elements of the first operand for some values of other operands or attributes
_SOMETIMES = {"maximum", "minimum", "full", "topk"}


@cache
def _smallest() -> dict[str, list[Spec]]:
    """Return the smallest calls of each operator that the interpreter runs, floats before integers."""
    found: dict[str, list[tuple[tuple[bool, int], Spec]]] = {}
    for spec in specs():
        given = [arg for arg in spec.args if isinstance(arg, Given)]
        if OPERATORS.get(spec.operator).kind in _OUTSIDE or not given or not isinstance(spec.args[0], Given):
            continue
        key = not dtypes.is_float(given[0].dtype), max(prod(arg.shape) for arg in given)
        found.setdefault(spec.operator, []).append((key, spec))
    return {name: [spec for _, spec in sorted(pairs, key=lambda pair: pair[0])[:4]] for name, pairs in found.items()}


def _data(given: Given, seed: int) -> Array:
    """Return distinct elements, of both signs where possible; integers are valid positions in small tensors."""
    count, rng = prod(given.shape), np.random.default_rng(seed)
    kind = dtypes.to_numpy(given.dtype)
    if dtypes.is_float(given.dtype):
        values = (rng.permutation(count) - count / 2 + 0.137) * 0.37
    else:
        values = rng.permutation(count) % 2
    return values.reshape(given.shape).astype(kind)


def _constants(spec: Spec) -> list[ir.Expr]:
    arrays = (_data(arg, place) if isinstance(arg, Given) else arg for place, arg in enumerate(spec.args))
    return [ir.const(array) for array in arrays]


def _results(specs_of_one: list[Spec]) -> Iterator[tuple[Array, Array]]:
    """Yield the first operand and the result of each call that the interpreter finishes within its step limit."""
    for spec in specs_of_one:
        call = ir.call(spec.operator, _constants(spec), spec.attrs)
        first, value = call.args[0], evaluate(call)
        if value is not None and value.size and isinstance(first, ir.Constant):
            yield first.data, value


def test_elements_of_results_are_as_declared() -> None:
    """Check that exactly the operators that return elements of their first operand declare it."""
    checked, undeclared = set(), set()
    for name, found in _smallest().items():
        is_float = isinstance(found[0].args[0], Given) and dtypes.is_float(found[0].args[0].dtype)
        for data, value in _results(found):
            checked.add(name)
            if OPERATORS.get(name).elements is not Elements.COMPUTED:
                _check_elements(name, data, value)
                break
            if not is_float or value.dtype != data.dtype or not np.isin(value, data).all():
                break
        else:
            undeclared.add(name)
        if magnitude := OPERATORS.get(name).magnitude:
            assert np.abs(value).max() <= magnitude, name
    declared = {name for name in OPERATORS if OPERATORS.get(name).elements is not Elements.COMPUTED}
    assert declared - checked == set()
    assert undeclared & checked - _SOMETIMES == set(), "expected elements=... in their declarations"


def _check_elements(name: str, data: Array, value: Array) -> None:
    elements = OPERATORS.get(name).elements
    if elements is Elements.AVERAGED:
        assert data.min() <= value.min(), name
        assert value.max() <= data.max(), name
    elif elements is Elements.CONVERTED:
        assert value.shape == data.shape, name
    else:
        assert value.dtype == data.dtype, name
        assert np.isin(value, data).all(), name
    if elements is Elements.SAME:
        np.testing.assert_array_equal(value.reshape(-1), data.reshape(-1), name)


# along `axis` of a further operand, too
_SEVERAL_TENSORS = {"scatter_elements", "qnn.dequantize_blocks"}


def test_operators_along_an_axis_say_how_they_take_another_order_of_axes() -> None:
    """Check that operators with an axis that keep the shape of their first operand have a rule for axis order."""
    silent = set()
    for name, (spec, *_) in _smallest().items():
        operator, call = OPERATORS.get(name), ir.call(name, _constants(spec), spec.attrs)
        keeps = isinstance(call.type, ir.TensorType) and call.type.shape == ir.tensor_type(call.args[0]).shape
        if keeps and "axis" in call.attrs and operator.layout is Layout.LOGICAL:
            silent.add(name)
    assert silent == _SEVERAL_TENSORS


@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_sums_products_comparisons_and_logic_are_declared(dtype: str) -> None:
    """Check that operators with two operands declare whether they are sums, products, comparisons or logic."""
    a, b = np.asarray([3.5, -1.25, 0.5, 2.0, 2.0]), np.asarray([0.75, 2.0, -4.0, 2.0, 1.0])
    values = [a.astype(np.float32), b.astype(np.float32)] if dtype == "float32" else [a > 1, b > 1]
    for name in OPERATORS:
        operator = OPERATORS.get(name)
        if operator.kind is not Kind.BROADCAST or operator.num_inputs != 2 or operator.attrs:
            continue
        try:
            found = evaluate(ir.call(name, [ir.const(value) for value in values]))
        except TypeCheckError:
            continue
        assert found is not None
        if dtype == "bool":
            assert (found.dtype == bool) == bool(operator.traits & (Trait.LOGIC | Trait.COMPARISON)), name
            continue
        assert (found.dtype == bool) == bool(operator.traits & Trait.COMPARISON), name
        is_sum = np.array_equal(found, a + b) or np.array_equal(found, a - b)
        assert is_sum == bool(operator.traits & Trait.SUM), name
        assert np.array_equal(found, a * b) == bool(operator.traits & Trait.PRODUCT), name


def test_operators_with_windows_declare_them() -> None:
    for name in OPERATORS:
        operator = OPERATORS.get(name)
        names = {attr.name for attr in operator.attrs}
        if names & {"pool_size", "kernel_size"}:
            assert operator.windows is not None or operator.traits & Trait.TRANSPOSED, name
        assert (operator.filters is not None) <= operator.takes_bias, name
        for other in filter(None, (operator.integer_of, operator.packed_of)):
            assert other in OPERATORS, name


def test_neutral_operators_are_those_that_return_their_operand_of_the_same_type() -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    like = np.zeros((3, 4), np.float32)
    calls = {
        "cast": ([data], {"dtype": "float32"}), "cast_like": ([data, like], {}), "copy": ([data], {}),
        "broadcast_to": ([data], {"shape": (3, 4)}), "broadcast_to_like": ([data, like], {}),
        "slice_like": ([data, like], {"axes": ()}), "tile": ([data], {"reps": (1, 1)}),
    }  # fmt: skip
    assert set(calls) == {name for name in OPERATORS if OPERATORS.get(name).traits & Trait.NEUTRAL}
    for name, (args, attrs) in calls.items():
        first, *rest = (ir.Var(f"x{place}", ir.TensorType(arg.shape, "float32")) for place, arg in enumerate(args))
        call = ir.call(name, [first, *rest], attrs)
        module = ir.IRModule({"main": ir.Function((first, *rest), call)}, output_names=("y",))
        assert operators(Simplify()(module)) == [], name
        np.testing.assert_array_equal(run_main(module, dict(zip(("x0", "x1"), args, strict=False)))[0], data, name)


def _permuted(spec: Spec, shift: int) -> tuple[list[ir.Var], list[ir.Expr], dict[str, Array]]:
    """Return variables with permuted axes, the operands that transposes restore from them, and their values."""
    params, args, values = [], [], {}
    for place, arg in enumerate(spec.args):
        if not isinstance(arg, Given):
            args.append(ir.const(arg))
            continue
        rank, data = len(arg.shape), _data(arg, place)
        order = [(axis + shift) % rank for axis in range(rank)]  # order of the variable's axes
        param = ir.Var(f"x{place}", ir.TensorType(tuple(arg.shape[axis] for axis in order), arg.dtype))
        values[param.name] = data.transpose(order)
        params.append(param)
        back = [order.index(axis) for axis in range(rank)]
        args.append(ir.call("transpose", [param], axes=back) if rank > 1 else param)
    return params, args, values


def _assert_same_in_any_order(spec: Spec, shift: int) -> None:
    params, args, values = _permuted(spec, shift)
    call = ir.call(spec.operator, args, spec.attrs)
    module = ir.IRModule({"main": ir.Function(tuple(params), call)}, output_names=("y",))
    (expected,) = run_main(module, values)
    (found,) = run_main(ConvertLayout()(module), values)
    np.testing.assert_allclose(found, expected, 1e-5, 1e-6, err_msg=spec.operator)


def test_operators_compute_the_same_from_operands_in_any_order_of_axes() -> None:
    checked = set()
    for turn, (name, (spec, *_)) in enumerate(_smallest().items()):
        if max((prod(arg.shape) for arg in spec.args if isinstance(arg, Given)), default=0) > _LARGE:
            continue
        _assert_same_in_any_order(spec, 1 + turn % 2)
        checked.add(name)
    assert len(checked) > 100


def test_constants_pass_through_operators_that_name_parts_of_their_expression() -> None:
    """Fold an int16 sigmoid or tanh of constants to the result of its kernel."""
    codes = np.arange(-32768, 32768, 997, dtype=np.int16)
    numbers = (np.float32(2.0**-12), np.int32(0), np.float32(2.0**-15), np.int32(0))
    for name in ("qnn.sigmoid", "qnn.tanh"):
        data = ir.Var("x", ir.TensorType(codes.shape, "int16"))
        folded = evaluate(ir.call(name, [ir.const(codes), *map(ir.const, numbers)]))
        call = ir.call(name, [data, *map(ir.const, numbers)])
        group = lower_group(ir.Function((data,), call, {"Primitive": 1}), Features())
        assert folded is not None
        np.testing.assert_array_equal(folded, interpreter.run(group.prim, [codes], list(group.constants)))


def test_notes_are_of_operators_and_not_of_modules() -> None:
    assert kernel_note("tvmgen_vision_select_boxes_fused_add") == ""
    assert kernel_note("tvmgen_default_fused_vision_select_boxes_cast_1").startswith("rows without a box")


@pytest.mark.parametrize("between", ["multiply", "broadcast_to", "copy", "transpose", "qnn.dequantize_blocks"])
def test_sums_of_products_that_are_quantized_forbid_fused_multiply_adds(between: str) -> None:
    x, other = (ir.Var(name, ir.TensorType((4, 4), "float32")) for name in "xo")
    codes = ir.Var("c", ir.TensorType((4, 4), "int8"))
    product = ir.call("multiply", [x, other])
    if between == "broadcast_to":
        row = ir.call("strided_slice", [product], begin=(0,), end=(1,), strides=(1,), axes=(0,))
        product = ir.call(between, [row], shape=(4, 4))
    elif between == "qnn.dequantize_blocks":
        scales, zeros = ir.const(np.full((4, 2), 0.1, np.float32)), ir.const(np.zeros((4, 2), np.float32))
        product = ir.call(between, [codes, scales, zeros], axis=1, block_size=2)
    elif between != "multiply":
        product = ir.call(between, [product], {"axes": (1, 0)} if between == "transpose" else {})
    total = ir.call("add", [product, other])
    body = ir.call("qnn.quantize", [total, ir.const(0.1), ir.const(0)], out_dtype="int8")
    params = (x, other, codes)
    group = ir.call_function(ir.Function(params, body, {"Primitive": 1}), params)
    assert is_rounding_sensitive([ir.IRModule({"main": ir.Function(params, group)}, output_names=("y",))])


def test_positions_in_tables_of_every_kind_have_an_end() -> None:
    """Find the bound of indices into packed tables, and into tables without an axis."""
    places = [ir.Var(name, ir.TensorType((3,), "int32")) for name in ("packed", "flat")]
    codes, pair = (
        ir.const(np.ones((5, 4), np.int8)),
        (ir.const(np.ones((5, 1), np.float32)), ir.const(np.zeros((5, 1), np.int32))),
    )
    rows = ir.call("qnn.weight_only_take", [codes, places[0], *pair])
    numbers = ir.call("take", [ir.const(np.ones((2, 3), np.float32)), places[1]], axis=None)
    module = ir.IRModule({"main": ir.Function(tuple(places), ir.Tuple((rows, numbers)))}, output_names=("a", "b"))
    assert index_ends(module) == {"packed": 5, "flat": 2}


def test_bits_are_not_numbers() -> None:
    """Keep the range of a converted tensor, but not of a reinterpreted one."""
    x = ir.Var("x", ir.TensorType((4,), "float32"))
    bounded = ir.call("fast_tanh", [x])
    assert range_of(ir.call("cast_like", [bounded, ir.const(np.zeros(4))])) == 1.0
    assert range_of(ir.call("reinterpret", [bounded], dtype="int32")) == 0.0


def test_movements_and_extremes_of_dequantized_tensors_are_those_of_their_codes() -> None:
    moved = set()
    for name, (spec, *_) in _smallest().items():
        first = spec.args[0]
        single = (
            isinstance(first, Given)
            and first.dtype == "float32"
            and not any(isinstance(arg, Given) for arg in spec.args[1:])
        )
        if not single or OPERATORS.get(name).elements not in (Elements.SAME, Elements.MOVED, Elements.EXTREME):
            continue
        codes = ir.Var("x", ir.TensorType(first.shape, "int8"))
        real = ir.call("qnn.dequantize", [codes, ir.const(0.07), ir.const(3)])
        call = ir.call(name, [real, *map(ir.const, spec.args[1:])], spec.attrs)
        module = ir.IRModule({"main": ir.Function((codes,), call)}, output_names=("y",))
        integer = CanonicalizeQuantized()(module)
        assert operators(integer) in ([name, "qnn.dequantize"], ["reshape", "qnn.dequantize"]), name
        data = np.random.default_rng(7).integers(-128, 128, first.shape).astype(np.int8)
        np.testing.assert_array_equal(run_main(integer, {"x": data})[0], run_main(module, {"x": data})[0], name)
        moved.add(name)
    assert {"max", "nn.max_pool1d", "nn.adaptive_max_pool3d", "nn.mirror_pad", "broadcast_to", "reshape"} <= moved


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("form", ["nn.conv", "qnn.weight_only_conv", "nn.avg_pool"])
def test_pads_fold_into_windows_of_every_rank(form: str, rank: int) -> None:
    letters, rng, window = "DHW"[-rank:], np.random.default_rng(11), 4 if form == "nn.avg_pool" else 2
    x = ir.Var("x", ir.TensorType((1, *(5, 4, 3)[-rank:], 2), "float32"))
    widths = ((0, 0), *((1, 2), (0, 1), (2, 0))[-rank:], (0, 0))
    padded = ir.call("nn.pad", [x, ir.const(0.0)], pad_width=widths)
    attrs: dict[str, Any] = {"data_layout": f"N{letters}C", "kernel_layout": f"{letters}IO", "padding": (1, 0) * rank}
    codes = ir.const(rng.integers(-8, 8, (*(2,) * rank, 2, 3), np.int8))
    if form == "nn.avg_pool":
        attrs = {
            "pool_size": (window,) * rank,
            "layout": f"N{letters}C",
            "count_include_pad": True,
            "padding": (1, 0) * rank,
        }
        others: list[ir.Expr] = []
    elif form == "nn.conv":
        others = [ir.const(codes.data.astype(np.float32))]
    else:
        others = [codes, ir.const(np.full(3, 0.1, np.float32)), ir.const(np.zeros(3, np.int32))]
    call = ir.call(f"{form}{rank}d", [padded, *others], attrs)
    module = ir.IRModule({"main": ir.Function((x,), call)}, output_names=("y",))
    folded = FoldPad()(module)
    assert operators(folded) == [f"{form}{rank}d"]
    data = rng.standard_normal(ir.tensor_type(x).shape, dtype=np.float32)
    np.testing.assert_allclose(run_main(folded, {"x": data})[0], run_main(module, {"x": data})[0], 1e-5, 1e-6)


def test_pads_as_wide_as_a_window_stay_before_a_pool() -> None:
    """Leave padding that is not smaller than the window, which pools reject."""
    x = ir.Var("x", ir.TensorType((1, 4, 4, 2), "float32"))
    padded = ir.call("nn.pad", [x, ir.const(0.0)], pad_width=((0, 0), (2, 2), (1, 1), (0, 0)))
    call = ir.call("nn.avg_pool2d", [padded], pool_size=(2, 2), layout="NHWC")
    module = ir.IRModule({"main": ir.Function((x,), call)}, output_names=("y",))
    assert operators(FoldPad()(module)) == ["nn.pad", "nn.avg_pool2d"]


@pytest.mark.parametrize("form", ["nn.dense", "qnn.dense", "qnn.weight_only_dense"])
def test_dense_layers_behind_a_flattened_image_read_it_as_it_lies(form: str) -> None:
    rng = np.random.default_rng(13)
    codes, zero, scale = ir.const(rng.integers(-8, 8, (5, 12), np.int8)), ir.const(0), ir.const(0.1)
    others: dict[str, list[ir.Expr]] = {
        "nn.dense": [ir.const(codes.data.astype(np.float32))],
        "qnn.dense": [codes, zero, zero, scale, scale],
        "qnn.weight_only_dense": [
            codes,
            ir.const(np.full((5, 1), 0.1, np.float32)),
            ir.const(np.zeros((5, 1), np.int32)),
        ],
    }
    x = ir.Var("x", ir.TensorType((1, 2, 3, 2), "int8" if form == "qnn.dense" else "float32"))
    flat = ir.call("reshape", [ir.call("transpose", [x], axes=(0, 3, 1, 2))], newshape=(1, 12))
    module = ir.IRModule(
        {"main": ir.Function((x,), ir.call(form, [flat, *others[form]], units=5))}, output_names=("y",)
    )
    converted = ConvertLayout()(module)
    assert operators(converted) == ["reshape", form]
    data = rng.integers(-9, 9, (1, 2, 3, 2)).astype(ir.tensor_type(x).dtype)
    np.testing.assert_allclose(run_main(converted, {"x": data})[0], run_main(module, {"x": data})[0], 1e-5)

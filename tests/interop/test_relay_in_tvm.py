"""The Relay text of quantized models as TVM reads it: without mlfc's comments, by TVM's own type rules."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import mlfc
from mlfc.archive.read.source import source_files
from mlfc.errors import TextError
from mlfc.ops.attention import EXTRAS
from mlfc.relay import ir
from mlfc.relay.ir import IRModule
from mlfc.relay.op import OPERATORS, Trait
from mlfc.relay.text import from_text, not_in_tvm, to_text
from mlfc.relay.text_literals import SECTION
from mlfc.relay.visitor import children, post_order
from mlfc.support.content import to_bytes
from mlfc.support.dims import Symbol
from mlfc.support.dtypes import NARROW_INTEGERS
from tests.edge_cases import specs
from tests.edge_specs import Given
from tests.interop.tvm_relay_types import OPERATORS_OF_TVM, faults
from tests.onnx_models import small_network
from tests.tflite_cases import float_cases, quantized_cases
from tests.unit.test_tflite_ops import model_of

MODELS = (
    "ad01_int8",
    "hello_world_int8",
    "kws_ref_model",
    "kws_ref_model_float32",
    "mobilenet_v2_quantized_1x3x224x224",
    "pretrainedResnet_quant",
    "vww_96_int8",
)

_NEEDS_MLFC = """
extent_of linalg.det ml.ngram_counts ml.pairwise_coupling ml.tree_ensemble nn.gru_steps nn.lstm_steps
nn.rnn_steps onnx.call qnn.dynamic_lstm_steps qnn.dynamic_rnn_steps qnn.lstm_steps qnn.weight_only_conv1d
qnn.weight_only_conv2d qnn.weight_only_conv3d qnn.weight_only_dense qnn.weight_only_take random.philox_normal
random.philox_uniform require signal.filter_bank signal.gain signal.irfft signal.log signal.overlap_add
signal.rfft signal.scale_bits signal.square_root vision.select_boxes
list_append list_as list_bytes list_concat list_erase list_extents list_from list_get list_insert list_length
list_new list_require list_split list_stack
"""
"""The operators that TVM 0.14 lacks, and that no composition of its operators stands for."""


def as_tvm_reads(text: str) -> IRModule:
    """Return the module of a text, parsed with all comments ignored."""
    code, section, metadata = text.partition(SECTION)
    return from_text(re.sub(r"/\*.*?\*/", "", code) + section + metadata)


def check(module: IRModule) -> IRModule:
    """Check that TVM accepts a module's text and mlfc reads the same module back; return the module TVM reads."""
    for spans in (False, True):
        text = to_text(module, spans=spans)
        theirs = as_tvm_reads(text)
        assert faults(theirs) == []
        ours = from_text(text)
        assert to_text(ours, spans=spans) == text
    assert ours.functions.keys() == {"main"}
    assert_same(module, ours)
    return theirs


def assert_same(one: IRModule, other: IRModule) -> None:
    """Compare two modules, numbers bit for bit; a shared constant may be one object or several."""
    waiting: list[tuple[ir.Expr, ir.Expr]] = [(one.main.body, other.main.body)]
    seen = set()
    while waiting:
        left, right = waiting.pop()
        if (left, right) in seen:
            continue
        seen.add((left, right))
        assert (type(left), left.type, left.span) == (type(right), right.type, right.span)
        if isinstance(left, ir.Call) and isinstance(right, ir.Call):
            assert (left.op, left.attrs) == (right.op, right.attrs)
        if isinstance(left, ir.Constant) and isinstance(right, ir.Constant):
            assert (left.name, left.data.dtype, left.data.tobytes()) == (
                right.name,
                right.data.dtype,
                right.data.tobytes(),
            )
        waiting += zip(children(left), children(right), strict=True)


@pytest.mark.parametrize("name", MODELS)
def test_models_have_types_in_tvm(models: Path, name: str) -> None:
    module, params = mlfc.import_model(models / f"{name}.tflite")
    check(module)
    # the complete text of an archive's src/<M>.relay
    factory: Any = SimpleNamespace(module=module, source_params=params, module_name="m")
    text = to_bytes(source_files(factory)["src/m.relay"]).decode()
    assert faults(as_tvm_reads(text)) == []


@pytest.mark.parametrize("cases", [quantized_cases, float_cases])
def test_operators_of_tflite_have_types_in_tvm(cases: Any) -> None:
    module, _ = mlfc.import_model(model_of(cases(7)))
    theirs = check(module)
    used = {expr.op.name for expr in post_order(module.main.body) if isinstance(expr, ir.Call)}
    if cases is quantized_cases:
        assert {"qnn.mean", "qnn.elu", "qnn.prelu", "qnn.resize_bilinear", "qnn.requantize", "qnn.softmax"} <= used
        assert len(theirs.functions) > 1


class _Samples(CalibrationDataReader):  # type: ignore[misc]  # the package has no types
    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self._rest = iter([{"x": rng.standard_normal((1, 2, 4, 4)).astype(np.float32)} for _ in range(4)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._rest, None)


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
@pytest.mark.parametrize("activations", [QuantType.QInt8, QuantType.QUInt8])
def test_quantized_models_of_onnx_have_types_in_tvm(form: Any, activations: Any, tmp_path: Path) -> None:
    network = small_network()
    network.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3]))
    onnx.save(network, tmp_path / "float.onnx")
    path = tmp_path / "quantized.onnx"
    quantize_static(tmp_path / "float.onnx", path, _Samples(), form, per_channel=True, activation_type=activations)
    module, _ = mlfc.import_model(path)
    check(module)


def of_tables(others: set[str]) -> list[ir.Call]:
    """Return a call on constants, from the tables of cases, for each operator that TVM lacks, except `others`."""
    found: dict[str, ir.Call] = {}
    wanted = {name for name in OPERATORS if OPERATORS.get(name).in_tvm is not None} - others
    rng = np.random.default_rng(6)
    for spec in specs():
        if spec.operator in wanted:
            args = (
                rng.uniform(-9, 9, arg.shape).astype(arg.dtype) if isinstance(arg, Given) else arg for arg in spec.args
            )
            found[spec.operator] = ir.call(spec.operator, list(map(ir.const, args)), spec.attrs)
    assert found.keys() == wanted
    return list(found.values())


def _block_values(dtype: str) -> Any:
    return (np.arange(32).reshape(1, 2, 4, 4) % 7 - 2).astype(dtype)


def test_what_stands_for_an_operator_computes_the_same_up_to_one() -> None:
    pair = [ir.const(np.float32(0.05)), ir.const(np.int32(-3)), ir.const(np.float32(0.04)), ir.const(np.int32(5))]
    slopes = ir.const(np.array([100, -50, 20, 7], np.int8))
    rows = np.random.default_rng(5).integers(-128, 128, (2, 6, 4), np.int8)
    x, f = ir.Var("x", ir.TensorType((1, 4, 4, 4), "int8")), ir.Var("f", ir.TensorType((2, 8), "float32"))
    low = ir.call("minimum", [ir.call("min", [f], axis=(1,), keepdims=True), ir.const(np.float32(0))])
    high = ir.call("maximum", [ir.call("max", [f], axis=(1,), keepdims=True), ir.const(np.float32(0))])
    scale, zero = ir.call("qnn.asymmetric_scale", [low, high]), ir.call("qnn.asymmetric_zero_point", [low, high])
    real = ir.call("multiply", [ir.call("cast", [x], dtype="float32"), ir.const(0.05)])
    extras = [
        ir.const(np.arange(4).reshape(1, 1, 1, 4) != 1),
        ir.const(np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1)),
        ir.const(np.array([1], np.int32)),
        ir.const(np.array([3], np.int32)),
        ir.const(np.arange(4, dtype=np.float32)),
    ]
    calls = [
        ir.call("qnn.mean", [x, *pair], axis=(1, 2)),
        ir.call("qnn.elu", [x, *pair]),
        ir.call("qnn.gelu", [x, *pair]),
        ir.call("qnn.gelu", [x, *pair], approximate=True),
        ir.call("qnn.prelu", [x, slopes, *pair[:2], ir.const(np.float32(0.01)), ir.const(np.int32(0)), *pair[2:]]),
        ir.call("qnn.div", [x, slopes, *pair[:2], ir.const(np.float32(0.01)), ir.const(np.int32(0)), *pair[2:]]),
        ir.call("qnn.squared_difference", [x, slopes, *pair[:2], *pair[:2], *pair[2:]]),
        ir.call("qnn.resize_bilinear", [x], size=(7, 5)),
        ir.call("qnn.resize_bilinear", [x], size=(6, 9), align_corners=True),
        ir.call("qnn.resize_bilinear", [x], size=(3, 8), half_pixel_centers=True),
        ir.call("extents", [], values=(3, -2, 70), dtype="int64", shape=(3,)),
        ir.call("qnn.symmetric_quantize", [f, high]),
        scale,
        zero,
        ir.call("qnn.centred_quantize", [f, scale, zero]),
        ir.call("nn.attention", [real, real, real], scale=0.5, right=0, softcap=2.0, orders=("BNHD",) * 4),
        ir.call("nn.attention", [real, real, real, *extras], scale=0.5, left=1, offset=-1, extras=EXTRAS),
    ]
    calls += [
        ir.call("qnn.dequantize_blocks", [x, ir.const(np.float32(0.5)), ir.const(np.int32(-3))]),
        ir.call("qnn.dequantize_blocks", [x, *(ir.const(_block_values(dtype)) for dtype in ("float32", "int32"))],
                axis=1, block_size=3),
        ir.call("qnn.prod", [ir.call("clip", [x], a_min=-40, a_max=40), *pair], axis=(1,)),
        ir.call("nn.svdf_time", [ir.const(rows[:, :, 0]), ir.const(rows), ir.const(rows[0])], rank=2, state_zero=3),
        *(ir.call("qnn.unpack", [ir.const(rows.view(np.uint8)[0])], out_dtype=dtype, extent=extent)
          for dtype, extent in (("int4", 5), ("uint4", 6), ("int2", 16), ("uint2", 9))),
    ]  # fmt: skip
    # TVM 0.14 does not have the dtypes of cast_narrow
    calls += of_tables({"qnn.softmax", "cast_narrow", *(call.op.name for call in calls)})
    stand_ins = [call.op.in_tvm(call.args, call.attrs, call.type) for call in calls]
    # the numbers of narrow dtypes are compared as bytes
    fields = [
        ir.call("cast", [item], dtype="int8") if item.type.dtype in NARROW_INTEGERS else item
        for item in (*calls, *stand_ins)
    ]
    module = IRModule({"main": ir.Function((x, f), ir.Tuple(tuple(fields)))})
    rng = np.random.default_rng(4)
    values = {"x": rng.integers(-128, 128, (1, 4, 4, 4), np.int8), "f": rng.normal(size=(2, 8)).astype(np.float32)}
    found = list(mlfc.build(module).runtime.run(values).values())
    for call, ours, theirs in zip(calls, found[: len(calls)], found[len(calls) :], strict=True):
        assert ours.dtype == theirs.dtype
        assert np.abs(ours.astype(np.float64) - theirs).max() <= (1e-6 if ours.dtype == np.float32 else 1), call.op.name
        assert np.unique(ours).size > 1
    check(IRModule({"main": ir.Function((x, f), ir.Tuple(tuple(calls)))}))


def test_scales_and_roundings_are_tvms_and_comments_have_ours() -> None:
    data = ir.Var("x", ir.TensorType((2, 3), "int32"))
    zero = ir.const(np.int32(0))
    scales = ir.Constant(np.array([0.1, 0.2, 0.3]))
    body = ir.call("qnn.requantize", [data, scales, zero, ir.const(0.7, "float64"), zero], rounding="DOUBLE",
                   out_dtype="int8")  # fmt: skip
    module = IRModule({"main": ir.Function((data,), body)})
    text = to_text(module)
    line = text.splitlines()[2]
    assert line == (
        '  qnn.requantize(%x, meta[relay.Constant][0] /* ty=Tensor[(3), float32] */ /* exact={"constant": 1} */, 0, '
        '0.7f /* exact=0.7 */, 0, rounding="TONEAREST", out_dtype="int8") /* exact={"rounding": "DOUBLE"} */'
    )
    assert_same(module, from_text(text))
    # texts of earlier releases had these values outside of comments, where TVM reads them
    older = text.replace("0.7f /* exact=0.7 */", "0.7f64").replace("[0] /* ty=Tensor[(3), float32] */ /*", "[1] /*")
    older = older.replace('{"constant": 1}', "").replace("TONEAREST", "DOUBLE").replace('/* exact={"rounding"', "/* {")
    assert_same(module, from_text(older))


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("exact=0.7", "exact=0.8", "the comment behind it gives other numbers"),
        ("0.7f", "0.71f", "the comment behind it gives other numbers"),
        ('{"constant": 1}', '{"constant": 2}', "which is not one of the constants"),
        ('{"constant": 1}', '{"constant": -1}', "which is not one of the constants"),
        ('{"constant": 1}', '{"constant": 0}', "the comment behind it gives other numbers"),
        ('{"constant": 1}', "1.5", "which is not one of the constants"),
        ('"TONEAREST"', '"UPWARD"', "says that rounding is DOUBLE, which does not go with UPWARD"),
        ('{"rounding": "DOUBLE"}', '{"rounding": "NONE"}', "says that rounding is NONE, which does not go with"),
        ('{"rounding": "DOUBLE"}', '{"rounding": [1]}', r"says that rounding is \[1\], which does not go with"),
        ('{"rounding": "DOUBLE"}', '{"axis": 0}', "gives axis, which is not an attribute"),
        ('{"rounding": "DOUBLE"}', "4.5", "gives 4.5, which is not an attribute"),
    ],
)
def test_comments_that_contradict_the_text_are_refused(before: str, after: str, fault: str) -> None:
    data, zero = ir.Var("x", ir.TensorType((2, 3), "int32")), ir.const(np.int32(0))
    scales = ir.Constant(np.array([0.1, 0.2, 0.3]))
    body = ir.call("qnn.requantize", [data, scales, zero, ir.const(0.7, "float64"), zero], rounding="DOUBLE",
                   out_dtype="int8")  # fmt: skip
    text = to_text(IRModule({"main": ir.Function((data,), body)}))
    assert text.count(before) == 1
    with pytest.raises(TextError, match=fault):
        from_text(text.replace(before, after))


@pytest.mark.parametrize("name", ["nn.relu", "qnn.add", "nothing", 3])
def test_only_operators_without_a_place_in_tvm_are_stood_for(name: Any) -> None:
    text = (
        '#[version = "0.0.5"]\ndef @main(%x: Tensor[(2), float32]) -> Tensor[(2), float32] {\n'
        f"  @f(%x) /* exact={json.dumps({'op': name})} */\n}}\n"
        "def @f(%p: Tensor[(2), float32]) -> Tensor[(2), float32] {\n  nn.relu(%p)\n}\n"
    )
    with pytest.raises(TextError, match="which is not an operator for a function"):
        from_text(text)


def test_the_operators_that_tvm_cannot_parse() -> None:
    lacking = {name for name in OPERATORS if name not in OPERATORS_OF_TVM}
    composed = {name for name in lacking if OPERATORS.get(name).in_tvm is not None}
    marked = {name for name in OPERATORS if Trait.NOT_IN_TVM in OPERATORS.get(name).traits}
    assert not marked & OPERATORS_OF_TVM
    assert marked >= lacking - composed
    assert lacking - composed == set(_NEEDS_MLFC.split())
    # the stand-ins of operators without the mark never depend on the arguments
    assert marked & composed == {"extents", "qnn.dequantize_blocks", "qnn.unpack"}


def test_a_text_lists_what_tvm_cannot_parse() -> None:
    n = Symbol("n").dim
    x, s = ir.Var("require", ir.TensorType((2, 4), "float32")), ir.Var("s", ir.TensorType((n, 4), "float32"))

    def lacks(operator: str, data: ir.Var, **attrs: Any) -> tuple[str, ...]:
        return not_in_tvm(to_text(IRModule({"main": ir.Function((data,), ir.call(operator, [data], attrs))})))

    assert lacks("nn.mish", x) == ()
    assert lacks("nn.mish", s) == ("symbolic dimensions",)
    assert lacks("signal.rfft", x) == ("signal.rfft",)
    assert lacks("cast_narrow", x, dtype="float8_e5m2") == ("float8_e5m2",)
    assert lacks("extent_of", s, axis=0) == ("extent_of", "symbolic dimensions")
    # names in comments, strings, variables and functions; operators of users
    others = '%require(%x) @extent_of(%x) nn.relu(%x, a="linalg.det()") /* exact={"op": "list_get(x)"} */'
    assert not_in_tvm(others) == ()
    assert not_in_tvm("com_example.act(%x) /* Tensor[(floordiv(n, 2)), int8] */") == ("com_example.act",)

"""TFLite models with dynamic dimensions equal the static model for every size, and compute the same as LiteRT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlfc.errors import MlfcError
from mlfc.frontend.shapes import Dim, parse_shapes
from mlfc.frontend.tflite import import_tflite
from mlfc.relay import ir
from mlfc.relay.text import from_text, to_text
from mlfc.relay.visitor import children, post_order, with_children
from mlfc.support import dims
from mlfc.support.dims import Symbol
from mlfc.verify.litert import LiteRtReference
from tests.relay_dynamic import run_dynamic
from tests.tflite_builder import Op, T, build
from tests.tflite_sweep import Form, cases
from tests.verify_relay import verify

N = Symbol("n", 1, 64)
KINDS = (("float32", False, False), ("int8", True, False))
# these compare dimensions with numbers that the bounds of the symbol do not decide, or create constants
LEFT = {
    "BATCH_TO_SPACE_ND", "SPACE_TO_BATCH_ND", "MIRROR_PAD", "SLICE", "STRIDED_SLICE", "GATHER", "GATHER_ND", "TOPK_V2",
    "DYNAMIC_UPDATE_SLICE", "EMBEDDING_LOOKUP", "MATRIX_SET_DIAG", "RESIZE_BILINEAR", "TRANSPOSE_CONV",
    "CONV_3D_TRANSPOSE", "CONV_2D", "DEPTHWISE_CONV_2D", "CONV_3D", "SUM", "SHAPE", "AVERAGE_POOL_2D",
}  # fmt: skip


def specialized(module: ir.IRModule, extents: Mapping[Symbol, int]) -> ir.IRModule:
    """Return a module with values substituted for symbols, with all types inferred again."""

    def of(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(of, value))
        return dims.substituted(value, extents) if isinstance(value, dims.Dim) else value

    done: dict[ir.Expr, ir.Expr] = {}
    for node in post_order(module.main):
        if isinstance(node, ir.Var):
            done[node] = replace(node, type=ir.substituted(node.type, extents))  # type: ignore[arg-type]
        elif isinstance(node, ir.Call) and not isinstance(node.op, (ir.Function, ir.GlobalVar)):
            args = [done[child] for child in children(node)]
            attrs = {name: of(value) for name, value in node.attrs.items()}
            done[node] = ir.call(node.op.name, args, attrs, span=node.span)
        else:
            done[node] = with_children(node, (done[child] for child in children(node)))
    main = done[module.main]
    assert isinstance(main, ir.Function)
    return module.with_main(main)


@pytest.mark.parametrize(
    "name", ["ad01_int8", "hello_world_int8", "kws_ref_model", "kws_ref_model_float32", "vww_96_int8"]
)
def test_models_of_any_batch_are_those_of_each_batch(models: Path, name: str) -> None:
    data = (models / f"{name}.tflite").read_bytes()
    module, params = import_tflite(data, name)
    shapes = {var.name: ir.tensor_type(var).shape for var in module.main.params if var.name not in params}
    dynamic, _ = import_tflite(data, name, shapes={title: (N.dim, *shape[1:]) for title, shape in shapes.items()})
    verify(dynamic)
    assert to_text(from_text(to_text(dynamic, spans=True)), spans=True) == to_text(dynamic, spans=True)
    for size in (1, 5):
        static, _ = import_tflite(data, name, shapes={title: (size, *shape[1:]) for title, shape in shapes.items()})
        assert to_text(specialized(dynamic, {N: size}), spans=True) == to_text(static, spans=True)


def open_forms() -> Iterator[tuple[Form, int]]:
    """Yield operators with a dimension size of their inputs that may be dynamic."""
    for kind, form in cases():
        if (kind.dtype, kind.quantized, kind.rescales) in KINDS:
            extents = {extent for tensor in form.parts().fed for extent in tensor.shape}
            yield from ((form, extent) for extent in sorted(extents))


def test_operators_of_open_extents_are_those_of_each_extent() -> None:
    found: dict[str, int] = {}
    left: dict[str, str] = {}
    for form, extent in open_forms():
        fed, data = form.parts().fed, form.model()

        def shapes(size: Any, fed: Any = fed, extent: int = extent) -> dict[str, tuple[Any, ...]]:
            return {item.name: tuple(size if old == extent else old for old in item.shape) for item in fed}

        try:
            static, _ = import_tflite(data, "m", shapes=shapes(7))
        except MlfcError:
            continue
        try:
            dynamic, _ = import_tflite(data, "m", shapes=shapes(N.dim))
        except MlfcError as error:
            left[form.code] = str(error)
            continue
        if form.code in ("SHAPE", "MATRIX_DIAG"):  # with constants in the static model only
            continue
        assert to_text(specialized(dynamic, {N: 7}), spans=True) == to_text(static, spans=True), form.title
        found[form.code] = found.get(form.code, 0) + 1
    assert set(left) <= LEFT, left
    wrong = ("Traceback", "bug in mlfc", "damaged")
    assert not any(text in found for text in wrong for found in left.values())
    assert len(found) > 85


def flattening() -> bytes:
    """Return a model that splits its shape, multiplies and reassembles it, as converters write it."""
    tensors = [
        T("x", (1, 4, 6), signature=(-1, -1, 6)), T("shape", (3,), "int32"), T("rows", (), "int32"),
        T("columns", (), "int32"), T("count", (), "int32"), T("new", (2,), "int32"), T("flat", (4, 6)),
        T("six", (), "int32", 6), T("weights", (5, 6), value=np.arange(30.0)), T("product", (4, 5)),
        T("two", (), "int32", 2), T("double", (), "int32"), T("dims", (2,), "int32"), T("zero", (), value=0.5),
        T("filled", (8, 1)), T("y", (4, 5)), T("last", (1, 3, 6)), T("one", (), "int32", 1),
        *(T(name, (1,), "int32", value) for name, value in (("b0", 0), ("b1", 1), ("b2", 2), ("s1", 1))),
        T("begin", (3,), "int32", [0, 1, 0]), T("end", (3,), "int32", [0, 0, 0]), T("steps", (3,), "int32", [1, 1, 1]),
    ]  # fmt: skip
    cut = {"ShrinkAxisMask": 1}
    ops = [
        Op("SHAPE", ["x"], ["shape"], "ShapeOptions", {"OutType": 2}),
        Op("STRIDED_SLICE", ["shape", "b0", "b1", "s1"], ["rows"], "StridedSliceOptions", cut),
        Op("STRIDED_SLICE", ["shape", "b1", "b2", "s1"], ["columns"], "StridedSliceOptions", cut),
        Op("MUL", ["rows", "columns"], ["count"], "MulOptions"),
        Op("PACK", ["count", "six"], ["new"], "PackOptions", {"ValuesCount": 2}),
        Op("RESHAPE", ["x", "new"], ["flat"], "ReshapeOptions"),
        Op("FULLY_CONNECTED", ["flat", "weights", ""], ["product"], "FullyConnectedOptions"),
        Op("MUL", ["count", "two"], ["double"], "MulOptions"),
        Op("PACK", ["double", "one"], ["dims"], "PackOptions", {"ValuesCount": 2}),
        Op("FILL", ["dims", "zero"], ["filled"], "FillOptions"),
        Op("TANH", ["product"], ["y"]),
        Op("STRIDED_SLICE", ["x", "begin", "end", "steps"], ["last"], "StridedSliceOptions",
           {"BeginMask": 5, "EndMask": 7}),
    ]  # fmt: skip
    return build(tensors, ops, ["x"], ["y", "filled", "last", "count"])


def test_arithmetic_of_shapes_is_that_of_symbols_and_results_are_those_of_litert() -> None:
    data = flattening()
    module, params = import_tflite(data, "m", shapes=parse_shapes(["x=n:1..9,?,6"]))
    verify(module)
    kinds = [str(field.type) for field in children(module.main.body)]
    assert kinds == [
        "Tensor[(n * x_1, 5), float32]", "Tensor[(2 * n * x_1, 1), float32]", "Tensor[(n, x_1 - 1, 6), float32]",
        "int32",
    ]  # fmt: skip
    used = {ir.op_name(node) for node in post_order(module.main.body)}
    assert used == {None, "reshape", "nn.dense", "tanh", "broadcast_to", "strided_slice", "extents"}
    for size in ((1, 4, 6), (3, 2, 6), (9, 5, 6)):
        x = np.random.default_rng(sum(size)).standard_normal(size).astype(np.float32)
        wanted = LiteRtReference(data).run({"x": x})
        found = run_dynamic(module, params, {"x": x})
        for name, array in zip(("y", "filled", "last", "count"), found, strict=True):
            np.testing.assert_allclose(array, wanted[name], rtol=1e-5, atol=1e-5)


def test_bounds_decide_what_a_dimension_leaves_open() -> None:
    tensors = [T("x", (5,)), T("begin", (1,), "int32", [2]), T("size", (1,), "int32", [2]), T("y", (2,))]
    data = build(tensors, [Op("SLICE", ["x", "begin", "size"], ["y"], "SliceOptions")], ["x"], ["y"])
    with pytest.raises(MlfcError, match=r"whether n >= 4 depends on the run.*bounds that decide it"):
        import_tflite(data, "m", shapes={"x": (Dim("n"),)})
    module, _ = import_tflite(data, "m", shapes={"x": (Dim("n", 4),)})
    assert str(module.main.body.type) == "Tensor[(2), float32]"
    with pytest.raises(MlfcError, match="it has 1 dimensions, but the given shape"):
        import_tflite(data, "m", shapes={"x": (Dim("n"), 3)})


def _sizes(name: str, *parts: str) -> Op:
    """Return the operator that joins dimension sizes to a shape, as converters write it."""
    return Op("PACK", parts, [name], "PackOptions", {"ValuesCount": len(parts)})


# operators with sizes n0, n1, ... of `x`: constants and results, operators, outputs
COMPUTED: dict[str, tuple[list[T], list[Op], list[str]]] = {
    "RANGE": (
        [T("table", (64, 3), value=np.arange(192.0).reshape(64, 3)), T("places", (4,), "int32"), T("rows", (4, 3)),
         T("y", (1, 4, 3)), T("back", (2,), "int32"), T("-2", (), "int32", -2)],
        [Op("RANGE", ["0", "n1", "1"], ["places"]), Op("GATHER", ["table", "places"], ["rows"], "GatherOptions"),
         Op("ADD", ["x", "rows"], ["y"], "AddOptions"), Op("RANGE", ["n1", "0", "-2"], ["back"])],
        ["y", "back"],
    ),
    "PAD": (
        [T("none", (2,), "int32", [0, 0]), T("some", (2,), "int32"), T("pads", (3, 2), "int32"), T("y", (1, 9, 3))],
        [_sizes("some", "1", "n1"), _sizes("pads", "none", "some", "none"),
         Op("PAD", ["x", "pads"], ["y"], "PadOptions")],
        ["y"],
    ),
    "SPLIT_V": (
        [T("half", (), "int32"), T("rest", (), "int32"), T("sizes", (2,), "int32"), T("y", (1, 2, 3)),
         T("z", (1, 2, 3))],
        [Op("FLOOR_DIV", ["n1", "2"], ["half"]), Op("SUB", ["n1", "half"], ["rest"], "SubOptions"),
         _sizes("sizes", "half", "rest"),
         Op("SPLIT_V", ["x", "sizes", "1"], ["y", "z"], "SplitVOptions", {"NumSplits": 2})],
        ["y", "z"],
    ),
    "SCATTER_ND": (
        [T("new", (2,), "int32"), T("at", (2, 1), "int32", [[0], [2]]), T("rows", (2, 3), value=np.ones((2, 3))),
         T("y", (4, 3)), T("places", (2, 2), "int32", [[0, 1], [2, 2]]), T("numbers", (2,), value=[1.0, 2.0]),
         T("rest", (), value=0.5), T("z", (4, 3))],
        [_sizes("new", "n1", "3"), Op("SCATTER_ND", ["at", "rows", "new"], ["y"]),
         Op("SPARSE_TO_DENSE", ["places", "new", "numbers", "rest"], ["z"])],
        ["y", "z"],
    ),
    "ONE_HOT": (
        [T("at", (2,), "int32", [1, 3]), T("on", (), value=1.0), T("off", (), value=0.0), T("y", (2, 4))],
        [Op("ONE_HOT", ["at", "n1", "on", "off"], ["y"], "OneHotOptions", {"Axis": -1})],
        ["y"],
    ),
    "MATRIX_DIAG": (
        [T("y", (1, 4, 3, 3)), T("order", (3,), "int32", [0, 2, 1]), T("turned", (1, 3, 4)), T("z", (1, 3, 4, 4))],
        [Op("MATRIX_DIAG", ["x"], ["y"]), Op("TRANSPOSE", ["x", "order"], ["turned"], "TransposeOptions"),
         Op("MATRIX_DIAG", ["turned"], ["z"])],
        ["y", "z"],
    ),
    "TRANSPOSE_CONV": (
        [T("new", (4,), "int32"), T("high", (), "int32"), T("wide", (), "int32"),
         T("w", (3, 3, 3, 2), value=np.random.default_rng(0).standard_normal((3, 3, 3, 2))),
         T("y", (1, 8, 10, 3), signature=(-1, -1, -1, 3))],
        [Op("MUL", ["n1", "2"], ["high"], "MulOptions"), Op("MUL", ["n2", "2"], ["wide"], "MulOptions"),
         _sizes("new", "n0", "high", "wide", "3"),
         Op("TRANSPOSE_CONV", ["new", "w", "x"], ["y"], "TransposeConvOptions", {"StrideH": 2, "StrideW": 2})],
        ["y"],
    ),
    "TOPK_V2": (
        [T("half", (), "int32"), T("order", (3,), "int32", [0, 2, 1]), T("turned", (1, 3, 4)), T("y", (1, 3, 2)),
         T("at", (1, 3, 2), "int32")],
        [Op("FLOOR_DIV", ["n1", "2"], ["half"]), Op("TRANSPOSE", ["x", "order"], ["turned"], "TransposeOptions"),
         Op("TOPK_V2", ["turned", "half"], ["y", "at"])],
        ["y", "at"],
    ),
    "DYNAMIC_UPDATE_SLICE": (
        [T("new", (1, 2, 3), value=np.arange(6.0).reshape(1, 2, 3)), T("last", (), "int32"), T("at", (3,), "int32"),
         T("y", (1, 4, 3)), T("row", (1, 4, 3))],
        [Op("SUB", ["n1", "2"], ["last"], "SubOptions"), _sizes("at", "0", "last", "0"),
         Op("TANH", ["x"], ["row"]), Op("DYNAMIC_UPDATE_SLICE", ["row", "new", "at"], ["y"])],
        ["y"],
    ),
}  # fmt: skip


def computed(code: str, shape: tuple[int, ...]) -> bytes:
    """Return the model of an entry of `COMPUTED`, and its operators that take the shape apart."""
    tensors, ops, outputs = COMPUTED[code]
    given = [T("x", shape, signature=(-1,) * len(shape)), T("shape", (len(shape),), "int32"),
             *(T(str(number), (), "int32", number) for number in range(4)),
             *(T(f"at{place}", (1,), "int32", place) for place in range(len(shape)))]  # fmt: skip
    cuts = []
    for place in range(len(shape) - 1):
        given.append(T(f"n{place}", (), "int32"))
        inputs = ["shape", f"at{place}", f"at{place + 1}", "at1"]
        cuts.append(Op("STRIDED_SLICE", inputs, [f"n{place}"], "StridedSliceOptions", {"ShrinkAxisMask": 1}))
    shape_of_x = Op("SHAPE", ["x"], ["shape"], "ShapeOptions", {"OutType": 2})
    return build([*given, *tensors], [shape_of_x, *cuts, *ops], ["x"], outputs)


def agrees(code: str, shape: str, *sizes: tuple[int, ...]) -> None:
    """Compare an entry of `COMPUTED` with LiteRT at some sizes of its input."""
    data = computed(code, sizes[0])
    module, params = import_tflite(data, "m", shapes=parse_shapes([f"x={shape}"]), dynamic=True)
    verify(module)
    for size in sizes:
        x = np.random.default_rng(sum(size)).standard_normal(size).astype(np.float32)
        wanted = LiteRtReference(data).run({"x": x})
        for name, found in zip(COMPUTED[code][2], run_dynamic(module, params, {"x": x}), strict=True):
            np.testing.assert_allclose(found, wanted[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("code", COMPUTED)
def test_sizes_computed_from_a_shape(code: str) -> None:
    if code == "TRANSPOSE_CONV":
        for shape in ("b,4,5,2", "b,h,w,2"):
            agrees(code, shape, (1, 4, 5, 2), (3, 4, 5, 2))
        agrees(code, "b,h,w,2", (1, 4, 5, 2), (2, 7, 3, 2))
    elif code == "DYNAMIC_UPDATE_SLICE":  # LiteRT writes to a batch of 1 only
        agrees(code, "1,n:4..64,3", (1, 4, 3), (1, 7, 3))
    else:
        agrees(code, "b,n:4..64,3", (1, 4, 3), (2, 7, 3))

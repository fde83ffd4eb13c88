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
    "DYNAMIC_UPDATE_SLICE", "EMBEDDING_LOOKUP", "MATRIX_DIAG", "MATRIX_SET_DIAG", "RESIZE_NEAREST_NEIGHBOR",
    "RESIZE_BILINEAR", "TRANSPOSE_CONV", "CONV_3D_TRANSPOSE", "CONV_2D", "DEPTHWISE_CONV_2D", "CONV_3D", "SUM",
    "SHAPE", "AVERAGE_POOL_2D",
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
        if form.code == "SHAPE":  # a constant in the static model only
            continue
        assert to_text(specialized(dynamic, {N: 7}), spans=True) == to_text(static, spans=True), form.title
        found[form.code] = found.get(form.code, 0) + 1
    assert set(left) <= LEFT, left
    assert not any("Traceback" in text or "bug in mlfc" in text for text in left.values())
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

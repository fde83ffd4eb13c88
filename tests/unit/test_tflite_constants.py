"""Constant subgraphs of TFLite models are computed at import: shapes, and sparsely stored weights."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import tflite

from mlfc.errors import LimitError, MlfcError, ModelError
from mlfc.frontend.tflite import import_tflite
from mlfc.relay.ir import Call, IRModule, op_name
from mlfc.relay.visitor import post_order
from mlfc.support import cost
from mlfc.verify.litert import LiteRtReference
from tests.tflite_builder import Level, Op, Sparsity, T, build

Array = np.ndarray
Order = tuple[int, ...]


def sparse(dense: Array, order: Order, compressed: set[int], blocks: dict[int, int]) -> tuple[Sparsity, Array]:
    """Return the sparse layout of an array in this order of dimensions, and its values, by recursion.

    `compressed`: the dimensions that list their indices. `blocks`: block sizes by dimension.
    """
    sizes = [extent // blocks.get(axis, 1) for axis, extent in enumerate(dense.shape)] + list(blocks.values())
    segments: dict[int, list[int]] = {level: [0] for level in range(len(order))}
    indices: dict[int, list[int]] = {level: [] for level in range(len(order))}
    values: list[Any] = []

    def part(chosen: dict[int, int]) -> Array:
        """Return the elements below a node."""
        ranges = []
        for axis, extent in enumerate(dense.shape):
            block = blocks.get(axis, 1)
            inner = len(dense.shape) + list(blocks).index(axis) if axis in blocks else None
            outer = [chosen[axis]] if axis in chosen else range(extent // block)
            within = [chosen[inner]] if inner in chosen else range(block)
            ranges.append([one * block + other for one, other in product(outer, within)])
        return dense[np.ix_(*ranges)]

    def descend(level: int, chosen: dict[int, int]) -> None:
        if level == len(order):
            values.append(part(chosen).item())
            return
        dimension = order[level]
        for index in range(sizes[dimension]):
            below = {**chosen, dimension: index}
            if dimension in compressed:
                if not part(below).any():
                    continue
                indices[level].append(index)
            descend(level + 1, below)
        segments[level].append(len(indices[level]))

    descend(0, {})
    levels = [
        Level(segments=np.array(segments[level], np.int32), indices=np.array(indices[level], np.uint8))
        if dimension in compressed
        else Level(sizes[dimension])
        for level, dimension in enumerate(order)
    ]
    return Sparsity(order, levels, tuple(blocks)), np.array(values, dense.dtype)


def densified(tensor: T) -> bytes:
    """Return a model that adds a sparse constant to its input."""
    shape = tensor.shape
    tensors = [T("x", shape), tensor, T("d", shape), T("y", shape)]
    ops = [Op("DENSIFY", [tensor.name], ["d"]), Op("ADD", ["x", "d"], ["y"], "AddOptions")]
    return build(tensors, ops, ["x"], ["y"])


def scattered(shape: tuple[int, ...], seed: int) -> Array:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * (rng.random(shape) < 0.3)).astype(np.float32)


@pytest.mark.parametrize(
    ("shape", "order", "compressed", "blocks"),
    [
        ((5, 7), (0, 1), {1}, {}),
        ((5, 7), (1, 0), {0}, {}),
        ((4, 1, 1, 9), (0, 1, 2, 3), {3}, {}),
        ((4, 8), (0, 1, 2), {1}, {1: 4}),
        ((8, 6), (0, 1, 2, 3), {1}, {0: 2, 1: 3}),
        ((8, 6), (1, 0, 3, 2), {0}, {0: 2, 1: 3}),
        ((3, 4), (0, 1), {0, 1}, {}),
    ],
)
def test_sparse_constants_are_what_litert_reads(
    shape: tuple[int, ...], order: Order, compressed: set[int], blocks: dict[int, int]
) -> None:
    dense = scattered(shape, 1)
    dense[:2] = 0
    layout, values = sparse(dense, order, compressed, blocks)
    assert values.size < dense.size
    data = densified(T("w", shape, "float32", values, sparsity=layout))
    _, params = import_tflite(data, "sparse")
    np.testing.assert_array_equal(params["d"], dense)
    if len(compressed) == 1:  # LiteRT supports only one compressed dimension
        x = scattered(shape, 2)
        np.testing.assert_array_equal(LiteRtReference(data).run({"x": x})["y"], x + dense)


def damaged() -> dict[str, tuple[T, str]]:
    shape = (4, 6)
    layout, values = sparse(scattered(shape, 3), (0, 1), {1}, {})
    whole = T("w", shape, "float32", values, sparsity=layout)
    rows, columns = layout.levels

    def changed(**fields: Any) -> T:
        return replace(whole, sparsity=replace(layout, **fields))

    def with_columns(**fields: Any) -> T:
        return changed(levels=[rows, replace(columns, **fields)])

    return {
        "values": (replace(whole, value=values[1:]), "bytes, the buffer"),
        "order": (changed(order=(0, 0)), "has the levels"),
        "levels": (changed(order=(0, 1, 2), levels=[rows, columns, rows]), "has the levels"),
        "many_levels": (changed(order=tuple(range(40))), "has 40 levels"),
        "blocks": (changed(blocks=(7,), order=(0, 1, 2), levels=[rows, columns, Level(2)]), "has blocks of"),
        "block_size": (
            changed(blocks=(0,), order=(0, 1, 2), levels=[rows, columns, Level(3)]), "not made up of blocks of 3",
        ),
        "size": (changed(levels=[Level(5), columns]), "a dense level of 4 has the size 5"),
        "index": (with_columns(indices=columns.indices + np.uint8(4)), "outside a level of 6"),
        "ascent": (with_columns(indices=columns.indices[::-1].copy()), "ascending"),
        "segments": (with_columns(segments=columns.segments[:-1]), "not divided"),
        "descent": (with_columns(segments=columns.segments[[0, 2, 1, 3, 4]]), "not divided"),
        "end": (with_columns(segments=columns.segments + np.int32(1)), "not divided"),
    }  # fmt: skip


@pytest.mark.parametrize("name", damaged())
def test_sparse_constants_that_contradict_themselves_are_refused(name: str) -> None:
    tensor, message = damaged()[name]
    with pytest.raises(ModelError, match=message):
        import_tflite(densified(tensor), "sparse")


def test_a_sparse_constant_out_of_proportion_is_refused() -> None:
    empty = Level(segments=np.zeros(2, np.int32), indices=np.zeros(0, np.int32))
    tensor = T("w", (1, 1 << 29), "float32", np.zeros(1, np.float32), sparsity=Sparsity((0, 1), [Level(1), empty]))
    data = densified(tensor)
    with cost.limited(len(data), 0), pytest.raises(LimitError, match="constants"):
        import_tflite(data, "sparse")


def shape_of_the_rows() -> bytes:
    """Return a model that keeps the first dimension of its input and multiplies the others, as exporters write it."""

    def number(name: str, *values: int) -> T:
        return T(name, (len(values),), "int32", values)

    tensors = [
        T("x", (2, 3, 4)), T("shape", (3,), "int32"), number("zero", 0), number("one", 1), T("rows", (), "int32"),
        T("rest", (), "int32", 12), T("wanted", (2,), "int32"), T("y", (2, 12)),
    ]  # fmt: skip
    ops = [
        Op("SHAPE", ["x"], ["shape"], "ShapeOptions", {"OutType": tflite.TensorType.INT32}),
        Op("STRIDED_SLICE", ["shape", "zero", "one", "one"], ["rows"], "StridedSliceOptions", {"ShrinkAxisMask": 1}),
        Op("PACK", ["rows", "rest"], ["wanted"], "PackOptions", {"ValuesCount": 2, "Axis": 0}),
        Op("RESHAPE", ["x", "wanted"], ["y"]),
    ]
    return build(tensors, ops, ["x"], ["y"])


def operators(module: IRModule) -> list[str | None]:
    return [op_name(node) for node in post_order(module.main.body) if isinstance(node, Call)]


def test_shapes_that_the_model_computes_are_known() -> None:
    data = shape_of_the_rows()
    module, params = import_tflite(data, "rows")
    assert operators(module) == ["reshape"]
    assert params == {}
    assert str(module.main.body.type) == "Tensor[(2, 12), float32]"
    assert LiteRtReference(data).run({"x": np.zeros((2, 3, 4), np.float32)})["y"].shape == (2, 12)


def test_another_shape_of_the_input_reaches_what_is_computed_of_it() -> None:
    module, _ = import_tflite(shape_of_the_rows(), "rows", shapes={"x": (5, 3, 4)})
    assert str(module.main.body.type) == "Tensor[(5, 12), float32]"


def test_constants_of_no_elements_have_no_buffer() -> None:
    tensors = [T("x", (1, 1)), T("none", (0,), "int32"), T("y", ())]
    data = build(tensors, [Op("RESHAPE", ["x", "none"], ["y"])], ["x"], ["y"])
    module, _ = import_tflite(data, "scalar")
    assert str(module.main.body.type) == "float32"
    assert LiteRtReference(data).run({"x": np.ones((1, 1), np.float32)})["y"].shape == ()


def test_open_dimensions_take_the_shape_that_is_advised() -> None:
    kernel = T("w", (1, 1, 5, 1), "float32", np.ones((1, 1, 5, 1), np.float32))
    tensors = [T("x", (1, 1, 1, 1), signature=(1, 1, -1, 1)), kernel, T("y", (1, 1, 1, 1), signature=(1, 1, -1, 1))]
    options = {"Padding": tflite.Padding.VALID, "StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}
    data = build(tensors, [Op("CONV_2D", ["x", "w", ""], ["y"], "Conv2DOptions", options)], ["x"], ["y"])
    with pytest.raises(MlfcError, match="--shape x=1,1,"):
        import_tflite(data, "open")
    module, _ = import_tflite(data, "open", shapes={"x": (1, 1, 9, 1)})
    assert str(module.main.body.type) == "Tensor[(1, 1, 5, 1), float32]"

"""Row tiling: a schedule covers all rows that each row needs, and no row is computed twice."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlfc
from mlfc import memory
from mlfc.errors import InternalError
from mlfc.factory import Factory
from mlfc.relay import ir
from mlfc.tir.program import Program, Value
from mlfc.transform import pipeline
from mlfc.transform.row_tiling import TiledLayer, find_chains, rows_of, schedule, tiled_function
from tests.relay_run import run_main

NO_CALL = ir.call("copy", [ir.Var("x", ir.TensorType((1,), "int8"))])


@st.composite
def chains(draw: st.DrawFn) -> list[TiledLayer]:
    layers = []
    rows = draw(st.integers(6, 40))
    for _ in range(draw(st.integers(1, 5))):
        window = draw(st.integers(1, min(5, rows)))
        stride = draw(st.integers(1, window))
        top, bottom = draw(st.integers(0, window - 1)), draw(st.integers(0, window - 1))
        out_rows = (rows + top + bottom - window) // stride + 1
        if out_rows < 1:
            break
        layers.append(TiledLayer(NO_CALL, rows, out_rows, window, stride, top))
        rows = out_rows
    return layers


@given(chains(), st.integers(1, 9))
def test_every_row_is_computed_once_from_rows_that_are_there(layers: list[TiledLayer], rows: int) -> None:
    if not layers:
        return
    tiles = schedule(layers, rows)
    held = [set(range(layers[0].in_rows)), *(set() for _ in layers)]  # rows of each input, and of the result
    for number, layer_tiles in enumerate(tiles):
        for index, (layer, tile) in enumerate(zip(layers, layer_tiles, strict=True)):
            if tile is None:
                continue
            for row in range(tile.first, tile.end):
                wanted = range(row * layer.stride - layer.top, row * layer.stride - layer.top + layer.window)
                needed = {place for place in wanted if 0 <= place < layer.in_rows}
                assert needed <= set(range(tile.needs_first, tile.needs_end))
                assert needed <= held[index]
                assert row not in held[index + 1]
                held[index + 1].add(row)
            top, bottom = layer.padding(tile)
            height = tile.needs_end - tile.needs_first + top + bottom
            assert (height - layer.window) // layer.stride + 1 == tile.end - tile.first
            if index:  # carried rows are part of the previous tile
                before = [item[index] for item in tiles[:number] if item[index] is not None]
                assert tile.carried <= (before[-1].needs_end - before[-1].needs_first if before else 0)
                # only rows that are needed again are kept
                held[index] -= set(range(tile.needs_first))
    assert held[-1] == set(range(layers[-1].out_rows))


def test_parts_of_values_know_where_they_lie() -> None:
    whole = Value("x", (1, 10, 4, 3), "int16", "intermediate")
    assert rows_of(whole, 0, 10) is whole
    part = rows_of(rows_of(whole, 2, 9), 1, 3)
    assert (part.shape, part.root, part.root_start, part.is_whole) == ((1, 2, 4, 3), whole, 3 * 4 * 3 * 2, False)


@cache
def tiled(path: Path, *, workspace_io: bool) -> Factory:
    module, params = mlfc.import_model(path)
    return mlfc.build(module, "c -mcpu=cortex-m4", params, ram=41_473, workspace_io=workspace_io)


@pytest.mark.parametrize("workspace_io", [False, True])
def test_plans_of_tiles_are_proved_and_listed(models: Path, workspace_io: bool) -> None:
    factory = tiled(models / "vww_96_int8.tflite", workspace_io=workspace_io)
    program, plan = factory.program, factory.plan
    assert plan.size + (0 if workspace_io else 27_650) <= 41_473
    assert (program.tiling is not None) is not workspace_io  # without the inputs, tiling is not needed
    blocks = memory.blocks(program, plan)
    # every byte in each half of a call belongs to one block
    for call in range(len(program.calls)):
        for half in (0, 1):
            taken: list[tuple[int, int]] = []
            for number, block in enumerate(blocks):
                heir = block.reuses is not None or bool(block.reaches)
                heirs = [
                    other for other in blocks
                    if other.first == block.last and number in (other.reuses, *(item.block for item in other.reaches))
                ]  # fmt: skip
                starts = 2 * block.first + heir
                ends = 2 * block.last + (not heirs)
                if starts <= 2 * call + half <= ends and block.nbytes:
                    taken.append((block.offset, block.offset + block.nbytes))
            taken.sort()
            assert all(one[1] <= other[0] for one, other in pairwise(taken))


def test_the_proof_sees_a_part_that_is_missing(models: Path) -> None:
    factory = tiled(models / "vww_96_int8.tflite", workspace_io=False)
    calls = list(factory.program.calls)
    parts = [index for index, call in enumerate(calls) if not call.output.is_whole]
    for index in (parts[0], parts[-1]):
        fewer = Program(
            "p", factory.program.inputs, factory.program.outputs, (), (), tuple(calls[:index] + calls[index + 1 :])
        )
        with pytest.raises(InternalError):
            memory.prove(fewer, factory.plan)


def window_layers() -> list[ir.Call]:
    """Return a layer of each kind of windowed operator on rows of channels-last data."""
    x, codes = (ir.Var("x", ir.TensorType((1, 9, 6, 8), dtype)) for dtype in ("float32", "int8"))
    rng = np.random.default_rng(5)
    weights = rng.standard_normal((3, 3, 8, 4), dtype=np.float32)
    window = {"strides": (2, 1), "padding": (1, 1, 1, 1)}
    conv = {**window, "data_layout": "NHWC", "kernel_layout": "HWIO", "channels": 4, "kernel_size": (3, 3)}
    pool = {**window, "pool_size": (3, 3), "layout": "NHWC"}
    zero, scale = ir.const(0), ir.const(0.1)
    packed = [
        ir.const(rng.integers(-8, 8, weights.shape, np.int8)),
        ir.const(np.full(4, 0.1, np.float32)),
        ir.const(np.zeros(4, np.int32)),
    ]
    return [
        ir.call("nn.conv2d", [x, ir.const(weights)], conv),
        ir.call("qnn.weight_only_conv2d", [x, *packed], conv),
        ir.call("qnn.conv2d", [codes, packed[0], zero, zero, scale, scale], conv),
        ir.call("nn.max_pool2d", [x], pool),
        ir.call("nn.avg_pool2d", [x], {**pool, "count_include_pad": True}),
        ir.call("nn.avg_pool2d", [x], {**pool, "count_include_pad": False}),
        ir.call("qnn.avg_pool2d", [codes, scale, zero, scale, zero], pool),
    ]


@pytest.mark.parametrize("call", window_layers(), ids=ir.op_name)
def test_tiles_of_every_kind_of_window_are_rows_of_the_whole(call: ir.Call) -> None:
    (param,) = (arg for arg in call.args if isinstance(arg, ir.Var))
    behind = ir.call("transpose", [call], axes=(0, 3, 1, 2))  # the last group of a model is not tiled
    module = ir.IRModule({"main": ir.Function((param,), behind)}, output_names=("y",))
    ((layer,),) = find_chains(pipeline.run(module))
    kind = ir.tensor_type(param)
    data = (np.arange(kind.size) * 37 % 101 - 50).reshape(kind.shape).astype(kind.dtype)
    (whole,) = (array.transpose(0, 2, 3, 1) for array in run_main(module, {"x": data}))
    for (tile,) in schedule([layer], 2):
        function = tiled_function(layer, tile.needs_end - tile.needs_first, layer.padding(tile))
        rows = {function.params[0].name: data[:, tile.needs_first : tile.needs_end]}
        (part,) = run_main(ir.IRModule({"main": function}, output_names=("y",)), rows)
        np.testing.assert_array_equal(part, whole[:, tile.first : tile.end])

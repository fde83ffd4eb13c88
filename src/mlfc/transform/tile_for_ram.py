"""Choosing the layers that are tiled by rows so that the workspace fits a limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from mlfc import memory
from mlfc.errors import BudgetError
from mlfc.memory import Planned
from mlfc.relay import ir
from mlfc.relay.visitor import post_order
from mlfc.support import dtypes
from mlfc.support.module_info import RowTilingInfo
from mlfc.tir.program import Program
from mlfc.transform.row_tiling import RowTile, TiledChain, TiledLayer, find_chains, schedule

# how many chains are lowered and planned before the smallest workspace found so far is taken
_MOST_TRIALS = 8


def tile_for_ram(
    module: ir.IRModule, lower: Callable[[TiledChain], Program], whole: Planned, limit: int, planner: memory.Planner
) -> Planned:
    """Return a program with layers tiled by rows so that the workspace is at most `limit` bytes, and its plan.

    `lower` lowers the fused module with a tiled chain; `whole` is untiled, with a workspace larger than the limit. The
    result has the fewest calls of those that fit; where none does, the smallest workspace.
    """
    best = whole
    for tiled in _candidates(module, whole, limit):
        try:
            trial = planner(lower(tiled), limit)
        except BudgetError:  # of a pool
            continue
        if trial[1].workspace_bytes < best[1].workspace_bytes:
            best = replace(trial[0], tiling=_facts(tiled, whole)), trial[1]
        if best[1].workspace_bytes <= limit:
            break
    return best


def _facts(tiled: TiledChain, whole: Planned) -> RowTilingInfo:
    return RowTilingInfo(
        nodes=tuple(tuple(layer.call.span.nodes) for layer in tiled.layers),
        rows=tiled.rows,
        count=-(-tiled.layers[-1].out_rows // tiled.rows),
        calls_without=len(whole[0].calls),
        workspace_bytes_without=whole[1].workspace_bytes,
    )


def _candidates(module: ir.IRModule, whole: Planned, limit: int) -> list[TiledChain]:
    """Return the chains that may fit, the one with the fewest calls first; if none may, the smallest ones first."""
    program, plan = whole
    live = _live_by_call(module, plan)
    placed = {value.name for value in program.inputs if value.kind != "input"}
    lent = {param for param in module.main.params if param.name not in placed}
    found: list[tuple[int, int, int, TiledChain]] = []
    functions: dict[tuple[TiledLayer | None, int, int, int], ir.Function] = {}
    for chain in find_chains(module):
        source = chain[0].call.args[0]
        held = 0 if source in lent else chain[0].input.nbytes
        for depth in range(1, len(chain) + 1):
            layers = chain[:depth]
            inside = {layer.call for layer in layers}
            outside = max((nbytes for call, nbytes in live.items() if call not in inside), default=0)
            beside = min(max(0, live[item.call] - item.input.nbytes - item.output.nbytes) for item in layers)
            ends = max(held, layers[-1].output.nbytes)
            height = layers[-1].out_rows
            # the heights of tiles, each number of tiles once
            for rows in sorted({-(-height // count) for count in range(2, height + 1)}, reverse=True):
                over = max(0, max(outside, beside + ends + _least_bytes(layers, rows)) - limit)
                calls = depth * -(-height // rows)
                found.append((over, calls, len(found), TiledChain(layers, rows, functions)))
    return [tiled for *_, tiled in sorted(found, key=lambda item: item[:3])[:_MOST_TRIALS]]


def _live_by_call(module: ir.IRModule, plan: memory.Plan) -> Mapping[ir.Expr, int]:
    """Return the live bytes during each call of a fused group, in whose order the program's calls are."""
    calls = (expr for expr in post_order(module.main.body) if isinstance(expr, ir.Call))
    return dict(zip((call for call in calls if isinstance(call.op, ir.Function)), plan.live, strict=False))


def _least_bytes(layers: Sequence[TiledLayer], rows: int) -> int:
    """Return the most bytes that a chain holds between its input and its output.

    Every output is taken to lie in the place of its input, so a plan may need more.
    """
    carried = [0] * len(layers)
    most = 0
    tiles = schedule(layers, rows)
    for number, layer_tiles in enumerate(tiles):
        for index, tile in enumerate(layer_tiles):
            if tile is None:
                continue
            data = _input_bytes(layers[index], tile) if index else 0
            following = layer_tiles[index + 1] if index + 1 < len(layers) else None
            output = _input_bytes(layers[index + 1], following) if following else 0
            carried[index] = 0
            most = max(most, sum(carried) + max(data, output))
            later = next((item[index] for item in tiles[number + 1 :] if item[index] is not None), None)
            if index and later is not None:
                carried[index] = later.carried * _row_bytes(layers[index].input)
    return most


def _input_bytes(layer: TiledLayer, tile: RowTile) -> int:
    return (tile.needs_end - tile.needs_first) * _row_bytes(layer.input)


def _row_bytes(kind: ir.TensorType) -> int:
    return prod(kind.shape[2:]) * dtypes.nbytes(kind.dtype)

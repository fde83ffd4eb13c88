"""Row tiling of layer chains: reduces peak memory without computing any row twice.

Tile by tile, all layers of a chain compute the rows that the next rows of the last layer need; rows that the next tile
needs again are carried over. Rows of channels-last data are contiguous, so tiles use the target's ordinary kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from mlfc import memory
from mlfc.errors import BudgetError
from mlfc.memory import Planned
from mlfc.ops.conv import pad_pairs
from mlfc.relay import ir
from mlfc.relay.op import POINTWISE, Operator
from mlfc.relay.visitor import post_order
from mlfc.support import dtypes
from mlfc.support.module_info import RowTilingInfo
from mlfc.tir.program import Program, Value
from mlfc.transform.matching import operator_of, windows_of

_ROWS = (1, -3)  # the axis of rows


@dataclass(frozen=True, eq=False)
class TiledLayer:
    """A layer that can be tiled by rows: its window along the row axis."""

    call: ir.Call  # of a Primitive function with one argument
    in_rows: int  # of the whole input, (1, rows, columns, channels)
    out_rows: int  # of the whole output
    window: int = 1  # input rows per output row
    stride: int = 1  # input rows from one output row to the next; at most `window`
    top: int = 0  # rows of padding before the input

    @property
    def input(self) -> ir.TensorType:
        """The type of the whole input."""
        return ir.tensor_type(self.call.args[0])

    @property
    def output(self) -> ir.TensorType:
        """The type of the whole output."""
        return ir.tensor_type(self.call)

    def needs(self, first: int, end: int) -> tuple[int, int]:
        """Return the range of input rows, first and end, that a range of output rows needs."""
        start = first * self.stride - self.top
        return max(0, start), min(self.in_rows, (end - 1) * self.stride - self.top + self.window)

    def padding(self, tile: RowTile) -> tuple[int, int]:
        """Return the number of padding rows before and after the input rows of a tile."""
        reach = (tile.end - 1) * self.stride - self.top + self.window
        return max(0, self.top - tile.first * self.stride), max(0, reach - tile.needs_end)


@dataclass(frozen=True)
class RowTile:
    """The work of a layer in one tile: output rows, and the input rows that they need."""

    first: int
    end: int
    needs_first: int
    needs_end: int
    carried_end: int  # input rows before this one are carried over from the previous tile

    @property
    def needs(self) -> int:
        """The number of input rows that it reads."""
        return self.needs_end - self.needs_first

    @property
    def carried(self) -> int:
        """The number of input rows that are carried over from the previous tile."""
        return max(0, self.carried_end - self.needs_first)


def find_chains(module: ir.IRModule) -> tuple[tuple[TiledLayer, ...], ...]:
    """Return the longest chains of layers of a fused module that can be tiled by rows, in graph order."""
    users: dict[ir.Expr, list[ir.Expr]] = {}
    starts: list[ir.Expr] = []
    for expr in post_order(module.main.body):
        for arg in expr.args if isinstance(expr, ir.Call) else expr.fields if isinstance(expr, ir.Tuple) else ():
            users.setdefault(arg, []).append(expr)
        starts.append(expr)
    chains: list[tuple[TiledLayer, ...]] = []
    inside: set[ir.Expr] = set()
    for start in starts:
        if start not in inside:
            chain = _chain(start, users, module.main.body)
            inside.update(layer.call for layer in chain[:-1])
            chains += [chain] if chain else []
    return tuple(chains)


def _chain(source: ir.Expr, users: Mapping[ir.Expr, Sequence[ir.Expr]], last: ir.Expr) -> tuple[TiledLayer, ...]:
    """Return the layers from `source` on; each is the only reader of the previous one."""
    layers: list[TiledLayer] = []
    while len(users.get(source, ())) == 1 and source is not last:
        (call,) = users[source]
        layer = _layer(call) if isinstance(call, ir.Call) and call is not last else None
        if layer is None:
            break
        layers.append(layer)
        source = call
    return tuple(layers)


def _layer(call: ir.Call) -> TiledLayer | None:
    """Return a call of a fused group as a layer; None if it cannot be tiled by rows."""
    function = call.op
    if not isinstance(function, ir.Function) or len(call.args) != 1:
        return None
    source, result = ir.tensor_type(call.args[0]).shape, ir.tensor_type(call).shape
    if len(source) != 4 or len(result) != 4 or source[0] != 1 or result[0] != 1:
        return None
    inside = [expr for expr in post_order(function.body) if isinstance(expr, ir.Call)]
    anchors = [expr for expr in inside if operator_of(expr).windows is not None]
    if len(anchors) != 1 or not all(_is_by_row(expr) for expr in inside if expr is not anchors[0]):
        return None
    (anchor,) = anchors
    # operators after the anchor must not also read tensors before it, of which it reads more rows
    before = {expr for expr in post_order(anchor) if not isinstance(expr, ir.Constant)} - {anchor}
    if any(arg in before for expr in inside if expr not in before | {anchor} for arg in expr.args):
        return None
    attrs, windows = anchor.attrs, windows_of(anchor)
    if windows is None or attrs.get("layout", attrs.get("data_layout")) != "NHWC":
        return None
    window, stride, top, _ = windows[0]
    layer = TiledLayer(call, source[1], result[1], window, stride, top)
    # an output row computed from padding alone would need no input row
    edges = (layer.needs(0, 1), layer.needs(result[1] - 1, result[1]))
    return layer if stride <= window and all(first < end for first, end in edges) else None


def _is_by_row(call: ir.Call) -> bool:
    """Return whether an operator computes each row from the same row, with constants that do not vary by row."""
    if not isinstance(call.op, Operator) or call.op.kind not in POINTWISE or "shape" in call.attrs:
        return False
    constants = [ir.tensor_type(arg).shape for arg in call.args if isinstance(arg, ir.Constant)]
    if call.attrs.get("axis") in _ROWS and any(prod(shape) > 1 for shape in constants):
        return False
    return all(len(shape) < 3 or shape[-3] == 1 for shape in constants) and len(ir.tensor_type(call).shape) == 4


def schedule(layers: Sequence[TiledLayer], rows: int) -> tuple[tuple[RowTile | None, ...], ...]:
    """Return each layer's work, tile by tile of `rows` rows of the last layer; None if a layer is idle."""
    height = layers[-1].out_rows
    done = [0] * len(layers)  # output rows that each layer has computed
    known = [0] * len(layers)  # input rows that have reached each layer
    tiles = []
    for end in range(rows, height + rows, rows):
        layer_tiles: list[RowTile | None] = [None] * len(layers)
        wanted = min(end, height)
        for index in reversed(range(len(layers))):
            if wanted <= done[index]:
                break
            first, last = layers[index].needs(done[index], wanted)
            last = max(last, known[index])
            layer_tiles[index] = RowTile(done[index], wanted, first, last, known[index])
            done[index], known[index] = wanted, last
            wanted = last
        tiles.append(tuple(layer_tiles))
    return tuple(tiles)


def tiled_function(layer: TiledLayer, rows: int, padding: tuple[int, int]) -> ir.Function:
    """Return a layer's function for `rows` input rows, with `padding` rows before and after them."""
    function = layer.call.op
    assert isinstance(function, ir.Function)
    param = function.params[0]
    kind = ir.tensor_type(param)
    fresh = ir.Var(param.name, ir.TensorType((1, rows, *kind.shape[2:]), kind.dtype), param.span)
    done: dict[ir.Expr, ir.Expr] = {param: fresh}
    for expr in post_order(function.body):
        called = ir.operator(expr)
        if isinstance(expr, ir.Call) and called is not None:
            attrs = dict(expr.attrs)
            if called.windows is not None:
                left, right = pad_pairs(called.name, attrs["padding"], 2)[1]
                attrs["padding"] = (padding[0], left, padding[1], right)
            done[expr] = ir.call(called.name, [done.get(arg, arg) for arg in expr.args], attrs, span=expr.span)
    return ir.Function((fresh,), done[function.body], {"Primitive": 1}, function.span)


@dataclass(frozen=True, eq=False)
class TiledChain:
    """A chain of layers to be tiled by rows; see `row_tiling.find_chains`."""

    layers: tuple[TiledLayer, ...]
    rows: int  # rows of the last layer that a tile computes
    # functions of tiles created so far, shared by chains of the same layers
    functions: dict[tuple[TiledLayer | None, int, int, int], ir.Function] = field(default_factory=dict)

    def function(self, layer: TiledLayer, tile: RowTile) -> ir.Function:
        """Return a layer's function on the rows of a tile; tiles of equal sizes share it."""
        key = (layer, tile.needs, *layer.padding(tile))
        if key not in self.functions:
            self.functions[key] = tiled_function(layer, tile.needs, layer.padding(tile))
        return self.functions[key]

    def copying(self, size: int, dtype: str) -> ir.Function:
        """Return the function that copies `size` elements."""
        key = (None, size, dtypes.nbytes(dtype), 0)
        if key not in self.functions:
            param = ir.Var("rows", ir.TensorType((size,), dtype))
            self.functions[key] = ir.Function((param,), ir.call("copy", [param]), {"Primitive": 1})
        return self.functions[key]


@dataclass(eq=False)
class TiledLowering:
    """Lowering of one chain to calls."""

    tiled: TiledChain
    # (function, input, output, nodes): appends a call of a fused group's kernel
    emit: Callable[[ir.Function, Value, Value, tuple[str, ...]], None]
    _carried: dict[int, Value] = field(default_factory=dict)

    def run(self, source: Value, result: Value) -> None:
        """Compute `result`, the last layer's output, from `source`, the first layer's input."""
        layers = self.tiled.layers
        tiles = schedule(layers, self.tiled.rows)
        for number, layer_tiles in enumerate(tiles):
            later = tiles[number + 1 :]
            current: Value | None = None
            for index, (layer, tile) in enumerate(zip(layers, layer_tiles, strict=True)):
                if tile is None:
                    continue
                data = rows_of(source, tile.needs_first, tile.needs_end) if index == 0 else current
                if data is None:
                    data = self._carried[index]
                output, current = self._output(layers, layer_tiles, index, result)
                self.emit(self.tiled.function(layer, tile), data, output, layer.call.span.nodes)
                if index:
                    following = next((item[index] for item in later if item[index] is not None), None)
                    if following is not None and following.carried:
                        kept = rows_of(data, following.needs_first - tile.needs_first, data.shape[1])
                        self._carried[index] = Value(f"{data.name}, kept", kept.shape, kept.dtype, "intermediate")
                        self._copy(kept, self._carried[index])

    def _output(
        self, layers: Sequence[TiledLayer], layer_tiles: Sequence[RowTile | None], index: int, result: Value
    ) -> tuple[Value, Value]:
        """Return the rows that a layer writes, and the next layer's input, whose last rows they are."""
        tile = layer_tiles[index]
        assert tile is not None
        if index + 1 == len(layers):
            return rows_of(result, tile.first, tile.end), result
        following = layer_tiles[index + 1]
        assert following is not None
        kind = layers[index].output
        title = layers[index].call.span.tensor or "rows"
        name = f"{title}, rows {following.needs_first} to {following.needs_end}"
        rows = following.needs
        buffer = Value(name, (1, rows, *kind.shape[2:]), kind.dtype, "intermediate")
        carried = following.carried
        if carried:
            self._copy(self._carried.pop(index + 1), rows_of(buffer, 0, carried))
        return rows_of(buffer, carried, rows), buffer

    def _copy(self, source: Value, target: Value) -> None:
        self.emit(self.tiled.copying(prod(source.shape), source.dtype), source, target, ())


def rows_of(value: Value, first: int, end: int) -> Value:
    """Return a range of rows of one channels-last image, as a part of `value` or the whole."""
    if (first, end) == (0, value.shape[1]):
        return value
    row = prod(value.shape[2:]) * dtypes.nbytes(value.dtype)
    shape = (1, end - first, *value.shape[2:])
    return Value(value.name, shape, value.dtype, value.kind, None, value, first * row)


# most chains that are lowered and planned; then the smallest workspace found is used
_MOST_TRIALS = 8


def tile_for_ram(
    module: ir.IRModule, lower: Callable[[TiledChain], Program], whole: Planned, limit: int, planner: memory.Planner
) -> Planned:
    """Return a program with layers tiled by rows so that its workspace is at most `limit` bytes, and its plan.

    `lower` lowers the fused module with a tiled chain; `whole` is the untiled program, whose workspace exceeds the
    limit. Of the programs that fit, the one with the fewest calls is returned; if none fits, the one with the smallest
    workspace.
    """
    best = whole
    for tiled in _candidates(module, whole, limit):
        try:
            trial = planner(lower(tiled), limit)
        except BudgetError:  # of a pool
            continue
        if trial[1].workspace_bytes < best[1].workspace_bytes:
            facts = RowTilingInfo(
                nodes=tuple(tuple(layer.call.span.nodes) for layer in tiled.layers),
                rows=tiled.rows,
                count=-(-tiled.layers[-1].out_rows // tiled.rows),
                calls_without=len(whole[0].calls),
                workspace_bytes_without=whole[1].workspace_bytes,
            )
            best = replace(trial[0], tiling=facts), trial[1]
        if best[1].workspace_bytes <= limit:
            break
    return best


def _candidates(module: ir.IRModule, whole: Planned, limit: int) -> list[TiledChain]:
    """Return the chains that may fit, fewest calls first; if none may, the smallest first."""
    program, plan = whole
    groups = [expr for expr in post_order(module.main.body) if isinstance(expr, ir.Call)]
    # the program's calls are in the order of the groups
    live = dict(zip((call for call in groups if isinstance(call.op, ir.Function)), plan.live, strict=False))
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
            # the tile heights, one for each number of tiles
            for rows in sorted({-(-height // count) for count in range(2, height + 1)}, reverse=True):
                over = max(0, max(outside, beside + ends + _least_bytes(layers, rows)) - limit)
                calls = depth * -(-height // rows)
                found.append((over, calls, len(found), TiledChain(layers, rows, functions)))
    return [tiled for *_, tiled in sorted(found, key=lambda item: item[:3])[:_MOST_TRIALS]]


def _least_bytes(layers: Sequence[TiledLayer], rows: int) -> int:
    """Return the peak bytes between a chain's input and output, if outputs overwrite their inputs."""
    carried = [0] * len(layers)
    most = 0
    tiles = schedule(layers, rows)
    for number, layer_tiles in enumerate(tiles):
        for index, tile in enumerate(layer_tiles):
            if tile is None:
                continue
            data = tile.needs * _row_bytes(layers[index].input) if index else 0
            following = layer_tiles[index + 1] if index + 1 < len(layers) else None
            output = following.needs * _row_bytes(layers[index].output) if following else 0
            carried[index] = 0
            most = max(most, sum(carried) + max(data, output))
            later = next((item[index] for item in tiles[number + 1 :] if item[index] is not None), None)
            if index and later is not None:
                carried[index] = later.carried * _row_bytes(layers[index].input)
    return most


def _row_bytes(kind: ir.TensorType) -> int:
    return prod(kind.shape[2:]) * dtypes.nbytes(kind.dtype)

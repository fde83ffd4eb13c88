"""Layers of a network tiled by rows: less is in memory at a time, and no row is computed twice.

A chain is a sequence of fused groups in which each row of a layer's output needs a few neighbouring rows of its input:
convolutions, pools, and what was fused with them. Tile by tile, all of its layers
compute the rows that the next rows of the last layer need. Rows that the next tile needs again are carried over.
Rows of channels-last data of one image lie one behind the other, so a tile is a smaller tensor of the same kind, and
every target's kernels serve it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mlfc.ops import conv_types
from mlfc.relay import ir
from mlfc.relay.op import Kind, Operator
from mlfc.relay.visitor import post_order

_CONVOLUTIONS = ("nn.conv2d", "qnn.conv2d")
_POOLS = ("nn.max_pool2d",)
_POINTWISE = (Kind.ELEMENTWISE, Kind.BROADCAST)
# the attributes that say along which axis constants lie, and the one of rows
_AXES, _ROWS = ("axis", "lhs_axis", "rhs_axis"), (1, -3)


@dataclass(frozen=True, eq=False)
class TiledLayer:
    """A layer that can be tiled by rows: what its rows need of the rows before."""

    call: ir.Call  # of a Primitive function with one argument
    in_rows: int  # of the whole input, (1, rows, columns, channels)
    out_rows: int  # of the whole output
    window: int = 1  # input rows that an output row needs
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
        """Return the input rows, first and end, that output rows need."""
        start = first * self.stride - self.top
        return max(0, start), min(self.in_rows, (end - 1) * self.stride - self.top + self.window)

    def padding(self, tile: RowTile) -> tuple[int, int]:
        """Return the rows of padding before and behind the input rows of a piece."""
        reach = (tile.end - 1) * self.stride - self.top + self.window
        return max(0, self.top - tile.first * self.stride), max(0, reach - tile.needs_end)


@dataclass(frozen=True)
class RowTile:
    """What a layer does in one tile: output rows, and the input rows that they need."""

    first: int
    end: int
    needs_first: int
    needs_end: int
    carried_end: int  # the input rows before this one are carried over from the tile before

    @property
    def carried(self) -> int:
        """How many input rows are carried over."""
        return max(0, self.carried_end - self.needs_first)


def find_chains(module: ir.IRModule) -> tuple[tuple[TiledLayer, ...], ...]:
    """Return the longest chains of layers of a fused module that can be tiled by rows, in their order."""
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
    """Return the layers from `source` on, each the only one that reads what the one before computes."""
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
    """Return a call of a fused group as a layer; None where its rows cannot be tiled by rows."""
    function = call.op
    if not isinstance(function, ir.Function) or len(call.args) != 1:
        return None
    source, result = ir.tensor_type(call.args[0]).shape, ir.tensor_type(call).shape
    if len(source) != 4 or len(result) != 4 or source[0] != 1 or result[0] != 1:
        return None
    inside = [expr for expr in post_order(function.body) if isinstance(expr, ir.Call)]
    anchors = [expr for expr in inside if ir.op_name(expr) in (*_CONVOLUTIONS, *_POOLS)]
    if len(anchors) != 1 or not all(_is_by_row(expr) for expr in inside if expr is not anchors[0]):
        return None
    if _reads_around(inside, anchors[0]):
        return None
    return _windowed(call, anchors[0], source[1], result[1])


def _reads_around(inside: Sequence[ir.Call], anchor: ir.Call) -> bool:
    """Tell whether what follows the anchor reads, beside its result, what the anchor reads more rows of."""
    before = {expr for expr in post_order(anchor) if not isinstance(expr, ir.Constant)} - {anchor}
    return any(arg in before for expr in inside if expr not in before | {anchor} for arg in expr.args)


def _windowed(call: ir.Call, anchor: ir.Call, in_rows: int, out_rows: int) -> TiledLayer | None:
    attrs = anchor.attrs
    top = conv_types.pad_pairs("stripes", attrs["padding"], 2)[0][0]
    if ir.op_name(anchor) in _POOLS:
        if attrs["layout"] != "NHWC" or attrs.get("ceil_mode"):
            return None
        window = (attrs["pool_size"][0] - 1) * attrs["dilation"][0] + 1
        stride = attrs["strides"][0]
    else:
        if attrs["data_layout"] != "NHWC":
            return None
        data, weight = (ir.tensor_type(arg) for arg in anchor.args[:2])
        conv = conv_types.conv_geometry("stripes", data, weight, attrs)
        window, stride = conv.extents[0], conv.strides[0]
    layer = TiledLayer(call, in_rows, out_rows, window, stride, top)
    # rows that are made of padding alone need no row of the input
    edges = (layer.needs(0, 1), layer.needs(out_rows - 1, out_rows))
    return layer if stride <= window and all(first < end for first, end in edges) else None


def _is_by_row(call: ir.Call) -> bool:
    """Tell whether an operator computes each row from the same row, with constants that are the same for all rows."""
    if not isinstance(call.op, Operator) or call.op.kind not in _POINTWISE or "shape" in call.attrs:
        return False
    constants = [ir.tensor_type(arg).shape for arg in call.args if isinstance(arg, ir.Constant)]
    if any(call.attrs.get(name) in _ROWS for name in _AXES) and any(prod(shape) > 1 for shape in constants):
        return False
    return all(len(shape) < 3 or shape[-3] == 1 for shape in constants) and len(ir.tensor_type(call).shape) == 4


def schedule(layers: Sequence[TiledLayer], rows: int) -> tuple[tuple[RowTile | None, ...], ...]:
    """Return what each layer of a chain does, tile by tile of `rows` rows of the last; None where it is idle."""
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
    """Return a layer's function on so many rows of its input, with so much padding before and behind them."""
    function = layer.call.op
    assert isinstance(function, ir.Function)
    param = function.params[0]
    kind = ir.tensor_type(param)
    fresh = ir.Var(param.name, ir.TensorType((1, rows, *kind.shape[2:]), kind.dtype), param.span)
    done: dict[ir.Expr, ir.Expr] = {param: fresh}
    for expr in post_order(function.body):
        name = ir.op_name(expr)
        if isinstance(expr, ir.Call) and name is not None:
            attrs = dict(expr.attrs)
            if name in (*_CONVOLUTIONS, *_POOLS):
                left, right = conv_types.pad_pairs(name, attrs["padding"], 2)[1]
                attrs["padding"] = (padding[0], left, padding[1], right)
            done[expr] = ir.call(name, [done.get(arg, arg) for arg in expr.args], attrs, span=expr.span)
    return ir.Function((fresh,), done[function.body], {"Primitive": 1}, function.span)

"""From a chain of layers to calls of kernels, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from mlfc.relay import ir as relay
from mlfc.support import dtypes
from mlfc.tir.ir import Value
from mlfc.transform.row_tiling import RowTile, TiledLayer, schedule, tiled_function


@dataclass(frozen=True, eq=False)
class TiledChain:
    """Layers to be tiled by rows: a chain; see `row_tiling.find_chains`."""

    layers: tuple[TiledLayer, ...]
    rows: int  # rows of the last layer that a tile computes
    # functions on row tiles that exist already, which chains of the same layers share
    functions: dict[tuple[TiledLayer | None, int, int, int], relay.Function] = field(default_factory=dict)

    def function(self, layer: TiledLayer, tile: RowTile) -> relay.Function:
        """Return a layer's function on the rows of a tile: the same one for the same sizes."""
        rows = tile.needs_end - tile.needs_first
        key = (layer, rows, *layer.padding(tile))
        if key not in self.functions:
            self.functions[key] = tiled_function(layer, rows, layer.padding(tile))
        return self.functions[key]

    def copying(self, size: int, dtype: str) -> relay.Function:
        """Return the function that copies so many elements."""
        key = (None, size, dtypes.nbytes(dtype), 0)
        if key not in self.functions:
            param = relay.Var("rows", relay.TensorType((size,), dtype))
            self.functions[key] = relay.Function((param,), relay.call("copy", [param]), {"Primitive": 1})
        return self.functions[key]


@dataclass(eq=False)
class TiledLowering:
    """Writes the calls of one chain."""

    tiled: TiledChain
    # (function, input, output, nodes): adds a call of the kernel of a fused group
    emit: Callable[[relay.Function, Value, Value, tuple[str, ...]], None]
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
                    self._carry(index, data, tile, _next(later, index))

    def _output(
        self, layers: Sequence[TiledLayer], layer_tiles: Sequence[RowTile | None], index: int, result: Value
    ) -> tuple[Value, Value]:
        """Return where a layer writes its rows, and the input of the next layer, of which they are the last rows."""
        tile = layer_tiles[index]
        assert tile is not None
        if index + 1 == len(layers):
            return rows_of(result, tile.first, tile.end), result
        following = layer_tiles[index + 1]
        assert following is not None
        kind = layers[index].output
        title = layers[index].call.span.tensor or "rows"
        name = f"{title}, rows {following.needs_first} to {following.needs_end}"
        rows = following.needs_end - following.needs_first
        buffer = Value(name, (1, rows, *kind.shape[2:]), kind.dtype, "intermediate")
        carried = following.carried
        if carried:
            self._copy(self._carried.pop(index + 1), rows_of(buffer, 0, carried))
        return rows_of(buffer, carried, rows), buffer

    def _carry(self, index: int, data: Value, tile: RowTile, following: RowTile | None) -> None:
        """Keep the input rows of a layer that its next piece needs again."""
        if following is None or not following.carried:
            return
        kept = rows_of(data, following.needs_first - tile.needs_first, data.shape[1])
        self._carried[index] = Value(f"{data.name}, kept", kept.shape, kept.dtype, "intermediate")
        self._copy(kept, self._carried[index])

    def _copy(self, source: Value, target: Value) -> None:
        self.emit(self.tiled.copying(prod(source.shape), source.dtype), source, target, ())


def _next(tiles: Sequence[Sequence[RowTile | None]], index: int) -> RowTile | None:
    return next((layer_tiles[index] for layer_tiles in tiles if layer_tiles[index] is not None), None)


def rows_of(value: Value, first: int, end: int) -> Value:
    """Return rows of channels-last data of one image as a value: a part of the whole, or the whole itself."""
    if (first, end) == (0, value.shape[1]):
        return value
    row = prod(value.shape[2:]) * dtypes.nbytes(value.dtype)
    shape = (1, end - first, *value.shape[2:])
    return Value(value.name, shape, value.dtype, value.kind, None, value, first * row)

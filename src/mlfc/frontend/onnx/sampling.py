"""Images sampled at places that a grid gives: GridSample and AffineGrid."""

from __future__ import annotations

from math import prod

import numpy as np

from mlfc.frontend.onnx.linear import matmul
from mlfc.frontend.onnx.node import Node, shape_of
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr
from mlfc.support import cost

_METHODS = {"linear": "bilinear", "cubic": "bicubic"}
_LAYOUTS = {3: "NCW", 4: "NCHW", 5: "NCDHW"}


@importer("GridSample")
def _grid_sample(node: Node) -> Expr:
    rank, mode = node.rank(0), node.string("mode", "linear")
    if rank not in _LAYOUTS:
        node.unsupported(f"of a tensor of {rank} dimensions is not supported")
    if node.rank(1) != rank:
        node.wrong(f"a grid of shape {node.shape(1)} does not fit a tensor of shape {node.shape(0)}")
    grid = node.transpose(node.input(1), (0, rank - 1, *range(1, rank - 1)))
    return node.call(
        "image.grid_sample", node.input(0), grid, method=_METHODS.get(mode, mode), layout=_LAYOUTS[rank],
        padding_mode=node.string("padding_mode", "zeros"), align_corners=bool(node.integer("align_corners", 0)),
    )  # fmt: skip


@importer("AffineGrid")
def _affine_grid(node: Node) -> Expr:
    """Multiply the coordinates of all places, which are known, by the matrices, which may come at run time."""
    theta, size = node.shape(0), node.int_values(1, "size")
    if len(size) not in (4, 5) or min(size) < 1 or theta != (size[0], len(size) - 2, len(size) - 1):
        node.wrong(f"matrices of shape {theta} do not fit the size {size}")
    places, dtype = size[2:], node.dtype(0)
    cost.require("constants", 8 * (len(places) + 1) * prod(places), node.name)
    steps = [_steps(extent, corners=bool(node.integer("align_corners", 0))) for extent in places]
    grid = np.meshgrid(*steps, indexing="ij")
    # the first coordinate counts along the last axis
    columns = np.stack([*(part.reshape(-1) for part in reversed(grid)), np.ones(grid[0].size)])
    wide = dtype if dtype == "float64" else "float32"
    moved = matmul(node, node.cast(node.input(0), wide), node.constant(columns, wide))
    turned = node.transpose(moved, (0, 2, 1))
    return node.cast(node.reshape(turned, (size[0], *places, shape_of(turned)[-1])), dtype)


def _steps(extent: int, *, corners: bool) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    if corners:
        return np.linspace(-1.0, 1.0, extent) if extent > 1 else np.zeros(1)
    return (2.0 * np.arange(extent) + 1.0) / extent - 1.0

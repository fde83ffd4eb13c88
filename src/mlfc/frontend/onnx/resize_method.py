"""How Resize makes elements between the given ones, and when ``image.resize2d`` makes the same."""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.frontend.onnx.node import Node
from mlfc.relay.ir import Expr
from mlfc.support.dims import Extent

# What image.resize2d computes just as ONNX does, where the scale is exactly the ratio of the sizes.
_SHARED_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


@dataclass(frozen=True)
class Method:
    """How elements between the given ones are made."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False

    def is_image(self, rank: int) -> bool:
        """Tell whether ``image.resize2d`` may compute a Resize of the last axes of a tensor of `rank` dimensions."""
        is_plain = not (self.exclude_outside or self.antialias)
        return rank == 4 and is_plain and self.coordinates in _SHARED_COORDINATES

    def as_image(self, node: Node, x: Expr, size: tuple[Extent, ...]) -> Expr:
        """Resize the last two axes by ``image.resize2d``."""
        return node.call(
            "image.resize2d", x, size=size, roi=(0.0, 0.0, 0.0, 0.0), layout="NCHW",
            method={"nearest": "nearest_neighbor"}.get(self.mode, self.mode), cubic_alpha=self.cubic_a,
            cubic_exclude=0, coordinate_transformation_mode=self.coordinates,
            rounding_method=self.nearest if self.mode == "nearest" else "",
        )  # fmt: skip

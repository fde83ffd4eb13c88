"""How a tensor of any rank is seen as images of height x width x channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from mlfc.tir.ir import Expr

# (image, y, x, channel) -> indices into the tensor
Frame: TypeAlias = Callable[[Any, Any, Any, Any], Sequence[Expr]]


def planar(image: Any, y: Any, x: Any, channel: Any) -> Sequence[Expr]:
    """Index (batch, height, width, channels)."""
    return (image, y, x, channel)


def linear(image: Any, y: Any, x: Any, channel: Any) -> Sequence[Expr]:  # noqa: ARG001  (height is 1)
    """Index (batch, width, channels)."""
    return (image, x, channel)


def of_rank(spatial: int) -> Frame:
    """Return the frame of a convolution over one or two dimensions."""
    return planar if spatial == 2 else linear

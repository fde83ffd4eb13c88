"""Windows of convolutions and pools: TFLite's SAME and VALID as numbers of padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tflite import Padding

from mlfc.errors import ModelError
from mlfc.frontend.tflite.node import Node


@dataclass(frozen=True)
class WindowOptions:
    """Extents over height and width; padding is top, left, bottom, right."""

    size: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]
    output_padding: tuple[int, int] = (0, 0)

    def attrs(self) -> dict[str, Any]:
        """Return the attributes of a convolution."""
        return {
            "kernel_size": self.size, "strides": self.strides, "dilation": self.dilation, "padding": self.padding
        }  # fmt: skip

    @staticmethod
    def of_conv(node: Node, options: Any, size: Sequence[int]) -> WindowOptions:
        """Return the window of a convolution of input 0 with options that have strides and dilation."""
        strides = (options.StrideH(), options.StrideW())
        dilation = (options.DilationHFactor(), options.DilationWFactor())
        return _window(node, options, (int(size[0]), int(size[1])), strides, dilation)

    @staticmethod
    def of_pool(node: Node, options: Any) -> WindowOptions:
        """Return the window of a pool of input 0."""
        size = (options.FilterHeight(), options.FilterWidth())
        return _window(node, options, size, (options.StrideH(), options.StrideW()), (1, 1))

    @staticmethod
    def of_transpose(
        node: Node, options: Any, size: tuple[int, int], source: Sequence[int], result: tuple[int, int]
    ) -> WindowOptions:
        """Return the window of a transposed convolution from `source` to `result` (heights and widths)."""
        strides = (options.StrideH(), options.StrideW())
        _check(size, strides, (1, 1))
        before, after, extra = [0, 0], [0, 0], [0, 0]
        for axis in (0, 1):
            full = (source[axis] - 1) * strides[axis] + size[axis]
            if _kind(options) == Padding.SAME:
                before[axis] = max(full - result[axis], 0) // 2
            cut = full - before[axis] - result[axis]
            after[axis], extra[axis] = max(cut, 0), max(-cut, 0)
            if extra[axis] >= strides[axis]:
                node.refuse(
                    f"an output of {result[axis]} from {source[axis]} leaves cells that no input reaches",
                    "Export the output shape that the strides give",
                )
        return WindowOptions(size, strides, (1, 1), (before[0], before[1], after[0], after[1]), (extra[0], extra[1]))


def _kind(options: Any) -> int:
    kind = int(options.Padding())
    if kind not in (Padding.SAME, Padding.VALID):
        raise ModelError(f"unknown padding {kind}")
    return kind


def _check(size: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> None:
    if min(*size, *strides, *dilation) < 1:
        raise ModelError(f"a window of size {tuple(size)}, strides {tuple(strides)}, dilation {tuple(dilation)}")


def _window(
    node: Node, options: Any, size: tuple[int, int], strides: tuple[int, int], dilation: tuple[int, int]
) -> WindowOptions:
    _check(size, strides, dilation)
    shape = node.shape(0)
    if len(shape) != 4:
        raise ModelError(f"the data has {len(shape)} dimensions where 4 belong")
    before, after = [0, 0], [0, 0]
    if _kind(options) == Padding.SAME:
        for axis in (0, 1):
            extent = shape[axis + 1]
            reach = (size[axis] - 1) * dilation[axis] + 1
            count = -(-extent // strides[axis])
            total = max((count - 1) * strides[axis] + reach - extent, 0)
            before[axis], after[axis] = total // 2, total - total // 2
    return WindowOptions(size, strides, dilation, (before[0], before[1], after[0], after[1]))

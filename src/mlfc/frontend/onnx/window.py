"""The geometry of sliding windows: kernel, strides, dilations and padding in ONNX's several spellings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlfc.frontend.onnx.node import Node

_SIZE_LIMIT = 1 << 30


@dataclass(frozen=True)
class WindowAttributes:
    """A window over spatial dimensions, everything explicit: one number a dimension."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]  # padding before
    end: tuple[int, ...]  # padding after
    overhang: tuple[int, ...]  # what windows reach beyond the padding at the end (`ceil_mode`)
    out: tuple[int, ...]  # extents of the result

    @property
    def padding(self) -> tuple[int, ...]:
        """All begins, then all ends, as Relay has it; the overhang belongs to the end."""
        return (*self.begin, *(pad + more for pad, more in zip(self.end, self.overhang, strict=True)))

    def as_image(self) -> WindowAttributes:
        """Return the window over two dimensions: one is preceded by a dimension of extent 1."""
        if len(self.kernel) != 1:
            return self
        return WindowAttributes(
            (1, *self.kernel), (1, *self.strides), (1, *self.dilations),
            (0, *self.begin), (0, *self.end), (0, *self.overhang), (1, *self.out),
        )  # fmt: skip


def window(node: Node, sizes: Sequence[int], kernel: Sequence[int] | None = None) -> WindowAttributes:
    """Return the window that the node's attributes describe on an input of spatial extents `sizes`.

    `kernel` are the spatial extents of the weights; a pool states them in `kernel_shape` alone.
    """
    rank = len(sizes)
    taps = node.integers("kernel_shape", kernel)
    strides = node.integers("strides", (1,) * rank)
    dilations = node.integers("dilations", (1,) * rank)
    if kernel is not None and taps != tuple(kernel):
        node.wrong(f"kernel_shape {taps} differs from the weights' {tuple(kernel)}")
    for what, values in (("kernel_shape", taps), ("strides", strides), ("dilations", dilations)):
        if len(values) != rank or any(not 1 <= value < _SIZE_LIMIT for value in values):
            node.wrong(f"{what} {values} must be {rank} positive integers")
    reach = [(count - 1) * dilation + 1 for count, dilation in zip(taps, dilations, strict=True)]
    begin, end = _pads(node, sizes, reach, strides)
    ceil = node.integer("ceil_mode", 0) != 0
    out, overhang = [], []
    for size, length, stride, before, after in zip(sizes, reach, strides, begin, end, strict=True):
        room = size + before + after - length
        count = room // stride + 1
        # a last window that would start behind the input and its left padding is dropped
        if ceil and room % stride and count * stride < size + before:
            count += 1
        out.append(count)
        overhang.append(max(0, (count - 1) * stride - room))
    return WindowAttributes(taps, strides, dilations, tuple(begin), tuple(end), tuple(overhang), tuple(out))


def _pads(
    node: Node, sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the padding before and after each dimension."""
    rank = len(sizes)
    auto_pad = node.string("auto_pad", "NOTSET")
    pads = node.integers("pads", (0,) * 2 * rank)
    if len(pads) != 2 * rank or any(not 0 <= pad < _SIZE_LIMIT for pad in pads):
        node.wrong(f"pads {pads} must be {2 * rank} integers that are not negative")
    if auto_pad in ("NOTSET", ""):
        return pads[:rank], pads[rank:]
    if auto_pad == "VALID":
        return (0,) * rank, (0,) * rank
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        node.wrong(f"auto_pad '{auto_pad}' is not known")
    total = [
        max(0, (-(-size // stride) - 1) * stride + length - size)
        for size, length, stride in zip(sizes, reach, strides, strict=True)
    ]
    small = [pad // 2 for pad in total]
    large = [pad - half for pad, half in zip(total, small, strict=True)]
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)

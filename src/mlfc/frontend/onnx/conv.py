"""Convolutions and pools; one spatial dimension is handled as two, the first of size 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from mlfc.frontend.onnx.node import Node, shape_of, wide
from mlfc.frontend.onnx.run_tables import placed
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr
from mlfc.support.dims import bounds, is_static, maximum, minimum

_SIZE_LIMIT = 1 << 30


@dataclass(frozen=True)
class WindowAttributes:
    """A window over spatial dimensions with all attributes explicit, one number per dimension."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]  # padding before
    end: tuple[int, ...]  # padding after
    overhang: tuple[int, ...]  # extent of the windows beyond the padding at the end (`ceil_mode`)
    out: tuple[int, ...]  # spatial sizes of the result

    @property
    def padding(self) -> tuple[int, ...]:
        """All begins, then all ends, as in Relay; the overhang is added to the end."""
        return (*self.begin, *(pad + more for pad, more in zip(self.end, self.overhang, strict=True)))

    def as_image(self) -> WindowAttributes:
        """Return the window over two dimensions; a single dimension is preceded by one of size 1."""
        if len(self.kernel) != 1:
            return self
        return WindowAttributes(
            (1, *self.kernel), (1, *self.strides), (1, *self.dilations),
            (0, *self.begin), (0, *self.end), (0, *self.overhang), (1, *self.out),
        )  # fmt: skip


def window(node: Node, sizes: Sequence[int], kernel: Sequence[int] | None = None) -> WindowAttributes:
    """Return the window that the node's attributes define on an input of spatial sizes `sizes`.

    `kernel` is the spatial shape of the weights; a pool only has the `kernel_shape` attribute.
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
    same = node.string("auto_pad", "NOTSET").startswith("SAME")
    ceil = node.integer("ceil_mode", 0) == 1 and not same  # ONNX Runtime rounds down for other values
    out, overhang = [], []
    for size, length, stride, before, after in zip(sizes, reach, strides, begin, end, strict=True):
        room = size + before + after - length
        count = -(-size // stride) if same else room // stride + 1
        # a last window that would start beyond the input and its left padding is dropped
        if ceil and not is_static((room,)):
            count = minimum(-(-room // stride) + 1, -(-(size + before) // stride))
        elif ceil and room % stride and count * stride < size + before:
            count += 1
        out.append(count)
        overhang.append(maximum(0, (count - 1) * stride - room) if ceil else 0)
    return WindowAttributes(taps, strides, dilations, tuple(begin), tuple(end), tuple(overhang), tuple(out))


def _halves(total: Sequence[int], auto_pad: str) -> tuple[list[int], list[int]]:
    """Split the total padding into begin and end; the larger half is at the end for SAME_UPPER."""
    small = [pad // 2 for pad in total]
    large = [pad - half for pad, half in zip(total, small, strict=True)]
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)


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
    triples = zip(sizes, reach, strides, strict=True)
    total = [maximum(0, (-(-size // stride) - 1) * stride + length - size) for size, length, stride in triples]
    return _halves(total, auto_pad)


@importer("Conv")
def convolution(node: Node) -> Expr:
    """Return the convolution that the node describes, with its bias."""
    x, weight = node.input(0), node.input(1)
    shape = conv_window(node, weight)
    attributes = conv_attributes(node, weight, shape)
    operator = "nn.conv3d" if len(shape.kernel) == 3 else "nn.conv2d"
    x = as_image(node, middle(node, x, shape, 1))
    result = node.call(operator, x, as_image(node, weight), **attributes)
    if node.has(2):
        result = node.call("nn.bias_add", result, node.input(2), axis=1)
    return without_lift(node, result, shape)


def middle(node: Node, x: Expr, shape: WindowAttributes, less: int = 0) -> Expr:
    """Return the part of the input that windows with `auto_pad` cover if the strides exceed the kernel.

    The total padding is negative in this case, which ONNX leaves undefined. ONNX Runtime skips half of the excess at
    the start, rounded down; the excess is reduced by one for convolutions (`less`), and by one for SAME_LOWER.
    """
    auto_pad = node.string("auto_pad", "NOTSET")
    less += auto_pad == "SAME_LOWER"
    windows = zip(shape.kernel, shape.strides, shape.dilations, shape.out, strict=True)
    for axis, (taps, stride, dilation, out) in enumerate(windows, 2):
        reach = (taps - 1) * dilation + 1
        if auto_pad.startswith("SAME") and stride - reach - less >= 2:
            size, span = shape_of(x)[axis], (out - 1) * stride + reach
            begin = maximum(size - span - less, 0) // 2
            x = node.cut(x, axis, begin, begin + minimum(size, span))
    return x


def conv_window(node: Node, weight: Expr, data: int = 0, ranks: tuple[int, ...] = (1, 2, 3)) -> WindowAttributes:
    """Return the window of a convolution of input `data`; refuse unsupported ranks."""
    spatial = len(shape_of(weight)) - 2
    if spatial not in ranks or node.rank(data) != spatial + 2:
        cause = f"of a tensor of {node.rank(data)} dimensions with a kernel of {spatial + 2} is not supported"
        node.unsupported(cause, f"Supported: {', '.join(map(str, ranks))} spatial dimensions")
    return window(node, node.shape(data)[2:], shape_of(weight)[2:])


def conv_attributes(node: Node, weight: Expr, shape: WindowAttributes) -> dict[str, Any]:
    """Return the attributes common to all convolutions."""
    if any(bounds(out)[1] < 1 for out in shape.out):
        node.wrong(f"the kernel {shape.kernel} does not fit into the input")
    image = shape.as_image()
    letters = "DHW"[-len(image.kernel) :]
    return {
        "strides": image.strides, "padding": image.padding, "dilation": image.dilations,
        "groups": node.integer("group", 1), "channels": shape_of(weight)[0], "kernel_size": image.kernel,
        "data_layout": f"NC{letters}", "kernel_layout": f"OI{letters}",
    }  # fmt: skip


def as_image(node: Node, x: Expr) -> Expr:
    """Return a tensor with one spatial dimension as one with two."""
    return node.call("expand_dims", x, axis=2) if len(shape_of(x)) == 3 else x


def without_lift(node: Node, result: Expr, shape: WindowAttributes) -> Expr:
    """Return a result with the spatial rank of the node's input; `as_image` adds a dimension to a single one."""
    sizes = shape_of(result)
    return node.reshape(result, (*sizes[:2], *sizes[-len(shape.kernel) :]))


@importer("ConvTranspose")
def _conv_transpose(node: Node) -> Expr:
    x, weight = node.input(0), node.input(1)
    spatial = node.rank(1) - 2
    if spatial not in (1, 2, 3) or node.rank(0) != spatial + 2:
        step = "Transposed convolutions over one, two and three spatial dimensions are supported"
        node.unsupported(f"of a tensor of {node.rank(0)} dimensions is not supported", step)
    groups = node.integer("group", 1)
    strides, dilations = node.integers("strides", (1,) * spatial), node.integers("dilations", (1,) * spatial)
    kernel = node.integers("kernel_shape", node.shape(1)[2:])
    extra = node.integers("output_padding", (0,) * spatial)
    if not len(strides) == len(dilations) == len(kernel) == len(extra) == spatial or kernel != node.shape(1)[2:]:
        node.wrong("kernel_shape, strides, dilations and output_padding must fit the kernel")
    sides = zip(node.shape(0)[2:], strides, kernel, dilations, extra, strict=True)
    full = [step * (size - 1) + (taps - 1) * dilation + 1 + more for size, step, taps, dilation, more in sides]
    begin, end = _cropping(node, full, strides)
    lift = int(spatial == 1)  # a dimension of size 1 is inserted before a single one
    ones, zeros = (1,) * lift, (0,) * lift
    # padding must be static; for dynamic padding the full result is computed and then cropped
    cut = [axis for axis in range(spatial) if not is_static((begin[axis], end[axis]))]
    pieces = [(axis + 2 + lift, begin[axis], full[axis] - begin[axis] - end[axis]) for axis in cut]
    begin, end = ([0 if axis in cut else pad for axis, pad in enumerate(pads)] for pads in (begin, end))
    # output elements beyond the reach of the input contain only the bias
    beyond = [(maximum(0, -before), maximum(0, -after)) for before, after in zip(begin, end, strict=True)]
    begin, end = [maximum(0, pad) for pad in begin], [maximum(0, pad) for pad in end]
    letters = "DHW"[-spatial - lift :]
    result = node.call(
        f"nn.conv{spatial + lift}d_transpose", as_image(node, x), as_image(node, weight),
        channels=node.shape(1)[1] * groups, kernel_size=(*ones, *kernel), strides=(*ones, *strides),
        padding=(*zeros, *begin, *zeros, *end), output_padding=(*zeros, *extra), dilation=(*ones, *dilations),
        groups=groups, data_layout=f"NC{letters}", kernel_layout=f"IO{letters}",
    )  # fmt: skip
    if any(pair != (0, 0) for pair in beyond):
        widths = (*[(0, 0)] * (2 + lift), *beyond)
        result = node.call("nn.pad", result, 0.0, pad_width=widths, pad_mode="constant")
    for axis, before, size in pieces:
        result = placed(node, result, axis, before, size, node.like(0.0, result))
    if node.has(2):
        result = node.call("nn.bias_add", result, node.input(2), axis=1)
    shape = shape_of(result)
    return node.reshape(result, (*shape[:2], prod(shape[2:]))) if lift else result


def _cropping(node: Node, full: list[int], strides: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return the number of elements cropped at the start and the end of each dimension of the `full` result.

    A negative number at the end is the number of elements missing to `output_shape`. ONNX Runtime never enlarges a
    result for `auto_pad`: it has fewer than ``size * stride`` elements if the stride is larger than the kernel.
    """
    spatial = len(full)
    auto_pad = node.string("auto_pad", "NOTSET")
    if auto_pad not in ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"):
        node.wrong(f"auto_pad '{auto_pad}' is not known")
    pads = node.integers("pads", (0,) * 2 * spatial)
    if len(pads) != 2 * spatial:
        node.wrong(f"{len(pads)} pads do not fit {spatial} spatial dimensions")
    if node.given("output_shape"):
        wanted = node.integers("output_shape")[-spatial:]
    elif auto_pad.startswith("SAME"):
        wanted = tuple(size * stride for size, stride in zip(node.shape(0)[2:], strides, strict=True))
    elif auto_pad == "VALID":
        return [0] * spatial, [0] * spatial
    else:
        return list(pads[:spatial]), list(pads[spatial:])
    if len(wanted) != spatial:
        node.wrong(f"output_shape {wanted} does not fit {spatial} spatial dimensions")
    rest = [whole - size for whole, size in zip(full, wanted, strict=True)]
    begin, end = _halves([maximum(0, more) for more in rest], auto_pad)
    if node.given("output_shape"):
        end = [pad + minimum(0, more) for pad, more in zip(end, rest, strict=True)]
    return begin, end


@importer("AveragePool")
def average_pool(node: Node, given: Expr | None = None) -> Expr:
    """Return the average pool of input 0, or of another tensor of its shape, as defined by the node's attributes."""
    shape = pool_window(node)
    x = middle(node, node.input(0) if given is None else given, shape)
    counted = node.integer("count_include_pad", 0) != 0
    if counted and any(more != 0 for more in shape.overhang):
        # the divisor counts padding but not the overhang: make the padding part of the input
        widths, none = ((0, 0), (0, 0), *zip(shape.begin, shape.end, strict=True)), (0,) * len(shape.begin)
        x = node.call("nn.pad", x, 0.0, pad_width=widths, pad_mode="constant")
        shape, counted = replace(shape, begin=none, end=none), False
    return pooled(node, x, "avg", shape, count_include_pad=counted)


def pool_window(node: Node) -> WindowAttributes:
    """Return the window of a pool over input 0; refuse unsupported ranks."""
    if node.rank(0) not in (3, 4, 5):
        step = "Pools over one, two and three spatial dimensions are supported"
        node.unsupported(f"of a tensor of {node.rank(0)} dimensions is not supported", step)
    shape = window(node, node.shape(0)[2:])
    if any(bounds(out)[1] < 1 for out in shape.out):
        node.wrong(f"the kernel {shape.kernel} does not fit into the input")
    return shape


def pooled(node: Node, x: Expr, kind: str, shape: WindowAttributes, **attributes: Any) -> Expr:
    """Return an ``avg`` or ``max`` pool of `x`."""
    image = shape.as_image()
    rank = len(image.kernel)
    result = node.call(
        f"nn.{kind}_pool{rank}d", as_image(node, x), pool_size=image.kernel, strides=image.strides,
        dilation=image.dilations, padding=image.padding, layout="NC" + "DHW"[-rank:], **attributes,
    )  # fmt: skip
    return without_lift(node, result, shape)


@importer("GlobalAveragePool", "GlobalMaxPool")
def global_pool(node: Node, given: Expr | None = None) -> Expr:
    """Return input 0, or another tensor, pooled over all spatial dimensions, which are kept with size 1."""
    x, kind = node.input(0) if given is None else given, "max" if node.operator == "GlobalMaxPool" else "avg"
    rank = len(shape_of(x))
    if rank == 4:
        return node.call(f"nn.global_{kind}_pool2d", x, layout="NCHW")
    return node.call("mean" if kind == "avg" else "max", x, axis=tuple(range(2, rank)), keepdims=True)


@importer("LpPool", "GlobalLpPool")
def _lp_pool(node: Node) -> Expr:
    power, dtype = node.integer("p", 2), node.dtype(0)
    x, shape = wide(node, node.input(0)), None if node.operator == "GlobalLpPool" else pool_window(node)
    magnitude = node.call("abs", x if shape is None else middle(node, x, shape))
    raised = magnitude if power == 1 else node.call("power", magnitude, power)
    if shape is None:
        total = node.call("sum", raised, axis=tuple(range(2, node.rank(0))), keepdims=True)
    else:
        mean = pooled(node, raised, "avg", shape, count_include_pad=True)
        total = node.call("multiply", mean, prod(shape.kernel))
    root = total if power == 1 else node.call("power", total, 1.0 / power)
    return node.cast(root, dtype)

"""Convolutions. One spatial dimension is computed as two with a first extent of 1."""

from __future__ import annotations

from math import prod
from typing import Any

from mlfc.frontend.onnx.node import Node, shape_of
from mlfc.frontend.onnx.table import importer
from mlfc.frontend.onnx.window import WindowAttributes, window
from mlfc.relay.ir import Expr


@importer("Conv")
def convolution(node: Node) -> Expr:
    """Return the convolution that the node describes, with its bias."""
    x, weight = node.input(0), node.input(1)
    shape = conv_window(node, weight)
    attributes = conv_attributes(node, weight, shape)
    operator = "nn.conv3d" if len(shape.kernel) == 3 else "nn.conv2d"
    result = node.call(operator, as_image(node, x), as_image(node, weight), **attributes)
    if node.has(2):
        result = node.call("nn.bias_add", result, node.input(2), axis=1)
    return node.reshape(result, shape_of(result)[:2] + shape.out) if node.rank(0) == 3 else result


def conv_window(node: Node, weight: Expr, data: int = 0, ranks: tuple[int, ...] = (1, 2, 3)) -> WindowAttributes:
    """Return the window of a convolution of input `data`; refuse what has no template."""
    spatial = len(shape_of(weight)) - 2
    if spatial not in ranks or node.rank(data) != spatial + 2:
        node.unsupported(
            f"of a tensor of {node.rank(data)} dimensions with a kernel of {spatial + 2} is not supported",
            f"Supported: {', '.join(map(str, ranks))} spatial dimensions",
        )
    check_weights(node, weight)
    return window(node, node.shape(data)[2:], shape_of(weight)[2:])


def check_weights(node: Node, weight: Expr) -> None:
    """Refuse weights that depend on an input: they are packed when the model is compiled."""
    if not node.is_fixed(weight):
        node.unsupported(
            "with weights that are only known when the model runs is not supported",
            "Make the weights constants of the model",
        )


def conv_attributes(node: Node, weight: Expr, shape: WindowAttributes) -> dict[str, Any]:
    """Return the attributes that the convolutions share."""
    if any(out < 1 for out in shape.out):
        node.wrong(f"the kernel {shape.kernel} does not fit into the input")
    image = shape.as_image()
    letters = "DHW"[-len(image.kernel) :]
    return {
        "strides": image.strides,
        "padding": image.padding,
        "dilation": image.dilations,
        "groups": node.integer("group", 1),
        "channels": shape_of(weight)[0],
        "kernel_size": image.kernel,
        "data_layout": f"NC{letters}",
        "kernel_layout": f"OI{letters}",
    }


def as_image(node: Node, x: Expr) -> Expr:
    """Return a tensor of one spatial dimension as one of two."""
    return node.call("expand_dims", x, axis=2) if len(shape_of(x)) == 3 else x


@importer("ConvTranspose")
def _conv_transpose(node: Node) -> Expr:
    x, weight = node.input(0), node.input(1)
    spatial = node.rank(1) - 2
    if spatial not in (1, 2) or node.rank(0) != spatial + 2:
        node.unsupported(
            f"of a tensor of {node.rank(0)} dimensions is not supported",
            "Transposed convolutions over one and two spatial dimensions are supported",
        )
    groups = node.integer("group", 1)
    strides, dilations = node.integers("strides", (1,) * spatial), node.integers("dilations", (1,) * spatial)
    kernel = node.integers("kernel_shape", node.shape(1)[2:])
    extra = node.integers("output_padding", (0,) * spatial)
    if not len(strides) == len(dilations) == len(kernel) == len(extra) == spatial or kernel != node.shape(1)[2:]:
        node.wrong("kernel_shape, strides, dilations and output_padding must fit the kernel")
    full = [
        stride * (size - 1) + (taps - 1) * dilation + 1 + more
        for size, stride, taps, dilation, more in zip(node.shape(0)[2:], strides, kernel, dilations, extra, strict=True)
    ]
    begin, end = _cropping(node, full, strides)
    # an output larger than the input reaches: what is beyond is the bias alone
    beyond = [(max(0, -before), max(0, -after)) for before, after in zip(begin, end, strict=True)]
    begin, end = [max(0, pad) for pad in begin], [max(0, pad) for pad in end]
    check_weights(node, weight)
    lift = spatial == 1
    result = node.call(
        "nn.conv2d_transpose",
        as_image(node, x),
        as_image(node, weight),
        channels=node.shape(1)[1] * groups,
        kernel_size=(1, *kernel) if lift else kernel,
        strides=(1, *strides) if lift else strides,
        padding=(0, begin[0], 0, end[0]) if lift else (*begin, *end),
        output_padding=(0, *extra) if lift else extra,
        dilation=(1, *dilations) if lift else dilations,
        groups=groups,
        data_layout="NCHW",
        kernel_layout="IOHW",
    )
    if any(map(any, beyond)):
        widths = ((0, 0), (0, 0), *([(0, 0)] if lift else []), *beyond)
        result = node.call("nn.pad", result, node.like(0.0, result), pad_width=widths, pad_mode="constant")
    if node.has(2):
        result = node.call("nn.bias_add", result, node.input(2), axis=1)
    shape = shape_of(result)
    return node.reshape(result, (*shape[:2], prod(shape[2:]))) if lift else result


def _cropping(node: Node, full: list[int], strides: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return what is cut off at the begin and the end of each dimension of the `full` result."""
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
    else:
        return list(pads[:spatial]), list(pads[spatial:])
    if len(wanted) != spatial:
        node.wrong(f"output_shape {wanted} does not fit {spatial} spatial dimensions")
    total = [whole - size for whole, size in zip(full, wanted, strict=True)]
    small = [pad // 2 for pad in total]
    large = [pad - half for pad, half in zip(total, small, strict=True)]
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)

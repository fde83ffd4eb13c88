"""Layers with tile instructions (AMX) and with vectors, interleaved: int8 against VNNI, bfloat16 against float32."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
from rich.table import Table

from benchmarks.kernels import FLAGS, Layer, attributes, float_runner, integer_runner
from benchmarks.llvm import paired
from mlfc.library.peaks import machine_peaks
from mlfc.relay import ir
from mlfc.target.features import Features
from mlfc.target.target import parse_target
from tests.native.kernel_runner import aligned, build, group_of

LAYERS = {
    "ResNet-8, 3x3, 16 to 16": Layer(32, 16, 16, 3),
    "ResNet-8, 3x3, 16 to 32, stride 2": Layer(32, 16, 32, 3, 2),
    "ResNet-8, 3x3, 32 to 32": Layer(16, 32, 32, 3),
    "ResNet-8, 3x3, 64 to 64": Layer(8, 64, 64, 3),
    "ResNet-50, first 7x7, stride 2": Layer(224, 3, 64, 7, 2),
    "ResNet-50, 1x1, 64 to 256": Layer(56, 64, 256),
    "ResNet-50, 3x3, 128 to 128": Layer(28, 128, 128, 3),
    "ResNet-50, 1x1, 1024 to 256": Layer(14, 1024, 256),
    "ResNet-50, 3x3, 256 to 256": Layer(14, 256, 256, 3),
    "ResNet-50, 3x3, 512 to 512": Layer(7, 512, 512, 3),
    "MobileNetV2, 1x1, 16 to 96": Layer(112, 16, 96),
    "MobileNetV2, 1x1, 96 to 576": Layer(14, 96, 576),
    "MobileNetV2, 1x1, 576 to 160": Layer(14, 576, 160),
    "MobileNetV2, 1x1, 320 to 1280": Layer(7, 320, 1280),
}
_TITLE = "layers by tiles; measured peak {:,.0f} G multiply-accumulates of bytes a second, half of bfloat16"


def bfloat_runner(layer: Layer, features: Features, rng: np.random.Generator) -> Callable[[], object]:
    """Return mlfc's bfloat16 kernel with bias and relu, bound to its arrays."""

    def numbers(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)

    x = ir.Var("x", ir.TensorType((1, layer.side, layer.side, layer.channels), "bfloat16"))
    weights = ir.const(numbers(layer.kernel, layer.kernel, layer.channels, layer.filters))
    call = ir.call("nn.conv2d", [x, weights], **attributes(layer))
    biased = ir.call("nn.bias_add", [call, ir.const(numbers(layer.filters))], axis=3)
    kernel = build(group_of(ir.call("nn.relu", [biased]), [x]), features, FLAGS)
    data = aligned(x.type.shape, ml_dtypes.bfloat16)
    data[...] = numbers(*data.shape)
    return kernel.bound([data])


def table(seconds: float) -> Table:
    """Return the table of this machine."""
    by_vectors = parse_target("c -mcpu=x86-64-v4 -mattr=+avx512vnni").features
    by_tiles, peak = parse_target("c -mcpu=sapphirerapids").features, machine_peaks().int8
    found = Table(title=_TITLE.format(peak / 1e9))
    columns = ("pixels", "M MAC", "VNNI us", "int8 tiles us", "ratio", "of peak", "float32 us", "bfloat16 tiles us",
               "ratio", "of peak")  # fmt: skip
    for name in ("layer", *columns):
        found.add_column(name, justify="left" if name == "layer" else "right")
    for name, layer in LAYERS.items():
        cells = [name, f"{layer.side}x{layer.side}", f"{layer.macs / 1e6:.1f}"]
        for ours, other, share in ((integer_runner, integer_runner, 1.0), (bfloat_runner, float_runner, 0.5)):
            runners = [
                make(layer, features, np.random.default_rng(0))
                for make, features in ((ours, by_tiles), (other, by_vectors))
            ]
            (tiles, vectors), ratio = paired(runners, seconds)
            cells += [f"{vectors * 1e6:,.1f}", f"{tiles * 1e6:,.1f}", f"{ratio:.2f}"]
            cells.append(f"{layer.macs / tiles / (peak * share):.0%}")
        found.add_row(*cells)
    return found

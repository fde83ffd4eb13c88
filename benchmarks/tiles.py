"""Int8 layers by tiles (AMX) and by vectors (AVX-512 with VNNI), interleaved, and the share of the peak of tiles."""

from __future__ import annotations

import numpy as np
from rich.table import Table

from benchmarks.kernels import Layer, integer_runner
from benchmarks.llvm import paired
from mlfc.library.peaks import machine_peaks
from mlfc.target.target import parse_target

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


def table(seconds: float) -> Table:
    """Return the table of this machine."""
    by_vectors = parse_target("c -mcpu=x86-64-v4 -mattr=+avx512vnni").features
    by_tiles, peak = parse_target("c -mcpu=sapphirerapids").features, machine_peaks().int8
    found = Table(title=f"int8 layers; peak of tiles {peak / 1e9:,.0f} G multiply-accumulates a second")
    for name in ("layer", "pixels", "M MAC", "vectors us", "tiles us", "ratio", "of peak"):
        found.add_column(name, justify="left" if name == "layer" else "right")
    for name, layer in LAYERS.items():
        runners = [integer_runner(layer, features, np.random.default_rng(0)) for features in (by_tiles, by_vectors)]
        (ours, theirs), ratio = paired(runners, seconds)
        found.add_row(
            name,
            f"{layer.side}x{layer.side}",
            f"{layer.macs / 1e6:.1f}",
            f"{theirs * 1e6:,.1f}",
            f"{ours * 1e6:,.1f}",
            f"{ratio:.2f}",
            f"{layer.macs / ours / peak:.0%}",
        )
    return found

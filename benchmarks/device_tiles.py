"""Times of all tile sizes for matrix products on a device: ``python -m benchmarks.device_tiles [--batch N ...]``.

Prints the fastest and the chosen schedule of each layer. ``--json`` saves all times, to which the estimates in
`mlfc.kernels.gpu_tile` were fitted. Requires a CUDA GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from rich.console import Console
from rich.table import Table

from benchmarks.device import Bench, layer_function
from benchmarks.kernels import LAYERS, Layer
from mlfc.codegen.device import device_kernels, device_source
from mlfc.codegen.host.packed import launch_extents
from mlfc.kernels import gpu_product, gpu_tile
from mlfc.kernels.gpu_tile import ProductSizes, Schedule
from mlfc.runtime import CudaModule, FunctionInfo
from mlfc.runtime.devices.cuda_compilers import compile_cuda
from mlfc.target.features import Features

_WITHIN = 3.0  # times the least estimate; slower schedules are not measured
_SKIPPED = ("depthwise", "transposed", "dense")
MORE = {
    "SqueezeNet 13 3x3 48-192": Layer(13, 48, 192, 3, 1, 1),
    "SqueezeNet 27 1x1 256-32": Layer(27, 256, 32, 1, 1, 1),
    "SqueezeNet 27 3x3 32-128": Layer(27, 32, 128, 3, 1, 1),
    "ResNet-50 14 1x1 256-1024": Layer(14, 256, 1024, 1, 1, 1),
    "VGG 224 3x3 64-64": Layer(224, 64, 64, 3, 1, 1),
    "VGG 56 3x3 256-256": Layer(56, 256, 256, 3, 1, 1),
    "VGG 14 3x3 512-512": Layer(14, 512, 512, 3, 1, 1),
}


@dataclass(frozen=True)
class Built:
    """A layer compiled with one schedule."""

    layer: str
    batch: int
    sizes: ProductSizes
    schedule: Schedule
    code: bytes
    kernels: Sequence[tuple[str, Sequence[int], dict[str, int]]]  # name, buffer positions, extents
    nbytes: Sequence[int]  # of the buffers


def schedules(sizes: ProductSizes) -> list[Schedule]:
    """Return the candidate schedules of a product whose estimates are near the least one."""
    found = [Schedule(tile, splits) for tile in gpu_tile._TILES for splits in gpu_tile._splits(sizes, tile)]
    least = min(gpu_tile._nanoseconds(sizes, schedule) for schedule in found)
    return [schedule for schedule in found if gpu_tile._nanoseconds(sizes, schedule) <= _WITHIN * least]


def sizes_of(layer: Layer, batch: int) -> ProductSizes:
    """Return the sizes of a layer's matrix product."""
    seen: list[ProductSizes] = []

    def choose(features: Features, sizes: ProductSizes) -> Schedule:
        seen.append(sizes)
        return gpu_tile.choose(features, sizes)

    with mock.patch.object(gpu_product, "choose", choose):
        layer_function(layer, batch, "cuda")
    return seen[0]


def build(job: tuple[str, Layer, int, ProductSizes, Schedule, str]) -> Built:
    """Compile a layer with a schedule."""
    name, layer, batch, sizes, schedule, arch = job
    with mock.patch.object(gpu_product, "choose", return_value=schedule):
        prim = layer_function(layer, batch, "cuda")
    kernels = device_kernels(prim, "timed")
    buffers = (*prim.params, *prim.scratch)
    numbers = {id(buffer): number for number, buffer in enumerate(buffers)}
    described = [(k.name, [numbers[id(b)] for b in k.arguments], dict(launch_extents(k))) for k in kernels]
    code = compile_cuda(device_source(kernels, "cuda"), arch).data
    return Built(name, batch, sizes, schedule, code, described, [int(buffer.nbytes) for buffer in buffers])


def jobs(batches: Sequence[int], arch: str) -> Iterator[tuple[str, Layer, int, ProductSizes, Schedule, str]]:
    """Yield the arguments of every compilation."""
    for name, layer in (LAYERS | MORE).items():
        if not any(word in name for word in _SKIPPED):
            for batch in batches:
                sizes = sizes_of(layer, batch)
                for schedule in schedules(sizes):
                    yield name, layer, batch, sizes, schedule, arch


def timed(bench: Bench, built: Built) -> float:
    """Return the microseconds of a layer."""
    table = {name: FunctionInfo("", ("handle",) * len(places), tuple(sizes)) for name, places, sizes in built.kernels}
    module = CudaModule("cubin", table, built.code)
    handles = [bench.api.allocate(max(nbytes, 1), 64) for nbytes in built.nbytes]
    calls = [
        (module[name], [handles[place] for place in places], list(sizes.values()))
        for name, places, sizes in built.kernels
    ]
    nanoseconds = bench.times(lambda: [function(*given, *extents) for function, given, extents in calls])
    for handle in handles:
        bench.api.free(handle)
    return min(nanoseconds) / 1e3


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with ProcessPoolExecutor() as pool:  # before this process uses a GPU, which does not survive a fork
        built = list(pool.map(build, jobs(options.batch, options.arch), chunksize=4))
    bench = Bench("cuda")
    rows: dict[tuple[str, int], list[tuple[float, Built]]] = {}
    for item in built:
        rows.setdefault((item.layer, item.batch), []).append((timed(bench, item), item))
    table = Table("layer", "batch", "fastest", "us", "chosen", "us", "ratio", title=bench.device.name)
    for (name, batch), found in rows.items():
        best, fastest = min(found, key=lambda pair: pair[0])
        least, chosen = min(found, key=lambda pair: gpu_tile._nanoseconds(pair[1].sizes, pair[1].schedule))
        words = [f"{s.tile.rows}x{s.tile.columns}/{s.splits}" for s in (fastest.schedule, chosen.schedule)]
        table.add_row(name, f"{batch}", words[0], f"{best:.1f}", words[1], f"{least:.1f}", f"{least / best:.2f}")
    Console(width=130).print(table)
    if options.json:
        everything = [
            {"layer": name, "batch": batch, "us": us, "splits": b.schedule.splits, "tile": vars(b.schedule.tile),
             "sizes": [b.sizes.layers, b.sizes.rows, b.sizes.columns, b.sizes.depth]}
            for (name, batch), found in rows.items() for us, b in found
        ]  # fmt: skip
        options.json.write_text(json.dumps(everything))


if __name__ == "__main__":
    main()

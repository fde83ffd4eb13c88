"""Whole models on a CUDA GPU compared with PyTorch: ``python -m benchmarks.device_models [NAME ...]``.

Wall time of a run whose input is on the device, in float32 without TF32. PyTorch uses cuDNN's search and the faster of
both layouts; it is called directly, and replayed as a CUDA graph. Requires torch with CUDA, and torchvision.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torchvision
from rich.console import Console
from rich.table import Table

import mlfc
from benchmarks.models import find
from mlfc.runtime.drivers.cuda import CudaApi

TWINS = {
    "resnet50": "resnet50", "squeezenet": "squeezenet1_0", "densenet121": "densenet121", "vgg19": "vgg19",
    "bvlc_alexnet": "alexnet",
}  # fmt: skip
_WARM, _RUNS = 10, 50


def wall_us(run: Callable[[], object]) -> float:
    """Return the median microseconds of a run."""
    for _ in range(_WARM):
        run()
    times = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def ours(path: Any) -> tuple[float, float, float, int]:
    """Return the microseconds of a run, of one with separate launches, and of all kernels, and the kernel count."""
    module, params = mlfc.import_model(path)
    api = mlfc.cuda(0).api
    assert isinstance(api, CudaApi)
    target = f"cuda -arch={api.arch}"
    executor = mlfc.build(module, target, params=params, target_host="llvm")["default"](mlfc.cuda(0))
    for name, info in executor.get_input_info().items():
        executor.set_input(name, np.random.default_rng(0).standard_normal(info.shape, dtype=np.float32))
    wall = wall_us(executor.run)

    def one_by_one() -> None:
        for _, call in executor.calls():
            call()
        api.synchronize()

    single = wall_us(one_by_one)
    kernels = [min(times) for times in zip(*(executor.timed_run() for _ in range(10)), strict=True)]
    return wall, single, sum(kernels) / 1e3, len(kernels)


def theirs(name: str) -> dict[str, float]:
    """Return PyTorch's microseconds per run, by layout and kind of call."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    found = {}
    for layout in (torch.contiguous_format, torch.channels_last):
        model = getattr(torchvision.models, name)(weights=None).eval().cuda().to(memory_format=layout)
        x = torch.randn((1, 3, 224, 224), device="cuda").to(memory_format=layout)
        word = "channels last" if layout == torch.channels_last else "channels first"

        def call(model: Any = model, x: Any = x) -> None:
            model(x)
            torch.cuda.synchronize()

        with torch.inference_mode():
            found[f"called, {word}"] = wall_us(call)
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                model(x)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                model(x)

            def replay(graph: Any = graph) -> None:
                graph.replay()
                torch.cuda.synchronize()

            found[f"graph, {word}"] = wall_us(replay)
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*TWINS], metavar="NAME", help=", ".join(TWINS))
    title = f"{mlfc.cuda(0).name}: microseconds of a run, batch 1, float32"
    table = Table(
        "model",
        "ours",
        "one by one",
        "its kernels",
        "launches",
        "PyTorch called",
        "as a graph",
        "of the better",
        title=title,
    )
    for name in parser.parse_args().names:
        (model,) = find([name])
        wall, single, kernels, launches = ours(model.path)
        peer = theirs(TWINS[name])
        called, graph = (
            min(value for key, value in peer.items() if key.startswith(word)) for word in ("called", "graph")
        )
        table.add_row(
            name, f"{wall:,.0f}", f"{single:,.0f}", f"{kernels:,.0f}", f"{launches}", f"{called:,.0f}", f"{graph:,.0f}",
            f"{wall / min(called, graph):.2f}",
        )  # fmt: skip
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

"""Layers on a device compared with its limits: ``python -m benchmarks.device [--device cuda|opencl] [--batch N]``.

The limits are measured on the device: multiply-adds in registers, and a copy of a large array. ``--resources`` prints
nvcc's report on the kernels instead and needs no GPU.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import mlfc
from benchmarks.kernels import LAYERS, Layer, attributes
from mlfc.codegen.device import DeviceKernel, device_kernels, device_source
from mlfc.codegen.host.packed import launch_extents
from mlfc.relay import ir
from mlfc.runtime import CudaModule, FunctionInfo, OpenClModule
from mlfc.runtime.devices.cuda_compilers import compile_cuda
from mlfc.target.target import parse_target
from mlfc.tir import builder as tb
from mlfc.tir.bind import bind
from mlfc.tir.ir import Buffer, PrimFunc
from mlfc.tir.unroll import Unroll
from mlfc.transform.lower_group import lower_group

_CHAINS, _STEPS, _ITEMS = 16, 4096, 1 << 18
_COPIED = 1 << 26  # elements
_RUNS = 10


def layer_function(layer: Layer, batch: int, target: str) -> PrimFunc:
    """Return a float32 convolution with bias and relu, lowered for a device."""
    rng = np.random.default_rng(0)
    shape = (batch, layer.side, layer.side, layer.channels)
    x = ir.Var("x", ir.TensorType(shape, "float32"))
    weights = rng.standard_normal((layer.kernel, layer.kernel, layer.channels // layer.groups, layer.filters))
    body = ir.call("nn.conv2d", [x, ir.Constant(weights.astype(np.float32))], attributes(layer))
    bias = ir.Constant(rng.standard_normal(layer.filters).astype(np.float32))
    body = ir.call("nn.relu", [ir.call("nn.bias_add", [body, bias], {"axis": 3})])
    return lower_group(ir.Function((x,), body, {"Primitive": 1}), parse_target(target).features).prim


def multiply_adds() -> PrimFunc:
    """Return a function that only does multiply-adds in registers."""
    stmts, output = tb.StmtBuilder(), Buffer("output", (_ITEMS,), "float32")
    with stmts.loop(_ITEMS, "i") as i:
        sums = stmts.local("sums", (_CHAINS,), "float32")
        x = stmts.let("x", tb.cast(i, "float32"))
        with stmts.loop(_CHAINS, "s", "unrolled") as s:
            stmts.store(sums, [s], tb.cast(s, "float32"))
        with stmts.loop(_STEPS, "k"), stmts.loop(_CHAINS, "s", "unrolled") as s:
            stmts.store(sums, [s], tb.load(sums, [s]) * x + 0.5)
        total = tb.load(sums, [0])
        for chain in range(1, _CHAINS):
            total = total + tb.load(sums, [chain])
        stmts.store(output, [i], total)
    prim = PrimFunc("peak", (), (), output, (), bind(stmts.finish()), macs=_ITEMS * _CHAINS * _STEPS)
    return Unroll()(prim)  # keeps the sums in registers regardless of the compiler's treatment of small arrays


def copy() -> PrimFunc:
    """Return a function that copies a large array."""
    stmts = tb.StmtBuilder()
    source, output = (Buffer(name, (_COPIED,), "float32") for name in ("source", "output"))
    with stmts.loop(_COPIED, "i") as i:
        stmts.store(output, [i], tb.load(source, [i]))
    return PrimFunc("copied", (source,), (), output, (), bind(stmts.finish()))


@dataclass(frozen=True)
class Timed:
    """A function's time on a device, and the work it does."""

    seconds: float
    operations: int
    nbytes: int


class Bench:
    """Kernels of one device, timed by its own clock."""

    def __init__(self, kind: str) -> None:
        self.device = mlfc.device(kind)
        self.api: Any = self.device.api

    def time(self, prim: PrimFunc) -> Timed:
        """Run a function several times and return the shortest time."""
        kernels = device_kernels(prim, "timed")
        module = self._module(kernels)
        handles = {id(buffer): self.api.allocate(max(buffer.nbytes, 1), 64) for buffer in (*prim.params, *prim.scratch)}
        calls = [
            (module[kernel.name], [handles[id(b)] for b in kernel.arguments], list(launch_extents(kernel).values()))
            for kernel in kernels
        ]

        def step() -> None:
            for function, arguments, extents in calls:
                function(*arguments, *extents)

        step()
        best = min(self.times(step)) / 1e9
        for handle in handles.values():
            self.api.free(handle)
        return Timed(best, 2 * prim.macs, sum(buffer.nbytes for buffer in prim.params))

    def times(self, step: Callable[[], object]) -> list[int]:
        """Return the device's nanoseconds for each of several runs, if possible without waiting for the host."""
        recording = self.api.record([step] * _RUNS)
        if recording is not None:
            for _ in range(2):
                recording.launch()
                self.api.synchronize()
            times: list[int] = recording.nanoseconds()
            return times
        passed = []
        for _ in range(_RUNS):
            start = self.api.mark()
            step()
            end = self.api.mark()
            self.api.synchronize()
            passed.append(self.api.nanoseconds(start, end))
        return passed

    def _module(self, kernels: Sequence[DeviceKernel]) -> Any:
        table = {
            kernel.name: FunctionInfo("", ("handle",) * len(kernel.arguments), tuple(launch_extents(kernel)))
            for kernel in kernels
        }
        source = device_source(kernels, self.device.kind)
        if self.device.kind == "opencl":
            return OpenClModule("cl", table, source)
        code = compile_cuda(source, self.api.arch)
        return CudaModule(code.format, table, code.data)


def cudnn_us(layer: Layer, batch: int) -> float | None:
    """Return PyTorch's fastest microseconds for a layer without TF32; None where PyTorch has no GPU."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    best = float("inf")
    for layout in (torch.contiguous_format, torch.channels_last):
        data = torch.randn(batch, layer.channels, layer.side, layer.side, device="cuda").to(memory_format=layout)
        first, second = layer.channels, layer.filters // layer.groups
        if not layer.transposed:
            first, second = layer.filters, layer.channels // layer.groups
        weights = torch.randn(first, second, layer.kernel, layer.kernel, device="cuda").to(memory_format=layout)
        bias = torch.randn(layer.filters, device="cuda")
        strides, pads = (layer.stride,) * 2, (layer.pad,) * 2
        if layer.transposed:
            ways = [partial(torch.conv_transpose2d, data, weights, bias, strides, pads)]
        else:
            ways = [
                partial(torch.conv2d, data, weights, bias, strides, pads, 1, layer.groups),
                partial(torch.cudnn_convolution_relu, data, weights, bias, strides, pads, (1, 1), layer.groups),
            ]
        best = min(best, *(_graph_us(torch, way) for way in ways))
    return best


def _graph_us(torch: Any, way: Callable[[], object]) -> float:
    """Return PyTorch's microseconds of device time per call."""
    with torch.inference_mode():
        try:
            for _ in range(3):
                way()
        except RuntimeError:  # cuDNN has no fused form of some layers
            return float("inf")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(_RUNS):
                way()
        best = float("inf")
        for _ in range(5):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            best = min(best, 1e3 * start.elapsed_time(end) / _RUNS)
    return best


def measured(kind: str, batch: int) -> Table:
    """Return the table of layers and the device's limits."""
    bench = Bench(kind)
    flops, moved = bench.time(multiply_adds()), bench.time(copy())
    peak, bandwidth = flops.operations / flops.seconds, moved.nbytes / moved.seconds
    title = f"{bench.device.name}: {peak / 1e9:,.0f} GFLOP/s, {bandwidth / 1e9:,.0f} GB/s measured; batch {batch}"
    columns = ("layer", "us", "GFLOP/s", "of peak", "GB/s", "of the limit that binds", "PyTorch us", "of PyTorch")
    table = Table(*columns, title=title)
    for name, layer in LAYERS.items():
        timed = bench.time(layer_function(layer, batch, kind))
        rate, traffic = timed.operations / timed.seconds, timed.nbytes / timed.seconds
        bound = max(timed.operations / peak, timed.nbytes / bandwidth) / timed.seconds
        table.add_row(
            name, f"{timed.seconds * 1e6:,.1f}", f"{rate / 1e9:,.1f}", f"{rate / peak:.1%}", f"{traffic / 1e9:,.1f}",
            f"{bound:.1%}", *_beside(timed, cudnn_us(layer, batch) if kind == "cuda" else None),
        )  # fmt: skip
    return table


def _beside(timed: Timed, peer: float | None) -> tuple[str, ...]:
    return () if peer is None else (f"{peer:,.1f}", f"{timed.seconds * 1e6 / peer:.2f}")


@dataclass(frozen=True)
class Gpu:
    """The limits of a GPU: an H200 by its data sheet."""

    processors: int = 132
    registers: int = 65536
    threads: int = 2048
    shared: int = 233472
    flops: float = 66.9e12
    bandwidth: float = 4.8e12

    def groups(self, registers: int, items: int, shared: int) -> int:
        """Return the number of groups that a processor holds at once."""
        warps = -(-items // 32)
        by_registers = self.registers // (warps * -(-registers * 32 // 256) * 256)
        return min(32, by_registers, self.threads // (warps * 32), self.shared // (shared + 1024))


def resources(batch: int) -> Table:
    """Return nvcc's report on each layer's kernel, with the resulting occupancy and bounds on an H200."""
    gpu = Gpu()
    table = Table(
        "layer", "groups x items", "registers", "spilled", "shared", "occupancy", "full waves", "FLOP/byte", "bound by",
        "least us", title=f"nvcc for sm_90; an H200 has {gpu.processors} processors; batch {batch}",
    )  # fmt: skip
    for name, layer in LAYERS.items():
        prim = layer_function(layer, batch, "cuda")
        kernel = device_kernels(prim, "layer")[0]
        registers, spilled, shared = _nvcc(device_source([kernel], "cuda"))
        groups, items = prod(kernel.grid), prod(kernel.block)
        held = gpu.groups(registers, items, shared)
        waves = groups / (gpu.processors * held)
        nbytes, operations = sum(buffer.nbytes for buffer in prim.params), 2 * prim.macs
        computing, moving = operations / gpu.flops, nbytes / gpu.bandwidth
        table.add_row(
            name, f"{groups} x {items}", f"{registers}", f"{spilled}", f"{shared}", f"{held * items / gpu.threads:.0%}",
            f"{waves / -(-waves // 1):.0%}", f"{operations / nbytes:.1f}",
            "arithmetic" if computing > moving else "memory", f"{max(computing, moving) * 1e6:.1f}",
        )  # fmt: skip
    return table


def _nvcc(source: str) -> tuple[int, int, int]:
    """Return the registers and spilled bytes per item, and the shared bytes per group."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cu"
        path.write_text(source)
        command = ["nvcc", "-arch=sm_90", "-cubin", "--resource-usage", "-o", f"{folder}/kernel.cubin", str(path)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    found = [
        re.search(pattern, said) for pattern in (r"Used (\d+) registers", r"(\d+) bytes spill st", r"(\d+) bytes smem")
    ]
    registers, spilled, shared = (int(match[1]) if match else 0 for match in found)
    return registers, spilled, shared


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "opencl"), default="opencl")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--resources", action="store_true", help="print nvcc's report on the kernels; needs no GPU")
    options = parser.parse_args()
    table = resources(options.batch) if options.resources else measured(options.device, options.batch)
    Console(width=180).print(table)


if __name__ == "__main__":
    main()

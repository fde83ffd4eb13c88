"""Time of kernels with dynamic shapes, relative to kernels compiled for one static shape.

The C compiler builds both for this machine's processor. Their runs alternate.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from benchmarks.dynamic_layers import LAYERS, Layer
from benchmarks.recurrent import interleaved
from mlfc.codegen.c import print_function
from mlfc.library.toolchain import NATIVE
from mlfc.support import dtypes
from mlfc.support.dims import Symbol
from mlfc.target.target import parse_target
from mlfc.tir.parameters import with_numbers
from mlfc.transform.lower_group import LoweredGroup, lower_group
from tests.c_files import print_file
from tests.native.kernel_runner import aligned, group_of
from tests.shared_library import compile_shared

Array = npt.NDArray[Any]
SYMBOL = Symbol("n")


def _lowered(layer: Layer, extent: Any) -> LoweredGroup:
    body, params = layer.make(extent)
    return lower_group(group_of(body, params), parse_target("c -mcpu=native").features)


def _repeated(name: str, group: LoweredGroup) -> str:
    """Return a C function that calls a kernel many times, as Python calls take longer than small kernels."""
    count = len(group.prim.params) + bool(group.prim.scratch)
    arguments = ", ".join([*(f"arrays[{index}]" for index in range(count)), *["extent"] * len(group.prim.symbols)])
    return f"""
int32_t repeat_{name}(void **arrays, int32_t extent, int32_t times) {{
  (void)extent;
  while (times-- > 0) {{
    if ({name}({arguments}) != 0) {{
      return 1;
    }}
  }}
  return 0;
}}
"""


def _bound(repeat: Any, group: LoweredGroup, extent: int, times: int) -> Callable[[], object]:
    """Return a function that makes `times` calls of a kernel on fixed arrays."""
    prim = with_numbers(group.prim, [extent] * len(group.prim.symbols))
    arrays: list[Array] = []
    for index, buffer in enumerate((*prim.inputs, *prim.constants, prim.output)):
        array = aligned(buffer.shape, dtypes.to_numpy(buffer.dtype))
        constant = index - len(prim.inputs)
        known = group.constants[constant] if 0 <= constant < len(prim.constants) else None
        array[...] = np.ones(buffer.shape) if known is None else known
        arrays.append(array)
    if prim.scratch:
        arrays.append(aligned((prim.scratch_bytes,), np.uint8))
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))

    def run(_kept: Sequence[Array] = arrays) -> int:  # pointers do not keep their arrays alive
        return int(repeat(pointers, ctypes.c_int32(extent), ctypes.c_int32(times)))

    return run


def _times(repeat: Any, group: LoweredGroup, extent: int) -> int:
    """Return the number of calls that take about 100 microseconds."""
    run = _bound(repeat, group, extent, 1)
    run()
    start = time.thread_time()
    for _ in range(5):
        run()
    return max(1, int(100e-6 * 5 / (time.thread_time() - start)))


def ratios(layer: Layer, seconds: float) -> Iterator[tuple[int, float, float]]:
    """Yield (size, seconds of the static kernel, time ratio of the dynamic one) for a layer."""
    groups = {"open": _lowered(layer, SYMBOL.dim), **{f"of_{n}": _lowered(layer, n) for n in layer.extents}}
    with tempfile.TemporaryDirectory() as folder:
        text = print_file([print_function(group.prim, name) for name, group in groups.items()])
        text += "".join(_repeated(name, group) for name, group in groups.items())
        library = ctypes.CDLL(str(compile_shared({"k.c": text.encode()}, Path(folder) / "k.so", (NATIVE,))))
    for extent in layer.extents:
        names = {"open": "open", "static": f"of_{extent}"}
        calls = {own: getattr(library, f"repeat_{name}") for own, name in names.items()}
        count = _times(calls["static"], groups[names["static"]], extent)
        runners = {own: _bound(calls[own], groups[name], extent, count) for own, name in names.items()}
        times = interleaved(runners, seconds)
        yield extent, times["static"] / count, times["open"] / times["static"]


def table(seconds: float, layers: Sequence[Layer] = LAYERS) -> Table:
    """Return the table of all layers."""
    result = Table(title="Kernels of open extents: median of the thread's time over that of static kernels")
    for name in ("layer", "extent", "static, us", "ratio"):
        result.add_column(name, justify="left" if name == "layer" else "right")
    for layer in layers:
        for extent, static, ratio in ratios(layer, seconds):
            result.add_row(layer.name, str(extent), f"{static * 1e6:,.1f}", f"{ratio:.2f}")
    return result

"""Peak performance of this machine, and the performance of operators relative to it."""

from __future__ import annotations

import ctypes
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np

from mlfc.errors import OutputError
from mlfc.library.cache import find_entry, store_entry
from mlfc.library.toolchain import NATIVE, compile_cached
from mlfc.runtime.devices.device import cpu
from mlfc.runtime.executors.aot_module import new_pool
from mlfc.runtime.executors.profile import OperatorTime
from mlfc.support.dim_walk import dtype_of
from mlfc.support.platforms import host_arch
from mlfc.support.version import __version__
from mlfc.target.features import LEVELS, native_cpu

COMPUTE, MEMORY = "compute", "memory"
ABOVE_PEAK = {
    COMPUTE: "above 100 % of the peak of compute: MACs are those of the plain operator, and fast algorithms such as"
    " Winograd convolution multiply less often",
    MEMORY: "above 100 % of the peak of memory: bytes are those of the operator's tensors, which a nearer cache or"
    " registers hold in part",
}
"""Explanations of shares above 100 %, by bound."""
_SIZES = tuple(1 << power for power in range(14, 27))
_SUFFIX = ".json"
_TRIES = 7
_SECONDS = 3e-3  # of one measurement, long enough for two threads to start
_BYTE_DTYPES = ("int8", "uint8")
# multiply-accumulates per float32 one, in the same registers
_DENSITY = {"float64": 0.5, "int64": 0.5, "int16": 2.0, "uint16": 2.0}


@dataclass(frozen=True)
class Roofline:
    """Performance of an operator relative to the machine."""

    bound: str  # the limit that takes longer at peak rate: ``compute`` (multiply-accumulates) or ``memory`` (bytes)
    compute: float | None  # fractions of the machine's peak; None without multiply-accumulates or known bytes
    memory: float | None

    @property
    def share(self) -> float:
        """Fraction of the peak that is its bound; see `ABOVE_PEAK` for values above 1."""
        return (self.compute if self.bound == COMPUTE else self.memory) or 0.0

    def __str__(self) -> str:
        return f"{self.share:.1%} of the peak of {self.bound}"


@dataclass(frozen=True)
class Peaks:
    """Maximum total throughput of a number of threads, in multiply-accumulates and bytes per second."""

    processor: str
    threads: int
    float32: float
    int8: float  # maximum of any instructions: tiles if the processor and operating system support them
    bandwidth: tuple[tuple[int, float], ...]  # by the size of the working set, ascending

    def compute(self, dtype: str) -> float:
        """Return the multiply-accumulates per second of a dtype."""
        return self.int8 if dtype in _BYTE_DTYPES else self.float32 * _DENSITY.get(dtype, 1.0)

    def memory(self, nbytes: int) -> float:
        """Return the bytes per second for a working set of `nbytes`."""
        return next((rate for size, rate in self.bandwidth if nbytes <= size), self.bandwidth[-1][1])

    def limit(self, item: OperatorTime) -> Roofline | None:
        """Compare an operator with the machine; None if its time or its work is unknown."""
        if item.nanoseconds <= 0:
            return None
        seconds = item.nanoseconds * 1e-9
        dtype = dtype_of(item.tensors[0]) if item.tensors else "float32"
        compute = item.macs / self.compute(dtype) / seconds if item.macs else None
        memory = item.nbytes / self.memory(item.nbytes) / seconds if item.nbytes else None
        if compute is None and memory is None:
            return None
        return Roofline(COMPUTE if (compute or 0.0) >= (memory or 0.0) else MEMORY, compute, memory)

    def explanations(self, items: Iterable[OperatorTime]) -> list[str]:
        """Return the entries of `ABOVE_PEAK` for the operators that exceed a peak."""
        limits = [limit for item in items if (limit := self.limit(item)) is not None]
        return [text for bound, text in ABOVE_PEAK.items() if any(x.bound == bound and x.share > 1 for x in limits)]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)


def machine_peaks(threads: int = 1) -> Peaks:
    """Return this machine's peaks, measured in one second and cached; raise ToolchainError without a C compiler."""
    processor = cpu().name
    key = hashlib.sha256(f"{processor}\0{native_cpu()}\0{__version__}\0{threads}".encode()).hexdigest()[:40]
    found = find_entry(f"machine-{key}", _SUFFIX)
    if found is not None:
        with suppress(OSError, ValueError, TypeError, KeyError):
            known = json.loads(found.read_text(encoding="utf-8"))
            return Peaks(**{**known, "bandwidth": tuple((int(size), float(rate)) for size, rate in known["bandwidth"])})
    made = measured_peaks(processor, threads)
    with suppress(OutputError):
        store_entry(f"machine-{key}", _SUFFIX, json.dumps(made.to_json()).encode())
    return made


def measured_peaks(processor: str, threads: int) -> Peaks:
    """Measure the total throughput of `threads` threads: the best of several tries."""
    source = files("mlfc.library").joinpath("peak.c").read_bytes()
    arch = host_arch()
    choice = LEVELS.get(arch).choice if arch in LEVELS else ()
    code = {"peak.c": source, "levels.h": b"".join(path.read_bytes() for path in choice)}
    library = ctypes.CDLL(str(compile_cached(code, (NATIVE,), includes=["."])))
    for name in ("peak_float32_macs", "peak_int8_macs", "peak_tiles_macs", "peak_block_bytes"):
        getattr(library, name).restype = ctypes.c_int64
    with ThreadPoolExecutor(threads) as pool:
        rate = partial(_rate, pool, threads)
        float32 = rate(library.peak_float32_macs(), lambda _, steps: library.peak_float32(steps))
        byte_macs = library.peak_int8_macs()
        # without a byte product, int8 work uses the 16-bit multiply-add
        int8 = rate(byte_macs, lambda _, steps: library.peak_int8(steps)) if byte_macs else 2 * float32
        tile_macs = library.peak_tiles_macs()
        if tile_macs:
            int8 = max(int8, rate(tile_macs, lambda _, steps: library.peak_tiles(steps)))
        bandwidth = []
        for size in _SIZES:
            memories = [new_pool(size) for _ in range(threads)]
            for memory in memories:
                memory[:] = np.uint8(0)
            blocks = ctypes.c_int64(size // library.peak_block_bytes())

            def read(thread: int, rounds: ctypes.c_int64, memories: Any = memories, blocks: Any = blocks) -> None:
                library.peak_read(ctypes.c_void_p(memories[thread].ctypes.data), blocks, rounds)

            bandwidth.append((size * threads, rate(size, read)))
    return Peaks(processor, threads, float32, int8, tuple(bandwidth))


def _rate(pool: ThreadPoolExecutor, threads: int, amount: int, run: Callable[[int, ctypes.c_int64], object]) -> float:
    """Return the maximum rate per second if a thread does `amount` work in each step of `run`."""

    def timed(thread: int, steps: int) -> float:
        start = _clock()
        run(thread, ctypes.c_int64(steps))
        return max(_clock() - start, 1e-9)

    def together(steps: int) -> list[float]:
        return [done.result() for done in [pool.submit(timed, thread, steps) for thread in range(threads)]]

    steps = 1
    while min(together(steps)) < _SECONDS / 4:
        steps *= 4
    steps = max(1, int(steps * _SECONDS / max(min(together(steps)), 1e-9)))
    return max(sum(steps * amount / passed for passed in together(steps)) for _ in range(_TRIES))


# a thread's own time, unaffected by other load on the machine, unless its clock is too coarse
_clock = time.thread_time if time.get_clock_info("thread_time").resolution < 1e-5 else time.perf_counter

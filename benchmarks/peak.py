"""The core's limit in multiply-accumulates per second, measured by loops that touch no memory."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("peak.c")
CHAINS = 12


@dataclass(frozen=True)
class Peak:
    """Multiply-accumulates per second of one core."""

    float32: float
    int8: float

    @staticmethod
    def measured() -> Peak:
        """Build the loops with the C compiler on the PATH and take the best of several runs."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "peak.so"
            flags = ["-O3", "-march=native", "-shared", "-fPIC"]
            subprocess.run(["cc", *flags, str(SOURCE), "-o", str(path)], check=True)
            library = ctypes.CDLL(str(path))
        library.peak_float32.restype = ctypes.c_float
        float32 = _rate(library.peak_float32, library.peak_lanes() * CHAINS)
        vnni = " avx512_vnni " in Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else False
        # without a byte dot product, int8 work runs on the 16-bit multiply-add: twice the float rate
        return Peak(float32, _rate(library.peak_int8, 64 * CHAINS) if vnni else 2 * float32)


def _rate(run: object, macs_a_step: int) -> float:
    steps, best = 2_000_000, float("inf")
    for _ in range(5):
        start = time.thread_time()
        run(ctypes.c_int64(steps))  # type: ignore[operator]  # a ctypes function
        best = min(best, time.thread_time() - start)
    return steps * macs_a_step / best

"""Code linked by LLVM into this process, at any free addresses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mlfc
from tests.conftest import WATCHDOG

pytestmark = pytest.mark.usefixtures("quick_builds")

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.onnx"
# small holes in memory that are further apart than the reach of the processor's branch instructions
IN_SCATTERED_MEMORY = """
import ctypes, mmap, sys
from itertools import pairwise
import numpy as np
import mlfc

GAP, NOTHING, RESERVED, NEVER_OVER = 3 << 30, 0, 0x4022, 0x100000
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def reserve(address, nbytes):
    return libc.mmap(address, nbytes, NOTHING, RESERVED | (NEVER_OVER if address else 0), -1, 0)


def fill_holes():
    with open("/proc/self/maps") as lines:
        mapped = [[int(bound, 16) for bound in line.split()[0].split("-")] for line in lines]
    for (_, end), (start, _) in pairwise(mapped):
        if end < start < end + GAP:
            reserve(end, start - end)


factory = mlfc.load_module(sys.argv[1])
results = []
for pages in (0, 1, 2, 3):
    for count in range(1, 5):
        fill_holes()
        block = reserve(None, GAP)
        for index in range(count if pages else 0):
            libc.munmap(block + GAP - (2 * index + 1) * 16 * mmap.PAGESIZE, pages * mmap.PAGESIZE)
        module = mlfc.load_module(sys.argv[1])["default"](mlfc.runtime.cpu())
        module.set_input(0, np.linspace(0, 1, 64, dtype=np.float32).reshape(module.get_input(0).shape))
        module.run()
        results.append(module.get_output(0).tobytes())
print(len(results), len(set(results)))
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="where memory is free is read from /proc/self/maps, which only Linux has"
)
def test_sections_far_apart_do_not_end_the_process(tmp_path: Path) -> None:
    module, params = mlfc.import_model(DIGITS)
    archive = tmp_path / "digits.tar"
    mlfc.export_model_library_format(mlfc.build(module, "llvm", params), archive)
    done = subprocess.run(
        [sys.executable, "-c", IN_SCATTERED_MEMORY, str(archive)],
        check=False,
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
    )
    assert (done.returncode, done.stdout) == (0, "16 1\n"), done.stderr

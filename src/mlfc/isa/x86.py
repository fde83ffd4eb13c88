"""The levels of x86-64 and their vectors; VNNI is in `mlfc.isa.dot4`, tiles (AMX) in `mlfc.isa.amx`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mlfc.isa.amx import with_tiles
from mlfc.target.features import CPUS, LEVELS, LIBRARY_CPUS, VECTORS, Cpu, Features, Level, Levels, Vectors, VectorWidth

for _name in ("x86-64", "x86-64-v2"):
    CPUS.add(_name, Cpu(Features(winograd=True, prefetches=True)))
CPUS.add("x86-64-v3", Cpu(Features(winograd=True, prefetches=True, fixed_point_lanes=8)))
_WIDE = Features(vector_registers=32, winograd=True, prefetches=True, fixed_point_lanes=16, pushes_bytes=True)
_NARROW = Features(packing_registers=32, winograd=True, prefetches=True, compact=True)
_EIGHT = replace(_NARROW, fixed_point_lanes=8)
_TILES = with_tiles(_WIDE)
CPUS.add("x86-64-v4", Cpu(_WIDE))
CPUS.add("sapphirerapids", Cpu(_TILES, base="x86-64-v4"))
for _start in ("x86-64", "sapphirerapids"):
    LIBRARY_CPUS.add(_start, "x86_64")

_SSE = VectorWidth(16, "xmm")
_WIDER = (VectorWidth(64, "zmm", "defined(__AVX512F__)"), VectorWidth(32, "ymm", "defined(__AVX__)"))
VECTORS.add("x86-64", Vectors("x86_64", (*_WIDER, _SSE)))
VECTORS.add("x86", Vectors("i386|i686", (_SSE,)))

_VNNI, _AMX = ("-march=x86-64-v4", "-mavx512vnni"), ("-mamx-tile", "-mamx-int8", "-mamx-bf16")
_ZIG_AMX = "x86_64_v4+avx512vnni+amx_tile+amx_int8+amx_bf16"
# processors with AVX-512 but without VNNI, from 2017 to 2019, lower their frequency for it
_LEVELS = (
    Level("x86-64", _NARROW, ("-march=x86-64",), "x86_64", llvm=("x86-64", "")),
    Level("x86-64-v3", _EIGHT, ("-march=x86-64-v3",), "x86_64_v3", llvm=("x86-64-v3", "")),
    Level("x86-64-v4", _WIDE, _VNNI, "x86_64_v4+avx512vnni", llvm=("x86-64-v4", "+avx512vnni")),
    Level("sapphirerapids", _TILES, (*_VNNI, *_AMX), _ZIG_AMX, serves="templates"),
)
_HERE = Path(__file__).parent
_CHOICE = (_HERE / "amx" / "permission.h", _HERE / "x86_levels.h")


def _flags() -> set[str]:
    """Return Linux's names of the processor's features."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return set(next(line for line in lines if line.startswith("flags")).split())
    except (OSError, StopIteration):
        return set()


LEVELS.add("x86_64", Levels("defined(__x86_64__)", _LEVELS, _CHOICE, flags=_flags))

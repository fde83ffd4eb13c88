"""What goes with code whose kernels share their work by a function that the application hands in."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.codegen import Unit
from mlfc.codegen.c_interface import LICENCE
from mlfc.codegen.c_parallel import scratch_bytes
from mlfc.crt import crt_files
from mlfc.support.dim_estimates import most
from mlfc.support.parallel_functions import HEADERS, PARALLEL_FOR, SOURCE

_SIZES = "mlfc_parallel_sizes.h"


def parallel_files(units: Sequence[Unit]) -> dict[str, bytes]:
    """Return the function that kernels call, its header, and the size of a thread's scratch; nothing if none do."""
    shared = [unit for unit in units if unit.parallel == PARALLEL_FOR]
    if not shared:
        return {}
    header = HEADERS[PARALLEL_FOR]
    return {
        f"src/{SOURCE}": crt_files("parallel_for")[f"parallel_for/{SOURCE}"],
        f"include/{header}": crt_files("parallel")[f"parallel/{header}"],
        f"include/{_SIZES}": _sizes([most(nbytes) for unit in shared for nbytes in scratch_bytes(unit)]).encode(),
    }


def _sizes(known: Sequence[int | None]) -> str:
    lines = [f"/* {LICENCE} */", "#ifndef MLFC_PARALLEL_SIZES_H_", "#define MLFC_PARALLEL_SIZES_H_", ""]
    sizes = [nbytes for nbytes in known if nbytes is not None]
    if len(sizes) == len(known):
        lines += [
            "/*! \\brief Bytes of scratch, aligned to 64, that each thread needs beside the caller's */",
            f"#define MLFC_PARALLEL_SCRATCH_SIZE {max(sizes, default=0)}",
        ]
    else:
        lines.append("/* inputs without a bound decide how much scratch each thread needs beside the caller's */")
    return "\n".join([*lines, "", "#endif /* MLFC_PARALLEL_SIZES_H_ */", ""])

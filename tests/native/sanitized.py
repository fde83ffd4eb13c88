"""Run many kernels in one program under the sanitizers, on arrays of exactly their size."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.codegen.c import print_function
from mlfc.support import dtypes
from mlfc.tir.ir import PrimFunc
from tests.c_files import print_file

Array = npt.NDArray[Any]

CHECKS = (
    "-std=c99", "-O0", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-fsanitize=undefined,address,float-cast-overflow", "-fno-sanitize-recover=all",
    # Half of the time to compile, and redundant: an index that overflows is found as a signed overflow, and an access
    # outside a buffer by the address sanitizer.
    "-fno-sanitize=pointer-overflow",
)  # fmt: skip

_MAIN = """
#include <stdio.h>
#include <stdlib.h>

struct entry {
  int32_t (*run)(void **);
  int32_t inputs, output;
  const size_t *sizes;
};

%(wrappers)s

static const struct entry entries[] = {
%(entries)s
};

static void *block(size_t size) {
  void *found = NULL;
  if (posix_memalign(&found, 64, size) != 0) {
    exit(3);
  }
  memset(found, 0xa5, size);
  return found;
}

int main(int argc, char **argv) {
  FILE *data = fopen(argv[1], "rb");
  FILE *results = fopen(argv[2], "wb");
  uint32_t number;
  (void)argc;
  while (fread(&number, sizeof number, 1, data) == 1) { /* the runs that are written tell which one ended it */
    const struct entry *entry = &entries[number];
    void *buffers[64];
    int32_t position;
    for (position = 0; entry->sizes[position] != (size_t)-1; position++) {
      const size_t size = entry->sizes[position];
      buffers[position] = block(size);
      if (position < entry->inputs && fread(buffers[position], 1, size, data) != size) {
        return 4;
      }
    }
    if (entry->run(buffers) != 0) {
      return 5;
    }
    fwrite(buffers[entry->output], 1, entry->sizes[entry->output], results);
    fflush(results);
    for (position = 0; entry->sizes[position] != (size_t)-1; position++) {
      free(buffers[position]);
    }
  }
  fclose(data);
  return fclose(results);
}
"""


@dataclass(frozen=True, eq=False)
class Job:
    """A kernel, and its inputs and constants for each run."""

    label: str
    prim: PrimFunc
    runs: Sequence[Sequence[Array]]
    is_small: bool = False


def _wrapper(number: int, prim: PrimFunc) -> tuple[str, str]:
    buffers = [*prim.params]
    sizes = [buffer.nbytes for buffer in buffers]
    arguments = [f"buffers[{position}]" for position in range(len(sizes))]
    if prim.scratch:
        arguments.append(f"buffers[{len(sizes)}]")
        sizes.append(prim.scratch_bytes)
    listed = ", ".join(f"{size}U" for size in sizes)
    text = f"""\
static const size_t sizes_{number}[] = {{{listed}, (size_t)-1}};
static int32_t run_{number}(void **buffers) {{
  return kernel_{number}({", ".join(arguments)});
}}"""
    return text, f"  {{run_{number}, {len(buffers) - 1}, {len(buffers) - 1}, sizes_{number}}},"


def run_sanitized(jobs: Sequence[Job], folder: Path, compiler: Sequence[str]) -> tuple[list[list[Array]], str]:
    """Return the outputs of every run of every job, and the sanitizers' report with the label of the job."""
    program = _built(jobs, folder, compiler)
    with (folder / "data.bin").open("wb") as data:
        for number, job in enumerate(jobs):
            for arrays in job.runs:
                data.write(np.uint32(number).tobytes())
                data.writelines(np.ascontiguousarray(array).tobytes() for array in arrays)
    done = subprocess.run(
        [str(program), str(folder / "data.bin"), str(folder / "results.bin")], stderr=subprocess.PIPE, text=True,
        check=False,
    )  # fmt: skip
    raw, place = (folder / "results.bin").read_bytes(), 0
    results: list[list[Array]] = []
    stopped = ""
    for job in jobs:
        results.append([])
        output, kind = job.prim.output, dtypes.to_numpy(job.prim.output.dtype)
        for _ in job.runs:
            whole = raw[place : place + output.nbytes]
            place += output.nbytes
            if len(whole) == output.nbytes:
                results[-1].append(np.frombuffer(whole, kind).reshape(output.shape))
            stopped = stopped or (job.label if len(whole) < output.nbytes else "")
    return results, f"{stopped}: status {done.returncode}\n{done.stderr}" if done.returncode or done.stderr else ""


def _built(jobs: Sequence[Job], folder: Path, compiler: Sequence[str]) -> Path:
    functions = [print_function(job.prim, f"kernel_{number}") for number, job in enumerate(jobs)]
    wrappers, entries = zip(*(_wrapper(number, job.prim) for number, job in enumerate(jobs)), strict=True)
    source = "#define _POSIX_C_SOURCE 200112L\n" + print_file(functions)
    source += _MAIN % {"wrappers": "\n".join(wrappers), "entries": "\n".join(entries)}
    (folder / "kernels.c").write_text(source)
    program = folder / "kernels"
    subprocess.run([*compiler, *CHECKS, str(folder / "kernels.c"), "-o", str(program), "-lm"], check=True)
    return program

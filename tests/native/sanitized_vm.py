"""Run dynamic models in one program under the sanitizers, including runs with too little memory."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc import archive
from mlfc.factory import Factory
from mlfc.support import dtypes
from mlfc.support.content import Data, chunks_of
from mlfc.support.executable import DTYPES, MAX_RANK, NUMBERED_DTYPES, release_symbol, run_symbol
from tests.native.sanitized import CHECKS

Array = npt.NDArray[Any]

_MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

%(includes)s

struct model {
  int32_t (*run)(const mlfc_vm_host *, const mlfc_vm_tensor *, mlfc_vm_tensor *, void *, int64_t, mlfc_vm_error *);
  int32_t (*release)(const mlfc_vm_host *, mlfc_vm_tensor *, int32_t);
  int64_t work_bytes;
  int32_t outputs;
};

static const struct model models[] = {
%(models)s
};

static const size_t widths[] = {%(widths)s};

#ifndef MEMORY_LIMIT
#define MEMORY_LIMIT (INT64_C(1) << 28)
#endif

enum { HEADER = 32, MOST_FAILURES = 40 };

/* Memory of the run, and how many allocations succeed; -1 for all. */
static int64_t live, left = -1;

static void *block(size_t size) {
  void *found = NULL;
  if (posix_memalign(&found, 64, size) != 0) {
    exit(3);
  }
  memset(found, 0xa5, size);
  return found;
}

/* Of a tensor's memory, everything behind its bytes is cut off: its block begins where the bytes behind the header are
 * aligned. Lists of 4, 12, 28, ... tensors get what they ask for. */
static void *allocate(int64_t bytes) {
  const int64_t list = bytes + 512;
  const size_t size = (size_t)(bytes - (bytes >= 512 && (list & (list - 1)) == 0 ? 0 : 64));
  if (left == 0) {
    return NULL;
  }
  left -= left > 0;
  live++;
  return (uint8_t *)block(HEADER + size) + HEADER;
}

static void release(void *memory) {
  live--;
  free((uint8_t *)memory - HEADER);
}

static void get(void *to, size_t bytes, FILE *data) {
  if (fread(to, 1, bytes, data) != bytes) {
    exit(4);
  }
}

static size_t size_of(const mlfc_vm_tensor *tensor) {
  size_t size = widths[tensor->dtype];
  int axis;
  for (axis = 0; axis < tensor->rank; axis++) {
    size *= (size_t)tensor->extents[axis];
  }
  return size;
}

/* Runs a model on the inputs that follow, and writes its status and outputs. */
static void run(const struct model *model, uint32_t count, FILE *data, FILE *results) {
  mlfc_vm_host host = {0};
  mlfc_vm_tensor inputs[16], outputs[64];
  mlfc_vm_error error;
  int64_t allowed;
  int32_t position, produced, status;
  uint8_t *work = NULL;
  host.allocate = allocate;
  host.release = release;
  host.memory_limit = MEMORY_LIMIT;
  host.turn_limit = 100000;
  memset(inputs, 0, sizeof inputs);
  memset(outputs, 0xa5, sizeof outputs);
  for (position = 0; position < (int32_t)count; position++) {
    mlfc_vm_tensor *input = &inputs[position];
    get(&input->dtype, 1, data);
    get(&input->rank, 1, data);
    get(input->extents, sizeof input->extents, data);
    input->device = MLFC_VM_CPU;
    input->data = block(size_of(input));
    get(input->data, size_of(input), data);
  }
  if (model->work_bytes > 0) { /* at the address that leaves the fewest bytes behind the arena */
    work = block((size_t)model->work_bytes + 1);
  }
  for (allowed = 0; model->release != NULL && allowed < MOST_FAILURES; allowed++) {
    left = allowed;
    status = model->run(&host, inputs, outputs, NULL, 0, &error);
    if (status != MLFC_VM_ALLOCATE) {
      if (status == MLFC_VM_OK) {
        model->release(&host, outputs, model->outputs);
      }
      allowed = MOST_FAILURES;
    }
    if (live != 0 || error.code != status) {
      fprintf(stderr, "%%d allocations are left after status %%d, %%d\\n", (int)live, (int)status, (int)error.code);
      exit(6);
    }
  }
  left = -1;
  status = model->run(&host, inputs, outputs, work == NULL ? NULL : work + 1, model->work_bytes, &error);
  produced = status == MLFC_VM_OK ? model->outputs : 0;
  fwrite(&status, sizeof status, 1, results);
  fwrite(&produced, sizeof produced, 1, results);
  for (position = 0; position < produced; position++) {
    const mlfc_vm_tensor *output = &outputs[position];
    fwrite(&output->dtype, 1, 1, results);
    fwrite(&output->rank, 1, 1, results);
    fwrite(output->extents, sizeof output->extents, 1, results);
    fwrite(output->data, 1, size_of(output), results);
  }
  fflush(results); /* the runs that are written tell which one ended the program */
  if (produced > 0 && model->release != NULL) {
    model->release(&host, outputs, produced);
  }
  if (live != 0) {
    fprintf(stderr, "%%d allocations are left after status %%d\\n", (int)live, (int)status);
    exit(7);
  }
  for (position = 0; position < (int32_t)count; position++) {
    free(inputs[position].data);
  }
  free(work);
}

int main(int argc, char **argv) {
  FILE *data = fopen(argv[1], "rb");
  FILE *results = fopen(argv[2], "wb");
  uint32_t head[2];
  (void)argc;
  while (fread(head, sizeof head, 1, data) == 1) {
    run(&models[head[0]], head[1], data, results);
  }
  fclose(data);
  return fclose(results);
}
"""


@dataclass(frozen=True, eq=False)
class VmJob:
    """A dynamic model under a unique name, and the inputs of each of its runs."""

    label: str
    factory: Factory
    runs: Sequence[Sequence[Array]]


@dataclass(frozen=True, eq=False)
class Ran:
    """The result of a run: its status, 0 on success, and the outputs."""

    status: int
    outputs: tuple[Array, ...]


def run_models(jobs: Sequence[VmJob], folder: Path, compiler: Sequence[str]) -> tuple[list[list[Ran]], str]:
    """Return the results of every job's runs, and the sanitizers' report with the label of the job."""
    program = _built(jobs, folder, compiler)
    with (folder / "data.bin").open("wb") as data:
        for number, job in enumerate(jobs):
            for arrays in job.runs:
                data.write(np.array([number, len(arrays)], np.uint32).tobytes())
                data.writelines(map(_record, arrays))
    done = subprocess.run(
        [str(program), str(folder / "data.bin"), str(folder / "results.bin")], stderr=subprocess.PIPE, text=True,
        errors="replace", check=False,
    )  # fmt: skip
    found = _ran((folder / "results.bin").read_bytes())
    results = [[ran for _, ran in zip(job.runs, found, strict=False)] for job in jobs]
    stopped = next((job.label for job, ran in zip(jobs, results, strict=True) if len(ran) < len(job.runs)), "the end")
    return results, f"{stopped}: status {done.returncode}\n{done.stderr}" if done.returncode or done.stderr else ""


def _record(array: Array) -> bytes:
    extents = np.zeros(MAX_RANK, np.int64)
    extents[: array.ndim] = array.shape
    head = bytes([NUMBERED_DTYPES[array.dtype.name], array.ndim])
    return head + extents.tobytes() + np.ascontiguousarray(array).tobytes()


def _ran(raw: bytes) -> Iterator[Ran]:
    at = 0

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        return raw[at - count : at]

    while at + 8 <= len(raw):
        status, count = np.frombuffer(take(8), np.int32)
        outputs = []
        for _ in range(count):
            dtype, rank = take(2)
            shape = np.frombuffer(take(8 * MAX_RANK), np.int64)[:rank]
            kind = np.dtype(dtypes.to_numpy(DTYPES[dtype]))
            outputs.append(np.frombuffer(take(kind.itemsize * int(shape.prod())), kind).reshape(shape))
        yield Ran(int(status), tuple(outputs))


def _built(jobs: Sequence[VmJob], folder: Path, compiler: Sequence[str]) -> Path:
    files: Mapping[str, Data] = archive.source_folder([job.factory for job in jobs])
    names = [job.factory.module_name for job in jobs]
    texts = {
        "includes": "\n".join(f'#include "tvmgen_{name}.h"' for name in names),
        "models": "\n".join(f"  {_entry(job.factory)}," for job in jobs),
        "widths": ", ".join(str(dtypes.nbytes(dtype)) for dtype in DTYPES),
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.writelines(chunks_of(content))
    main = folder / "main.c"
    main.write_text("#define _POSIX_C_SOURCE 200112L\n" + _MAIN % texts)
    sources = [main, *sorted((folder / "src").glob("*.[cS]"))]
    includes = [f"-I{place}" for place in (folder / "include", folder / "runtime/include")]
    program = folder / "models"
    subprocess.run([*compiler, *CHECKS, *includes, *map(str, sources), "-o", str(program), "-lm"], check=True)
    return program


def _entry(factory: Factory) -> str:
    executable = factory.unit.executable
    assert executable is not None
    release = "NULL" if executable.is_bounded else release_symbol(executable.name)
    return f"{{{run_symbol(executable.name)}, {release}, {executable.work_bytes or 0}, {len(executable.outputs)}}}"

"""Running whole models of open extents in one program under the sanitizers: kernels, launchers and the interpreter."""

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
from mlfc.support.bytecode.instructions import DTYPES, MAX_RANK, NUMBERED_DTYPES
from mlfc.support.content import Data, chunks_of
from tests.native.sanitized import CHECKS

Array = npt.NDArray[Any]

_MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"
#include "mlfc_vm.h"
%(includes)s

struct model {
  const uint8_t *file;
  size_t bytes;
  const mlfc_vm_code *code;
};

static const struct model models[] = {
%(models)s
};

static const size_t widths[] = {%(widths)s};

static void *block(size_t size) {
  void *found = NULL;
  if (posix_memalign(&found, 64, size) != 0) {
    exit(3);
  }
  return found;
}

/* Data of the interpreter's blocks begins where its address allows: here so late that 7 bytes are left at the end.
 * Those are cut off. Lists need all they ask for, which is a multiple of 8. */
static size_t front(void) { return (64 + 8 - sizeof(struct vm_block) %% 64) %% 64; }

static void *allocate(void *context, size_t bytes) {
  const size_t size = front() + bytes - (bytes %% 8 == 0 ? 0 : 7);
  uint8_t *found = block(size);
  (void)context;
  memset(found, 0, size);
  return found + front();
}

static void release(void *context, void *memory) {
  (void)context;
  free((uint8_t *)memory - front());
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

/* Runs a model on the inputs that follow, and writes its status and what it gives. */
static void run(const struct model *model, uint32_t count, FILE *data, FILE *results) {
  static const mlfc_vm_host host = {allocate, release, NULL, NULL, INT64_C(1) << 28, 100000, 64, NULL};
  mlfc_vm_tensor inputs[16], outputs[64];
  uint8_t *file = block(model->bytes);
  void *work;
  size_t work_bytes;
  uint32_t position, produced = 0;
  int32_t status;
  mlfc_vm vm;
  mlfc_vm_error error;
  memcpy(file, model->file, model->bytes);
  memset(inputs, 0, sizeof inputs);
  for (position = 0; position < count; position++) {
    mlfc_vm_tensor *input = &inputs[position];
    get(&input->dtype, 1, data);
    get(&input->rank, 1, data);
    get(input->extents, sizeof input->extents, data);
    input->data = block(size_of(input));
    get(input->data, size_of(input), data);
  }
  if (mlfc_vm_load(&vm, file, model->bytes, model->code, &error) != MLFC_VM_OK) {
    exit(5);
  }
  work_bytes = mlfc_vm_work_bytes(&vm, 64);
  work = block(work_bytes);
  memset(work, 0xa5, work_bytes);
  produced = mlfc_vm_result_count(&vm, 0);
  status = mlfc_vm_run(&vm, 0, inputs, count, outputs, produced, work, work_bytes, &host, &error);
  produced = status == MLFC_VM_OK ? produced : 0;
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
  if (produced > 0) {
    mlfc_vm_release(&host, outputs, produced);
  }
  for (position = 0; position < count; position++) {
    free(inputs[position].data);
  }
  free(work);
  free(file);
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
    """A model built for the virtual machine under a name of its own, and the inputs of each of its runs."""

    label: str
    factory: Factory
    runs: Sequence[Sequence[Array]]


@dataclass(frozen=True, eq=False)
class Ran:
    """What a run gave: the interpreter's status, 0 where it succeeded, and the outputs."""

    status: int
    outputs: tuple[Array, ...]


def run_models(jobs: Sequence[VmJob], folder: Path, compiler: Sequence[str]) -> tuple[list[list[Ran]], str]:
    """Return what every run of every job gave, and what the sanitizers said, with the job that it was said of."""
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
        "models": "\n".join(
            f"  {{tvmgen_{name}_vm_bytecode, sizeof tvmgen_{name}_vm_bytecode, &tvmgen_{name}_vm_code}},"
            for name in names
        ),
        "widths": ", ".join(str(dtypes.nbytes(dtype)) for dtype in DTYPES),
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.writelines(chunks_of(content))
    main = folder / "main.c"
    main.write_text("#define _POSIX_C_SOURCE 200112L\n" + _MAIN % texts)
    vm = folder / "runtime/src/runtime/crt/vm"
    sources = [main, *sorted((folder / "src").glob("*.[cS]")), *sorted(vm.glob("*.c"))]
    includes = [f"-I{place}" for place in (folder / "include", folder / "runtime/include", vm)]
    program = folder / "models"
    subprocess.run([*compiler, *CHECKS, *includes, *map(str, sources), "-o", str(program), "-lm"], check=True)
    return program

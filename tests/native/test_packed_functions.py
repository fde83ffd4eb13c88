"""Packed functions called from C: they compute, and reject invalid arguments with a message."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mlfc import memory
from mlfc.codegen import GeneratedCode, Unit, generate
from mlfc.crt import crt_files
from mlfc.support.content import to_bytes, write_data
from tests.native.crt_executor import DLTensor
from tests.native.programs import chain
from tests.native.test_generated_module import WARNINGS, compiler
from tests.shared_library import compile_shared

SIZE = 40
# minimal versions of the runtime functions that generated code calls
BACKEND = b"""
#include <stdlib.h>
#include <string.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/c_runtime_api.h>
static char text[256];
static int allocated, refuse;
void TVMAPISetLastError(const char *message) { strncpy(text, message, sizeof text - 1); }
const char *last_error(void) { return text; }
int blocks(void) { return allocated; }
void refuse_memory(int on) { refuse = on; }
void *TVMBackendAllocWorkspace(int device_type, int device_id, uint64_t nbytes, int code, int bits) {
  (void)device_type; (void)device_id; (void)code; (void)bits;
  if (refuse) return NULL;
  ++allocated;
  return malloc((size_t)nbytes);
}
int TVMBackendFreeWorkspace(int device_type, int device_id, void *ptr) {
  (void)device_type; (void)device_id;
  --allocated;
  free(ptr);
  return 0;
}
"""


def tensor(array: np.ndarray) -> DLTensor:
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    made = DLTensor(array.ctypes.data, 1, 0, array.ndim, 2, 32, 1, shape, None, 0)
    made.kept = (array, shape)
    return made


def graph_code(size: int = SIZE) -> GeneratedCode:
    program, _ = chain(size)
    return generate(Unit(program, memory.plan(program), "chain", "graph"))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    headers = {f"crt/{path}": data for path, data in crt_files().items() if path.endswith(".h")}
    folder = tmp_path_factory.mktemp("packed")
    files = {**graph_code().files, "src/backend.c": BACKEND, **headers}
    include = folder / "crt"
    for path, data in headers.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_data(folder / path, data)
    built = compile_shared(files, folder / "chain.so", [f"-I{include}/include"])
    loaded = ctypes.CDLL(str(built))
    loaded.last_error.restype = ctypes.c_char_p
    return loaded


def call(library: ctypes.CDLL, name: str, tensors: list[DLTensor], codes: list[int] | None = None) -> tuple[int, str]:
    values = (ctypes.c_void_p * len(tensors))(*(ctypes.addressof(item) for item in tensors))
    kinds = (ctypes.c_int * len(tensors))(*(codes or [7] * len(tensors)))
    status = getattr(library, name)(values, kinds, len(tensors), None, None, None)
    return status, library.last_error().decode()


ADD, TURN = "tvmgen_chain_fused_add", "tvmgen_chain_fused_reverse"


@pytest.mark.parametrize("code", [3, 7, 13])
def test_tensors_are_taken_under_every_code(library: ctypes.CDLL, code: int) -> None:
    rng = np.random.default_rng(code)
    left, right = rng.standard_normal((2, SIZE)).astype(np.float32)
    result = np.empty((4, SIZE // 4), np.float32)  # another shape of the same size, as views have
    status, _ = call(library, ADD, [tensor(left), tensor(right), tensor(result)], [code] * 3)
    assert status == 0
    np.testing.assert_array_equal(result.reshape(-1), left + right)


def test_byte_offset_counts(library: ctypes.CDLL) -> None:
    data = np.arange(SIZE + 3, dtype=np.float32)
    result = np.empty(SIZE, np.float32)
    moved = tensor(data[:SIZE])
    moved.byte_offset = 12
    assert call(library, ADD, [moved, tensor(data[:SIZE]), tensor(result)])[0] == 0
    np.testing.assert_array_equal(result, data[3:] + data[:SIZE])


def test_scratch_is_given_back(library: ctypes.CDLL) -> None:
    data, result = np.arange(SIZE, dtype=np.float32), np.empty(SIZE, np.float32)
    assert call(library, TURN, [tensor(data), tensor(result)])[0] == 0
    np.testing.assert_array_equal(result, data)
    assert library.blocks() == 0
    library.refuse_memory(1)
    status, text = call(library, TURN, [tensor(data), tensor(result)])
    library.refuse_memory(0)
    assert (status, text) == (-1, f"{TURN}: no memory for {SIZE * 4} bytes of scratch")


def broken(**fields: object) -> DLTensor:
    made = tensor(np.zeros(SIZE, np.float32))
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("fault", "codes", "text"),
    [
        (broken(), [7, 0, 7], "Expect arg[1] to be pointer"),
        (broken(shape=(ctypes.c_int64 * 1)(SIZE - 1)), None, "arg[1] has another number of elements"),
        (broken(shape=(ctypes.c_int64 * 2)(-1, -SIZE), ndim=1), None, "arg[1] has another number of elements"),
        (broken(code=0), None, "arg[1] has another dtype"),
        (broken(bits=64), None, "arg[1] has another dtype"),
        (broken(lanes=2), None, "arg[1] has another dtype"),
        (broken(strides=(ctypes.c_int64 * 1)(2)), None, "arg[1] is expected to be a compact array"),
        (broken(device_type=2), None, "arg[1] is not in the memory of the CPU"),
        (broken(data=None), None, "arg[1] is not in the memory of the CPU"),
        (broken(shape=None), None, "arg[1] has no shape"),
        (broken(byte_offset=2), None, "arg[1] is not aligned to its elements"),
    ],
)
def test_wrong_arguments_are_refused(library: ctypes.CDLL, fault: DLTensor, codes: list[int] | None, text: str) -> None:
    good = tensor(np.zeros(SIZE, np.float32))
    result = np.full(SIZE, 7, np.float32)
    assert call(library, ADD, [good, fault, tensor(result)], codes) == (-1, f"{ADD}: {text}")
    assert (result == 7).all()


def test_wrong_number_of_arguments_is_refused(library: ctypes.CDLL) -> None:
    good = tensor(np.zeros(SIZE, np.float32))
    assert call(library, ADD, [good] * 12) == (-1, f"{ADD}: num_args should be 3")


def test_lists_that_are_not_there_are_refused(library: ctypes.CDLL) -> None:
    good, result = (tensor(np.zeros(SIZE, np.float32)) for _ in range(2))
    values = (ctypes.c_void_p * 3)(*(ctypes.addressof(item) for item in (good, good, result)))
    for lists in ((None, (ctypes.c_int * 3)(7, 7, 7)), (values, None)):
        assert library[ADD](*lists, 3, None, None, None) == -1
        assert library.last_error().decode() == f"{ADD}: Expect arg[0] to be pointer"


@pytest.mark.parametrize(
    ("name", "flags"),
    [("gcc", []), ("gcc", ["-m32"]), ("clang", []), ("arm-none-eabi-gcc", ["-mcpu=cortex-m4"])],
    ids=["gcc", "gcc-m32", "clang", "cortex-m4"],
)
def test_no_warnings(name: str, flags: list[str], tmp_path: Path) -> None:
    for path, data in {**graph_code().files, **crt_files()}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        write_data(tmp_path / path, data)
    for path in sorted(graph_code().files):
        command = [*compiler(name), *flags, "-O2", *WARNINGS, f"-I{tmp_path}/include", "-c", str(tmp_path / path)]
        result = subprocess.run([*command, "-o", f"{tmp_path}/it.o"], check=False, capture_output=True, text=True)
        assert (result.returncode, result.stderr) == (0, "")


def test_table_counts_and_names_the_functions() -> None:
    text = to_bytes(graph_code().files["src/chain_lib0.c"]).decode()
    assert "{(char)2, (char)0}" in text
    assert text.index(f'"{ADD}"') < text.index(f'"{TURN}"')

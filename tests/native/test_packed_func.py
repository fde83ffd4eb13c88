"""Packed functions are called with the codes and values of the classic ABI, as reported by C functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlfc.errors import InputError, RunError, ToolchainError
from mlfc.library.build import build_library
from mlfc.runtime import LibraryModule, cpu
from tests.native.test_aot_module import OnlyDlpack

pytestmark = pytest.mark.usefixtures("quick_builds")

SOURCE = rb"""
#include <string.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/c_runtime_api.h>
#include <tvm/runtime/crt/module.h>
#define ARGUMENTS TVMValue *args, int *codes, int count, TVMValue *ret, int *ret_code, void *handle
#define UNUSED (void)args; (void)codes; (void)count; (void)ret; (void)ret_code; (void)handle

/* the codes, read as decimal digits two each */
TVM_DLL int codes_of(ARGUMENTS) {
  int64_t all = 1;
  UNUSED;
  for (int i = 0; i < count; ++i) all = all * 100 + codes[i];
  ret->v_int64 = all;
  *ret_code = kTVMArgInt;
  return 0;
}
TVM_DLL int sum(ARGUMENTS) {
  UNUSED;
  ret->v_float64 = (double)args[0].v_int64 + args[1].v_float64 + (double)strlen(args[2].v_str) +
                   (double)((TVMByteArray *)args[3].v_handle)->size;
  *ret_code = kTVMArgFloat;
  return 0;
}
TVM_DLL int echo(ARGUMENTS) {
  UNUSED;
  *ret = args[0];
  *ret_code = codes[0];
  return 0;
}
/* into an int64 array: ndim; code, bits and lanes; extents; strides, or -1 where there are none or they are those of a
   compact array, which depends on numpy's version; device and offset */
TVM_DLL int describe(ARGUMENTS) {
  const DLTensor *tensor = (const DLTensor *)args[0].v_handle;
  const DLTensor *target = (const DLTensor *)args[1].v_handle;
  int64_t *out = (int64_t *)target->data;
  UNUSED;
  *out++ = tensor->ndim;
  *out++ = tensor->dtype.code;
  *out++ = tensor->dtype.bits;
  *out++ = tensor->dtype.lanes;
  for (int i = 0; i < tensor->ndim; ++i) *out++ = tensor->shape[i];
  int64_t stride = 1;
  int compact = 1;
  for (int i = tensor->ndim - 1; tensor->strides != NULL && i >= 0; --i) {
    compact = compact && tensor->strides[i] == stride;
    stride *= tensor->shape[i];
  }
  if (compact) *out++ = -1;
  else for (int i = 0; i < tensor->ndim; ++i) *out++ = tensor->strides[i];
  *out++ = tensor->device.device_type;
  *out++ = (int64_t)tensor->byte_offset;
  return 0;
}
TVM_DLL int twice(ARGUMENTS) {
  const DLTensor *tensor = (const DLTensor *)args[0].v_handle;
  UNUSED;
  for (int64_t i = 0; i < tensor->shape[0]; ++i) ((float *)tensor->data)[i] *= 2;
  return 0;
}
TVM_DLL int fails(ARGUMENTS) {
  UNUSED;
  TVMAPISetLastError("the oven is cold");
  return -3;
}
static int hidden(ARGUMENTS) {
  UNUSED;
  ret->v_int64 = 42;
  *ret_code = kTVMArgInt;
  return 0;
}
static const TVMBackendPackedCFunc functions[] = {twice, hidden};
static const TVMFuncRegistry registry = {"\002\000twice\000secret\000", functions};
static const TVMModule module = {&registry};
const TVMModule *TVMSystemLibEntryPoint(void) { return &module; }
"""


@pytest.fixture(scope="module")
def library() -> LibraryModule:
    return LibraryModule(build_library({"src/f.c": SOURCE}))


def test_arguments_carry_their_codes(library: LibraryModule) -> None:
    array = np.zeros(1, np.float32)
    # int, float, null, device, tensor, string, bytes as the ABI numbers them
    assert library["codes_of"](7, 1.5, None, cpu(0), array, "text", b"raw") == 1_00_02_04_06_07_11_12
    assert library["codes_of"](True, np.int8(1), np.float32(1), OnlyDlpack(array)) == 1_00_00_02_07
    assert library["codes_of"]() == 1
    assert library["sum"](40, 0.5, "\u00fc!", b"a\0b") == 40 + 0.5 + 3 + 3


@pytest.mark.parametrize("value", [0, -5, (1 << 63) - 1, 2.5, float("inf"), "word", None])
def test_results_come_back(library: LibraryModule, value: Any) -> None:
    result = library["echo"](value)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((2, 3), np.int8), [2, 0, 8, 1, 2, 3, -1]),
        (np.zeros((4,), np.uint16), [1, 1, 16, 1, 4, -1]),
        (np.zeros((), np.float64), [0, 2, 64, 1, -1]),
        (np.zeros((1, 5), np.bool_), [2, 1, 1, 1, 1, 5, -1]),
        (np.zeros((4, 6), np.float32)[::2, ::3], [2, 2, 32, 1, 2, 2, 12, 3]),
    ],
)
def test_arrays_are_tensors(library: LibraryModule, array: Any, expected: list[int]) -> None:
    found = np.zeros(12, np.int64)
    library["describe"](array, found)
    assert found[: len(expected) + 2].tolist() == [*expected, 1, 0]


def test_arrays_are_passed_where_they_lie(library: LibraryModule) -> None:
    array = np.arange(3, dtype=np.float32)
    library["twice"](array)
    library["twice"](OnlyDlpack(array))
    np.testing.assert_array_equal(array, [0, 4, 8])


def test_what_is_only_to_be_read_stays_as_it_is(library: LibraryModule) -> None:
    text = bytes(12)
    for array in (np.frombuffer(text, np.float32), np.zeros(3, bool)):
        array.flags.writeable = False
        with pytest.raises(InputError, match=r"^twice: argument 0 is a read-only array"):
            library["twice"](array)
    assert text == bytes(12)


def test_a_failure_has_the_functions_name_and_text(library: LibraryModule) -> None:
    with pytest.raises(RunError, match=r"^fails: it failed with status -3: the oven is cold$"):
        library["fails"]()


@pytest.mark.parametrize(
    ("argument", "message"),
    [(1 << 63, "does not fit 64 bits"), ([1], "is a list"), (np.zeros(1, object), "arrays of object")],
)
def test_what_has_no_form_is_refused(library: LibraryModule, argument: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        library["echo"](argument)


def test_functions_are_found_by_symbol_and_in_the_registry(library: LibraryModule) -> None:
    assert library.registered_names == ("twice", "secret")
    assert library["secret"]() == 42
    assert not library.implements_function("hidden")
    assert not library.implements_function("")
    assert not library.implements_function("a\0b")


def test_a_registry_of_tvm_0_8_counts_with_one_byte(tmp_path: Path) -> None:
    source = SOURCE.replace(rb"\002\000twice", rb"\002twice")
    assert LibraryModule(build_library({"src/f.c": source})).registered_names == ("twice", "secret")


def test_a_library_that_does_not_load_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(b"no library")
    with pytest.raises(ToolchainError, match=r"x\.so: the compiled code does not load"):
        LibraryModule(tmp_path / "x.so")

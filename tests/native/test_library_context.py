"""Library code finds functions of imported modules and of this process, and receives their errors unchanged."""

from __future__ import annotations

import gc
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlfc.errors import InputError, OptionError, RunError
from mlfc.library.build import build_library, runtime_files
from mlfc.runtime import LibraryModule, Module, get_global_func, register_global_func
from mlfc.runtime.ffi.library_names import library_in_memory
from mlfc.runtime.ffi.native_code import PackedFunc
from mlfc.runtime.libraries.library_context import CONTEXT
from tests.conftest import need
from tests.native.test_abi_entries import exported
from tests.shared_library import compile_shared

pytestmark = pytest.mark.usefixtures("quick_builds")

SOURCE = rb"""
#include <mlfc_abi.h>
#include <tvm/runtime/c_backend_api.h>
#define ARGUMENTS TVMValue *args, int *codes, int count, TVMValue *ret, int *ret_code, void *handle
#define UNUSED (void)args; (void)codes; (void)count; (void)ret; (void)ret_code; (void)handle

/* calls the function named by the first argument on the others */
TVM_DLL int call(ARGUMENTS) {
  TVMFunctionHandle function;
  UNUSED;
  if (TVMBackendGetFuncFromEnv(__tvm_module_ctx, args[0].v_str, &function) != 0) return -1;
  return TVMFuncCall(function, args + 1, codes + 1, count - 1, ret, ret_code);
}
/* as `call`, but a failure is not one of its own */
TVM_DLL int try_to_call(ARGUMENTS) {
  if (call(args, codes, count, ret, ret_code, handle) != 0) ret->v_int64 = -1;
  *ret_code = kTVMArgInt;
  return 0;
}
TVM_DLL int fail(ARGUMENTS) {
  UNUSED;
  TVMAPISetLastError("of its own");
  return -1;
}
TVM_DLL int works(ARGUMENTS) {
  void *memory = TVMBackendAllocWorkspace(kDLCPU, 0, 100, kDLInt, 8);
  UNUSED;
  return memory == NULL ? -1 : TVMBackendFreeWorkspace(kDLCPU, 0, memory);
}
"""


class Kitchen(Module):
    """Python functions as a module that library code imports."""

    type_key = "kitchen"

    def __init__(self, **functions: Any) -> None:
        super().__init__()
        self._functions = functions

    def find_function(self, name: str) -> Any:
        return self._functions.get(name)


@pytest.fixture(scope="module")
def path() -> Path:
    return build_library({"src/caller.c": SOURCE}, ("-O1",))


@pytest.fixture
def library(path: Path) -> LibraryModule:
    return LibraryModule(path)


@pytest.fixture
def registered(request: pytest.FixtureRequest) -> str:
    """Return a name for a global function that no other test uses."""
    return f"test.{request.node.name}"


def test_arguments_and_results_pass_as_they_are(library: LibraryModule, registered: str) -> None:
    seen: list[Any] = []

    def cook(*args: Any) -> Any:
        seen[:] = args
        return args[0] if args else None

    register_global_func(registered, cook)
    call = library["call"]
    assert call(registered) is None
    for value in (7, -(2**63), 2.5, "text", "käse", None):
        assert call(registered, value, 1, 2.5, "x", None, b"\0b") == value
        assert seen == [value, 1, 2.5, "x", None, b"\0b"]
    assert call(registered, True) == 1


def test_arrays_are_views_that_may_be_written(library: LibraryModule, registered: str) -> None:
    @register_global_func(registered)
    def fold(data: np.ndarray, out: np.ndarray) -> float:
        out[...] = data * 2
        return float(data.sum())

    data = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    out = np.zeros((3, 2), np.float32)
    assert library["call"](registered, data, out) == data.sum()
    np.testing.assert_array_equal(out, data * 2)
    flags = np.array([True, False])
    register_global_func(registered, lambda array: f"{array.dtype} {array.tolist()}", override=True)
    assert library["call"](registered, flags) == "bool [True, False]"


def test_imports_come_before_global_functions(path: Path, registered: str) -> None:
    library = LibraryModule(path)
    register_global_func(registered, lambda: "global")
    assert library["call"](registered) == "global"
    outer, inner = Kitchen(), Kitchen(**{registered: lambda: "imported"})
    outer.import_module(inner)
    library.import_module(outer)
    assert library["call"](registered) == "imported"


def test_one_library_loaded_twice_has_the_imports_of_each(path: Path) -> None:
    libraries = []
    for taste in ("sweet", "salty"):
        kitchen = Module()
        kitchen.import_module(Kitchen(taste=lambda taste=taste: taste))
        libraries.append(LibraryModule(path, kitchen))
    assert [library["call"]("taste") for library in libraries] == ["sweet", "salty"]


def test_the_same_library_from_memory_has_the_imports_of_each(path: Path) -> None:
    """Check that contents loaded under a reused name keep their own imports."""
    libraries = []
    with ExitStack() as others:
        for taste in ("sweet", "salty", "sour"):
            kitchen = Module()
            kitchen.import_module(Kitchen(taste=lambda taste=taste: taste))
            with library_in_memory(path.read_bytes()) as name:
                libraries.append(LibraryModule(name, kitchen))
            others.enter_context(Path(os.devnull).open("rb"))  # takes the file descriptor's number
    assert [library["call"]("taste") for library in libraries] == ["sweet", "salty", "sour"]


def test_a_library_goes_back_to_who_still_has_it(path: Path) -> None:
    first = LibraryModule(path)
    first.import_module(Kitchen(taste=lambda: "sweet"))
    second = LibraryModule(path)
    second.import_module(Kitchen(taste=lambda: "salty"))
    assert first["call"]("taste") == "salty"  # a library has one context: that of the last importer
    del second
    gc.collect()
    assert first["call"]("taste") == "sweet"


def test_exceptions_are_the_cause_of_the_failure(library: LibraryModule, registered: str) -> None:
    burnt = ValueError("the bread is burnt")

    def cook() -> None:
        raise burnt

    register_global_func(registered, cook)
    with pytest.raises(RunError, match="call: it failed with status -1: ValueError: the bread is burnt") as caught:
        library["call"](registered)
    assert caught.value.__cause__ is burnt
    assert library["try_to_call"](registered) == -1
    with pytest.raises(RunError, match="of its own") as caught:
        library["fail"]()
    assert caught.value.__cause__ is None


def test_an_interrupt_stays_one(library: LibraryModule, registered: str) -> None:
    def cook() -> None:
        raise KeyboardInterrupt

    register_global_func(registered, cook)
    with pytest.raises(KeyboardInterrupt):
        library["call"](registered)


def test_missing_functions_and_impossible_results_are_named(library: LibraryModule, registered: str) -> None:
    with pytest.raises(RunError, match="unknown function 'salt', neither imported nor global"):
        library["call"]("salt")
    register_global_func(registered, lambda: [1])
    with pytest.raises(RunError, match="a list cannot be returned to compiled code"):
        library["call"](registered)
    register_global_func(registered, lambda: 1 << 70, override=True)
    with pytest.raises(RunError, match="a int cannot be returned"):
        library["call"](registered)


def test_global_functions_have_one_owner(registered: str) -> None:
    register_global_func(registered, max)
    assert get_global_func(registered) is max
    with pytest.raises(OptionError, match="already"):
        register_global_func(registered, min)
    assert register_global_func(registered, override=True)(min) is min
    assert get_global_func(registered) is min
    with pytest.raises(OptionError, match=r"unknown global function 'test\.other'"):
        get_global_func("test.other")


def test_functions_call_each_other_through_c_and_python(library: LibraryModule, registered: str) -> None:
    def down(count: int) -> int:
        return 0 if count == 0 else 1 + library["call"](registered, count - 1)

    register_global_func(registered, down)
    assert library["call"](registered, 20) == 20


def test_data_is_no_function(library: LibraryModule) -> None:
    assert library.address(CONTEXT) is not None
    with pytest.raises(OptionError, match="unknown function"):
        library[CONTEXT]


# code as TVM's LLVM compiler generates it: without its own runtime, everything through the variables
BARE = rb"""
#include <stdint.h>
#include <stddef.h>
typedef int (*Task)(int, void *, void *);
#define TVM_DLL __attribute__((visibility("default")))
TVM_DLL void (*__TVMAPISetLastError)(const char *);
TVM_DLL void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
TVM_DLL int (*__TVMBackendFreeWorkspace)(int, int, void *);
TVM_DLL int (*__TVMBackendParallelLaunch)(Task, void *, int);
TVM_DLL int (*__TVMBackendParallelBarrier)(int, void *);
struct env { void *handle; int32_t tasks; };
static int task(int id, void *env, void *data) {
  ((int64_t *)data)[0] += 1 + id * 10;
  ((int64_t *)data)[1] = ((struct env *)env)->tasks;
  return id == 7 ? 5 : __TVMBackendParallelBarrier(id, env);
}
TVM_DLL int fail(void) { __TVMAPISetLastError("the yeast is dead"); return -1; }
TVM_DLL int memory(int64_t *args, int *codes, int count, int64_t *ret, int *ret_code, void *handle) {
  unsigned char *block = __TVMBackendAllocWorkspace(1, 0, (uint64_t)args[0], 0, 8);
  (void)codes; (void)count; (void)handle;
  *ret_code = 0;
  if (block == NULL) return -1;
  for (int64_t i = 0; i < args[0]; ++i) block[i] = 1;
  *ret = (int64_t)((uintptr_t)block % 64);
  return __TVMBackendFreeWorkspace(1, 0, block) || !__TVMBackendFreeWorkspace(1, 0, block);
}
TVM_DLL int parallel(int64_t *args, int *codes, int count, int64_t *ret, int *ret_code, void *handle) {
  int64_t data[2] = {0, 0};
  int status = __TVMBackendParallelLaunch(task, data, (int)args[0]);
  (void)codes; (void)count; (void)handle;
  *ret = data[0] * 100 + data[1];
  *ret_code = 0;
  return status;
}
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> LibraryModule:
    return LibraryModule(compile_shared({"bare.c": BARE}, tmp_path_factory.mktemp("bare") / "bare.so", ("-O1",)))


def test_code_without_a_runtime_gets_one(bare: LibraryModule) -> None:
    with pytest.raises(RunError, match="the yeast is dead"):
        bare["fail"]()
    assert bare["memory"](1000) == 0
    with pytest.raises(RunError):
        bare["memory"](1 << 62)
    assert bare["parallel"](0) == 101
    assert bare["parallel"](1) == 101
    with pytest.raises(RunError, match="sequential tasks cannot wait"):
        bare["parallel"](3)


# a loader like TVM's: it sets variables, finds the entry by its name, and queries it for the model's tables
LOADER = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/metadata_types.h>
static char text[500];
static void set_last_error(const char *message) { strncpy(text, message, sizeof text - 1); }
static int node;
int main(int count, char **names) {
  void *library = dlopen(names[1], RTLD_LAZY | RTLD_LOCAL);
  void **context = dlsym(library, "__tvm_module_ctx");
  void (**setter)(const char *) = dlsym(library, "__TVMAPISetLastError");
  const char *entry = dlsym(library, "__tvm_main__");
  TVMBackendPackedCFunc function = (TVMBackendPackedCFunc)dlsym(library, entry);
  TVMBackendPackedCFunc tables = (TVMBackendPackedCFunc)dlsym(library, "get_c_metadata");
  int8_t in = 7, out = 0;
  int64_t shape[2] = {1, 1};
  DLTensor tensors[2] = {{&in, {kDLCPU, 0}, 2, {kDLInt, 8, 1}, shape, NULL, 0},
                         {&out, {kDLCPU, 0}, 2, {kDLInt, 8, 1}, shape, NULL, 0}};
  TVMValue values[2], result;
  int codes[2] = {kTVMDLTensorHandle, kTVMNDArrayHandle}, code = kTVMNullptr, status;
  const TVMMetadata *metadata;
  if (count != 2 || *context != NULL || *setter != NULL) return 1;
  *context = &node;
  *setter = set_last_error;
  values[0].v_handle = &tensors[0];
  values[1].v_handle = &tensors[1];
  status = function(values, codes, 2, &result, &code, NULL);
  printf("%s %d %d\n", entry, status, out);
  status = function(values, codes, 1, &result, &code, NULL);
  printf("%d %s\n", status, text);
  tables(NULL, NULL, 0, &result, &code, NULL);
  metadata = result.v_handle;
  printf("%d %s %d %s %d\n", code, metadata->mod_name, (int)metadata->version, metadata->inputs[0].name,
         (int)metadata->outputs[0].num_shape);
  return 0;
}
"""


def test_a_loader_like_tvms_finds_what_it_looks_for(models: Path, tmp_path: Path) -> None:
    library = exported(models, tmp_path)
    for name, data in runtime_files().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "loader.c").write_text(LOADER)
    command = [need("gcc", "gcc"), "-Wall", "-Werror", "-Iinclude", "-o", "loader", "loader.c", "-ldl"]
    subprocess.run(command, cwd=tmp_path, check=True)
    result = subprocess.run([tmp_path / "loader", library], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.splitlines()) == (
        0,
        [
            "tvmgen_hello___tvm_main__ 0 -16",
            "-1 hello: num_args should be 2, it is 1",
            "3 tvmgen_hello 1 serving_default_dense_input_0 2",
        ],
    )


def test_the_library_is_called_as_its_main_function(models: Path, tmp_path: Path) -> None:
    library = LibraryModule(exported(models, tmp_path))
    data, out = np.full((1, 1), 7, np.int8), np.zeros((1, 1), np.int8)
    assert isinstance(library["__tvm_main__"], PackedFunc)
    library["__tvm_main__"](data, out)
    assert out[0, 0] == -16
    with pytest.raises(InputError, match="argument 1 is a object"):
        library["hello"](data, object())


def test_looking_a_function_up_again_takes_no_memory(library: LibraryModule, registered: str) -> None:
    from mlfc.runtime.libraries import library_context

    library.import_module(Kitchen(salt=lambda: 1))
    register_global_func(registered, lambda: 1)
    for name in (registered, "salt"):
        library["call"](name)
        known = len(library_context._functions)
        for _ in range(5):
            assert library["call"](name) == 1
        assert len(library_context._functions) == known


def test_tensors_of_devices_stay_there(library: LibraryModule, registered: str) -> None:
    import mlfc
    from mlfc.runtime import array

    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    given = array(values, mlfc.opencl(0))
    seen: list[Any] = []

    @register_global_func(registered)
    def take(tensor: Any) -> str:
        seen.append((tensor.handle, tensor.numpy().copy()))
        return f"{tensor.device} {tensor.dtype} {tensor.shape}"

    assert library["call"](registered, given) == "opencl(0) float32 (2, 3)"
    assert seen[0][0] == given.handle
    np.testing.assert_array_equal(seen[0][1], values)

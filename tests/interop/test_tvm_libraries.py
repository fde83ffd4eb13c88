"""Libraries that TVM exports from its C target run in mlfc: operators, models with tables, and tars of sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.errors import ArchiveError, OptionError, RunError
from mlfc.runtime import cpu
from tests.interop.tvm_libraries import (
    PACKED_HEAD,
    PACKED_MAIN,
    PACKED_RUN,
    blob,
    blob_source,
    linked,
    member,
    tables,
    tar,
    tensor,
    text,
    unpacked_main,
)

pytestmark = pytest.mark.usefixtures("unoptimized_builds")

INPUTS, OUTPUTS = {"input_1": (1, 49, 10, 1)}, {"output0": (1, 12)}
FORMS = ("lazy", "now", "tar", "bytes", "object")
NO_PARAMETERS = bytes(16)


@pytest.fixture(scope="module")
def fixtures(shared: Path) -> Path:
    return shared / "fixtures" / "tvm-0.14"


@pytest.fixture(scope="module")
def spoken(fixtures: Path) -> tuple[Any, Any]:
    arrays = np.load(fixtures / "kws_io.npz")
    return arrays["inputs"], arrays["outputs"]


def loaded(files: dict[str, str], form: str, folder: Path) -> Any:
    """Load sources in one of their distribution forms."""
    if form == "tar":
        return mlfc.load_module(tar(files, folder / "lib.tar"))
    if form == "object":
        return mlfc.load_module(linked(files, folder / "lib.o"))
    path = linked(files, folder / "lib.so", *(["-Wl,-z,now"] if form == "now" else []))
    return mlfc.load_module(path.read_bytes() if form == "bytes" else path)


def check(executor: Any, name: str | int, spoken: tuple[Any, Any]) -> None:
    for data, expected in zip(*spoken, strict=True):
        executor.set_input(name, data)
        executor.run()
        np.testing.assert_array_equal(executor.get_output(0), expected)


def graph_files(fixtures: Path) -> dict[str, str]:
    """Return TVM's export of a graph; the factory's body has the graph and a parameter file without its header."""
    archive = fixtures / "kws_graph_c.tar.xz"
    params = member(archive, "parameters/kws.params")
    count, end = int.from_bytes(params[16:24], "little"), 24
    for _ in range(count):
        end += 8 + int.from_bytes(params[end : end + 8], "little")
    arrays = params[16:24] + params[16:end] + params[end + 8 :]
    body = text(member(archive, "executor-config/graph/kws.graph")) + arrays + text("default")
    return {
        "lib0.c": member(archive, "codegen/host/src/kws_lib1.c").decode(),
        "devc.c": blob_source(blob("GraphExecutorFactory", body, between=False)),
    }


def model_files(fixtures: Path, name: str = "default") -> dict[str, str]:
    """Return TVM's export of a model compiled ahead of time for the C++ runtime."""
    code = member(fixtures / "kws_aot_c.tar.xz", "codegen/host/src/kws_lib1.c")
    return {
        "lib0.c": tables("get_c_metadata", INPUTS, OUTPUTS),
        "lib1.c": unpacked_main(code) + PACKED_MAIN,
        "devc.c": blob_source(blob("AotExecutorFactory", NO_PARAMETERS + text(name), between=True)),
    }


@pytest.mark.parametrize("form", FORMS)
def test_a_graph_and_its_operators(form: str, fixtures: Path, spoken: tuple[Any, Any], tmp_path: Path) -> None:
    root = loaded(graph_files(fixtures), form, tmp_path)
    assert root.type_key == "GraphExecutorFactory"
    check(root["default"](cpu(0)), "input_1", spoken)


@pytest.mark.parametrize("form", FORMS)
def test_a_model_compiled_ahead_of_time(form: str, fixtures: Path, spoken: tuple[Any, Any], tmp_path: Path) -> None:
    root = loaded(model_files(fixtures, "kws"), form, tmp_path)
    assert root.type_key == "AotExecutorFactory"
    for key in ("default", "kws"):
        executor = root[key](cpu(0))
        assert [executor.get_input_name(0), *executor.get_output_info()] == ["input_1", "output0"]
        check(executor, "input_1", spoken)
    check(executor, "input:1", spoken)  # the original model may have this name


def test_a_model_for_the_runtime_in_c(fixtures: Path, spoken: tuple[Any, Any], tmp_path: Path) -> None:
    code = member(fixtures / "kws_aot_c.tar.xz", "codegen/host/src/kws_lib1.c").decode()
    files = {"a.c": PACKED_RUN, "b.c": code, "c.c": tables("tvmgen_kws_get_c_metadata", INPUTS, OUTPUTS, {"pool": 9})}
    body = NO_PARAMETERS + text("kws")
    files["devc.c"] = blob_source(blob("AotExecutorFactory", body, between=True))
    check(loaded(files, "lazy", tmp_path)["default"](cpu(0)), 0, spoken)


def test_a_library_of_code_alone(fixtures: Path, spoken: tuple[Any, Any], tmp_path: Path) -> None:
    files = model_files(fixtures)
    del files["devc.c"]
    root = loaded(files, "lazy", tmp_path)
    assert root.type_key == "library"
    check(root["default"](cpu(0)), "input_1", spoken)
    data, expected = spoken
    np.testing.assert_array_equal(mlfc.load(tmp_path / "lib.so").run(data[0])["output0"], expected[0])


POOLED = f"""
#include <tvm/runtime/c_runtime_api.h>
#include <string.h>
TVM_DLL int32_t tvmgen_kws___tvm_main__{PACKED_HEAD} {{
  DLTensor* tensors[5];
  if (num_args != 5) return -1;
  for (int i = 0; i < 5; ++i) tensors[i] = (DLTensor*)args[i].v_handle;
  const int8_t* x = tensors[0]->data;
  int8_t *y = tensors[1]->data, *constants = tensors[2]->data, *pool = tensors[4]->data;
  if (tensors[2]->shape[0] != 67 || tensors[3]->shape[0] != 5 || tensors[4]->shape[0] != 1000) return -2;
  if (tensors[4]->ndim != 1 || tensors[4]->dtype.code != 1 || tensors[4]->dtype.bits != 8) return -3;
  memset(tensors[3]->data, 1, 5);
  memset(pool, 2, 1000);
  for (int i = 0; i < 3; ++i) y[i] = x[i] + constants[i] + constants[64 + i];
  return 0;
}}
"""


def test_constants_and_workspaces_are_given_as_tables_ask(tmp_path: Path) -> None:
    first, second = (tensor((3,), 0, 8, bytes(values)) for values in ((1, 2, 3), (10, 20, 30)))
    wanted = tables(
        "get_c_metadata",
        {"x": (3,)},
        {"output0": (3,)},
        {"small": 5, "large": 1000},
        {"b": (64, second), "a": (0, first)},
    )
    linked({"a.c": POOLED, "b.c": wanted}, tmp_path / "pooled.so")
    model = mlfc.load(tmp_path / "pooled.so")
    x = np.array([5, 6, 7], np.int8)
    np.testing.assert_array_equal(model.run(x)["output0"], [16, 28, 40])
    call = model.bind([x])
    x[...] = 0
    assert call() == 0
    np.testing.assert_array_equal(call.outputs["output0"], [11, 22, 33])


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("1L /* version*/", "2L /* version*/"), "expected version 1, got 2"),
        (("1L /* num_inputs*/", "99999999L /* num_inputs*/"), "at most 65,536 inputs, got 99,999,999"),
        (("{5L}", "{-5L}"), "a workspace has an impossible size"),
        (("(void*) &kTvmgenMetadata", "NULL"), "the code returned an invalid address"),
        (("\\x3f\\xa1", "\\x3f\\xa2"), "a constant of its tables.*a tensor must start with the number"),
    ],
)
def test_tables_that_break_the_rules_are_named(change: tuple[str, str], fault: str, tmp_path: Path) -> None:
    constants = {"a": (0, tensor((3,), 0, 8, bytes(3)))}
    good = tables("get_c_metadata", {"x": (3,)}, {"output0": (3,)}, {"pool": 5}, constants).replace("{\n5L}", "{5L}")
    assert change[0] in good
    linked({"a.c": POOLED, "b.c": good.replace(*change)}, tmp_path / "wrong.so")
    with pytest.raises(ArchiveError, match=fault):
        mlfc.load(tmp_path / "wrong.so")


def test_a_failure_of_the_code_has_its_text(tmp_path: Path) -> None:
    code = f"""
#include <tvm/runtime/c_runtime_api.h>
#include <tvm/runtime/c_backend_api.h>
TVM_DLL int32_t fails{PACKED_HEAD} {{
  TVMAPISetLastError("it is too late");
  return -1;
}}
TVM_DLL int32_t nested{PACKED_HEAD} {{
  TVMFunctionHandle function;
  if (TVMBackendGetFuncFromEnv(0, "tests.nowhere", &function) != 0) return -1;
  return 0;
}}
"""
    module = loaded({"lib0.c": code}, "now", tmp_path)
    with pytest.raises(RunError, match="it is too late"):
        module["fails"]()
    with pytest.raises(RunError, match=r"unknown function 'tests\.nowhere'"):
        module["nested"]()


@pytest.mark.parametrize("form", ["tar", "lazy"])
def test_the_context_may_be_defined_by_the_code(form: str, tmp_path: Path) -> None:
    """TVM's C for hosts defines the variable that loaders fill; code finds functions of the process through it."""
    lib0 = f"""// tvm target: c -keys=cpu
#define TVM_EXPORTS
#include "tvm/runtime/c_runtime_api.h"
#include "tvm/runtime/c_backend_api.h"
#include <math.h>
#include <stdbool.h>
void* __tvm_module_ctx = NULL;
#ifdef __cplusplus
extern "C"
#endif
TVM_DLL int32_t tvmgen_default___tvm_main__{PACKED_HEAD} {{
  TVMFunctionHandle function;
  if (__tvm_module_ctx == NULL) return -1;
  if (TVMBackendGetFuncFromEnv(__tvm_module_ctx, "tests.next", &function) != 0) return -2;
  return TVMFuncCall(function, args, type_code, num_args, out_value, out_type_code);
}}
"""
    mlfc.runtime.register_global_func("tests.next", lambda x: x + 1, override=True)
    assert loaded({"lib0.c": lib0}, form, tmp_path)["tvmgen_default___tvm_main__"](41) == 42


def test_what_nobody_defines_is_named(tmp_path: Path) -> None:
    declared = "void *TVMBackendAllocWorkspace(void); int lost(void);\n"
    code = "void *f(void) { return lost() ? TVMBackendAllocWorkspace() : 0; }"
    linked({"lib0.c": declared + code}, tmp_path / "lost.so", "-Wl,-z,now")
    with pytest.raises(ArchiveError, match=r"lost\.so: .*undefined symbol: lost") as caught:
        mlfc.load_module(tmp_path / "lost.so")
    assert "ctypes.RTLD_GLOBAL" in str(caught.value)
    assert "mlfc compile" not in str(caught.value)


def test_functions_of_this_process_stay_out_of_sight(fixtures: Path, tmp_path: Path) -> None:
    """Load a real TVM afterwards; its libraries must find its own functions."""
    path = linked(model_files(fixtures), tmp_path / "lib.so")
    program = f"""
import ctypes, mlfc
mlfc.load_module({str(path)!r})["default"](mlfc.cpu(0)).run()
assert not hasattr(ctypes.CDLL(None), "TVMBackendAllocWorkspace")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_several_models_are_named_where_one_is_asked_for(tmp_path: Path) -> None:
    registry = r"""
#include <tvm/runtime/crt/module.h>
#include <tvm/runtime/c_backend_api.h>
static TVMBackendPackedCFunc functions[] = {tvmgen_one_get_c_metadata, tvmgen_two_get_c_metadata};
static const TVMFuncRegistry names = {"\002\000tvmgen_one_get_c_metadata\000tvmgen_two_get_c_metadata\000", functions};
static const TVMModule module = {&names};
const TVMModule* TVMSystemLibEntryPoint(void) { return &module; }
"""
    files = {
        f"{name}.c": tables(f"tvmgen_{name}_get_c_metadata", {"x": (3,)}, {"output0": (3,)}, module=name)
        for name in ("one", "two")
    }
    head = "int32_t tvmgen_{}_get_c_metadata(TVMValue*, int*, int, TVMValue*, int*, void*);\n"
    declared = "#include <tvm/runtime/c_runtime_api.h>\n" + "".join(head.format(name) for name in ("one", "two"))
    root = loaded({**files, "registry.c": declared + registry}, "lazy", tmp_path)
    with pytest.raises(OptionError, match=r"expected one module, got 2\. Name one of: one, two"):
        root["default"](cpu(0))

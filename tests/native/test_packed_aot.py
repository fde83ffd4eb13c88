"""Models behind TVM's packed AOT interface: entry and tables as in the ABI description, written by hand here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.errors import ArchiveError, RunError
from mlfc.runtime import TensorInfo
from mlfc.runtime.libraries.library_module import PackedAotModule
from mlfc.support.params import save_params
from mlfc.support.tar import write_tar

pytestmark = pytest.mark.usefixtures("quick_builds")

ENTRY = rb"""
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/c_runtime_api.h>
TVM_DLL int32_t tvmgen_mix_run(TVMValue *args, int *codes, int count, TVMValue *ret, int *ret_code, void *handle) {
  const int8_t *a = ((DLTensor *)args[0].v_handle)->data;
  const float *b = ((DLTensor *)args[1].v_handle)->data;
  float *sums = ((DLTensor *)args[2].v_handle)->data;
  uint8_t *signs = ((DLTensor *)args[3].v_handle)->data;
  (void)codes; (void)ret; (void)ret_code; (void)handle;
  if (count != 4) return -1;
  for (int i = 0; i < 6; ++i) {
    sums[i] = (float)a[i] + b[i];
    signs[i] = sums[i] < 0;
  }
  if (a[0] == 99) {
    TVMAPISetLastError("99");
    return -2;
  }
  return 0;
}
"""
TABLES = rb"""
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/metadata_types.h>
static const int64_t kTvmgenMetadata_shape[2] = {2, 3};
static const struct TVMTensorInfo kTvmgenMetadata_inputs[2] = {
  {"a", kTvmgenMetadata_shape, 2, {0, 8, 1}}, {"b:0", kTvmgenMetadata_shape, 2, {2, 32, 1}}};
static const struct TVMTensorInfo kTvmgenMetadata_outputs[2] = {
  {"output0", kTvmgenMetadata_shape, 2, {2, 32, 1}}, {"output1", kTvmgenMetadata_shape, 2, {1, 1, 1}}};
static const struct TVMMetadata kTvmgenMetadata = {
  1, kTvmgenMetadata_inputs, 2, kTvmgenMetadata_outputs, 2, NULL, 0, NULL, 0, "tvmgen_mix"};
TVM_DLL int32_t tvmgen_mix_get_c_metadata(TVMValue *args, int *codes, int count, TVMValue *ret, int *ret_code,
                                          void *handle) {
  (void)args; (void)codes; (void)count; (void)handle;
  ret->v_handle = (void *)&kTvmgenMetadata;
  *ret_code = kTVMOpaqueHandle;
  return 0;
}
"""
A = np.array([[1, -2, 3], [-4, 5, 0]], np.int8)
B = np.array([[0.5, 0.5, -8], [1, 1, 1]], np.float32)


def archive(folder: Path, code: dict[str, bytes]) -> Path:
    """Write an archive as TVM does for the packed interface: no header, an empty parameter file."""
    module = {
        "model_name": "mix",
        "export_datetime": "2024-01-01 00:00:00Z",
        "executors": ["aot"],
        "style": "full-model",
        "target": ["c -keys=cpu "],
        "memory": {"functions": {"main": [], "operator_functions": []}},
    }
    members = {f"codegen/host/src/{name}": data for name, data in code.items()}
    members["parameters/mix.params"] = save_params({})
    members["metadata.json"] = json.dumps({"version": 7, "modules": {"mix": module}}).encode()
    path = folder / "mix.tar"
    with path.open("wb") as file:
        write_tar(file, members, 0)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("packed")
    return mlfc.load(archive(folder, {"mix_lib0.c": ENTRY, "mix_lib1.c": TABLES}))


def test_the_tables_describe_the_model(model: Any) -> None:
    assert isinstance(model, PackedAotModule)
    assert model.inputs == (TensorInfo("a", (2, 3), "int8"), TensorInfo("b:0", (2, 3), "float32"))
    assert model.outputs == (TensorInfo("output0", (2, 3), "float32"), TensorInfo("output1", (2, 3), "bool"))


def test_it_runs_and_binds(model: Any) -> None:
    found = model.run({"b:0": B, "a": A})
    np.testing.assert_array_equal(found["output0"], A + B)
    np.testing.assert_array_equal(found["output1"], A + B < 0)
    a = A.copy()
    call = model.bind([a, B])
    a[...] = 7
    assert call() == 0
    np.testing.assert_array_equal(call.outputs["output0"], 7 + B)
    with pytest.raises(RunError, match="status -2"):
        model.run(np.full((2, 3), 99, np.int8), B)


def test_code_without_tables_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="no function tvmgen_mix_get_c_metadata"):
        mlfc.load(archive(tmp_path, {"mix_lib0.c": ENTRY}))

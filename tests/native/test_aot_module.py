"""The runtime calls C with the module interface correctly and rejects arguments that the C code cannot handle."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlfc.errors import InputError, ProblemsError, RunError, ToolchainError
from mlfc.library.toolchain import compile_cached
from mlfc.runtime import AotModule, SharedLibrary, cpu
from tests.harness import interface

pytestmark = pytest.mark.usefixtures("quick_builds")

SOURCE = b"""
#include <stdint.h>
struct inputs { const int8_t *a; const float *b; };
struct outputs { float *sums; int8_t *last; };
struct pools { uint8_t *workspace; };
int32_t scaled_sums(struct inputs *in, struct outputs *out) {
  for (int i = 0; i < 3; ++i) out->sums[i] = (float)in->a[i] + in->b[i];
  *out->last = in->a[2];
  return in->a[0] == 99 ? -1 : 0;
}
int32_t with_pool(struct inputs *in, struct outputs *out, struct pools *pools) {
  if ((uintptr_t)pools->workspace % 64) return -1;
  for (int i = 0; i < 4096; ++i) pools->workspace[i] = 1;
  return scaled_sums(in, out);
}
const char mlfc_description[] = "{\\"modules\\": {\\"m\\": {\\"executor\\": \\"aot\\", "
  "\\"entry\\": \\"scaled_sums\\", \\"external_workspace\\": false, \\"workspace_peers\\": [],"
  "\\"memory\\": {\\"workspace_bytes\\": 0, \\"workspace_lower_bound_bytes\\": 0,"
  "\\"constants_bytes\\": 0, \\"io_bytes\\": 0},"
  "\\"inputs\\": [], \\"outputs\\": [{\\"name\\": \\"y\\", \\"shape\\": [], \\"dtype\\": \\"int8\\"}]}}}";
"""


def tensor(name: str, shape: list[int], dtype: str) -> dict[str, Any]:
    return {"name": name, "shape": shape, "dtype": dtype}


DESCRIPTION = interface(
    entry="scaled_sums",
    memory={"workspace_bytes": 4096},
    inputs=[tensor("a", [3], "int8"), tensor("b", [3], "float32")],
    outputs=[tensor("sums", [1, 3], "float32"), tensor("last", [], "int8")],
)
A = np.array([1, -2, 3], np.int8)
B = np.array([0.5, 0.25, 8], np.float32)


@pytest.fixture(scope="module")
def library() -> Path:
    return compile_cached({"src/m.c": SOURCE})


@pytest.fixture(scope="module")
def module(library: Path) -> AotModule:
    return AotModule(library, DESCRIPTION)


class OnlyDlpack:
    """An array of another library, as seen by the runtime."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("wrap", [lambda array: array, OnlyDlpack, lambda array: np.repeat(array, 2)[::2]])
def test_run_takes_inputs_by_name_and_by_position(module: AotModule, wrap: Any) -> None:
    for outputs in (module.run({"b": wrap(B), "a": wrap(A)}), module.run(wrap(A), wrap(B))):
        assert list(outputs) == ["sums", "last"]
        np.testing.assert_array_equal(outputs["sums"], [A + B])
        np.testing.assert_array_equal(outputs["last"], np.int8(3))
    assert module.device == cpu(0)


def test_bound_call_runs_on_the_buffers_as_they_are_now(module: AotModule) -> None:
    a, sums, last = A.copy(), np.zeros((1, 3), np.float32), np.zeros((), np.int8)
    call = module.bind({"a": a, "b": B}, [sums, last])
    assert call() == 0
    np.testing.assert_array_equal(sums, [A + B])
    a[:] = 7
    assert call() == 0
    np.testing.assert_array_equal(sums, [7 + B])
    assert last == 7
    assert call.outputs["sums"] is sums


def test_bound_buffers_outlive_their_makers(module: AotModule) -> None:
    call = module.bind([A.copy(), OnlyDlpack(B.copy())])
    fresh = [np.full(3, 9, np.int8) for _ in range(50)]
    assert call() == 0
    np.testing.assert_array_equal(call.outputs["sums"], [A + B])
    assert len(fresh) == 50


def test_all_wrong_inputs_are_listed_at_once(module: AotModule) -> None:
    with pytest.raises(ProblemsError) as caught:
        module.run({"a": np.zeros(4, np.int16), "c": B})
    causes = [str(problem) for problem in caught.value.problems]
    assert len(causes) == 3
    for part in ("c: the model has no such input", "dtype is int16, not int8 and its shape is (4,)", "b: the input is"):
        assert any(part in cause for cause in causes), part


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((A,), "2 inputs, not 1"),
        ((A, list(B)), "b: the input is a list, not an array"),
        ((A, B.astype(">f4")), "other byte order"),
        ((A, B.astype(object)), "dtype is object"),
    ],
)
def test_a_wrong_input_is_named(module: AotModule, inputs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        module.run(*inputs)


def test_buffers_that_cannot_be_bound_are_refused(module: AotModule) -> None:
    shared = np.zeros(12, np.uint8)
    with pytest.raises(InputError, match="contiguous"):
        module.bind([np.repeat(A, 2)[::2], B])
    fixed = np.zeros((1, 3), np.float32)
    fixed.flags.writeable = False
    with pytest.raises(InputError, match=r"sums: .* must be contiguous, aligned and writeable"):
        module.bind([A, B], [fixed, np.zeros((), np.int8)])
    with pytest.raises(InputError, match="shares memory with b"):
        module.bind([A, shared.view(np.float32)], [shared.view(np.float32).reshape(1, 3), np.zeros((), np.int8)])


def test_a_failure_of_the_code_is_an_error(module: AotModule) -> None:
    with pytest.raises(RunError, match="status -1"):
        module.run(np.array([99, 0, 0], np.int8), B)


def test_an_external_workspace_is_given_aligned(library: Path) -> None:
    module = AotModule(library, replace(DESCRIPTION, entry="with_pool", external_workspace=True))
    np.testing.assert_array_equal(module.run(A, B)["sums"], [A + B])


def test_a_missing_symbol_or_library_is_named(library: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="no_such_entry"):
        AotModule(library, replace(DESCRIPTION, entry="no_such_entry"))
    with pytest.raises(ToolchainError, match=r"none\.so"):
        AotModule(tmp_path / "none.so", DESCRIPTION)


def test_a_library_describes_itself(library: Path) -> None:
    assert [info.name for info in SharedLibrary(library).outputs] == ["y"]


def test_importing_the_runtime_imports_no_compiler() -> None:
    code = "import sys, mlfc.runtime; print(*sys.modules)"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    rooms = {name.split(".")[1] for name in names if name.startswith("mlfc.")}
    assert rooms <= {"errors", "support", "runtime"}
    assert not {"onnx", "lark", "typer", "rich", "ml_dtypes"} & set(names)


def test_a_workspace_that_no_machine_has_is_refused(library: Path) -> None:
    memory = replace(DESCRIPTION.memory, workspace_bytes=2**53 - 1)
    description = replace(DESCRIPTION, entry="with_pool", external_workspace=True, memory=memory)
    with pytest.raises(RunError, match="out of memory for 9,007,199,254,740,991 bytes"):
        AotModule(library, description).run(A, B)

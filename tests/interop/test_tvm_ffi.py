"""Libraries of mlfc in tvm-ffi's loader, and third-party libraries for tvm-ffi in mlfc's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.errors import InputError, RunError
from tests.conftest import need
from tests.native.extracted import imported
from tests.state_models import GRU_STATES, WIDTH, frames, gru, gru_steps

tvm_ffi = pytest.importorskip("tvm_ffi", reason="pip install apache-tvm-ffi")

pytestmark = pytest.mark.usefixtures("unoptimized_builds")

INPUT = "input_1"


@pytest.fixture(scope="module")
def words(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    factory = imported(models / "kws_ref_model.tflite", "kws")
    path: Path = factory.export_library(tmp_path_factory.mktemp("ffi") / "kws.so", options=["-O0"])
    return path


@pytest.fixture(scope="module")
def loaded(words: Path) -> Any:
    return tvm_ffi.load_module(str(words))


@pytest.fixture(scope="module")
def spoken(models: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return an input, and the result of LiteRT's reference kernels for it."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    reference = Interpreter(
        str(models / "kws_ref_model.tflite"), experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    reference.allocate_tensors()
    data = np.random.default_rng(5).integers(-128, 128, (1, 49, 10, 1)).astype(np.int8)
    reference.set_tensor(reference.get_input_details()[0]["index"], data)
    reference.invoke()
    return data, reference.get_tensor(reference.get_output_details()[0]["index"])


MAKERS: dict[str, Callable[[np.ndarray], Any]] = {
    "numpy": lambda array: array,
    "tvm_ffi": tvm_ffi.from_dlpack,
}
if find_spec("torch") is not None:  # too large for every checkout
    import torch

    MAKERS["torch"] = torch.from_numpy


@pytest.mark.parametrize("maker", MAKERS)
def test_arrays_of_every_library_are_taken_where_they_lie(
    loaded: Any, spoken: tuple[np.ndarray, np.ndarray], maker: str
) -> None:
    data, expected = spoken
    for function in (loaded.kws, loaded["kws"], loaded, loaded.get_function("main")):
        out = np.zeros((1, 12), np.int8)
        assert function(MAKERS[maker](data), MAKERS[maker](out)) is None
        np.testing.assert_array_equal(out, expected)


def test_arrays_of_jax_are_taken(loaded: Any, spoken: tuple[np.ndarray, np.ndarray]) -> None:
    import jax

    data, expected = spoken
    out = np.zeros((1, 12), np.int8)  # jax arrays are immutable
    loaded.kws(jax.numpy.asarray(data), out)
    np.testing.assert_array_equal(out, expected)


def test_outputs_that_are_not_given_are_returned(loaded: Any, spoken: tuple[np.ndarray, np.ndarray]) -> None:
    data, expected = spoken
    results = [np.from_dlpack(loaded.kws(data)) for _ in range(3)]
    for result in results:
        np.testing.assert_array_equal(result, expected)
    assert len({result.ctypes.data for result in results}) == 3
    assert results[0].ctypes.data % 64 == 0


def test_several_outputs_come_as_an_array_of_tensors(tmp_path: Path) -> None:
    from mlfc.relay import ir

    data = ir.Var("x", ir.TensorType((2, 3), "float32"))
    body = ir.Tuple((ir.call("nn.relu", [data]), ir.call("less", [data, ir.const(np.float32(0))])))
    factory = mlfc.build(ir.IRModule({"main": ir.Function((data,), body)}), module_name="pair")
    path = factory.export_library(tmp_path / "pair.so", options=["-O0"])
    values = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    found = tvm_ffi.load_module(str(path)).pair(values)
    assert len(found) == 2
    np.testing.assert_array_equal(np.from_dlpack(found[0]), np.maximum(values, 0))
    np.testing.assert_array_equal(np.from_dlpack(found[1]), values < 0)
    both = mlfc.load_module(path).imported_modules[0]["pair"]
    first, second = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.bool_)
    both(values, first, second)
    np.testing.assert_array_equal(second, values < 0)


def good() -> list[Any]:
    return [np.zeros((1, 49, 10, 1), np.int8), np.zeros((1, 12), np.int8)]


WRONG: dict[str, tuple[Callable[[], list[Any]], type[Exception], str]] = {
    "none": (list, TypeError, "kws: num_args should be 2, or 1 for results of its own, it is 0"),
    "three": (lambda: [*good(), 1], TypeError, "kws: num_args should be 2"),
    "None": (lambda: [None, good()[1]], TypeError, f"kws: Expect arg[0] to be a tensor, {INPUT}; it is None"),
    "short text": (lambda: ["a", good()[1]], TypeError, "it is a string"),
    "long text": (lambda: ["a" * 100, good()[1]], TypeError, "it is a string"),
    "bytes": (lambda: [b"abc", good()[1]], TypeError, "it is bytes"),
    "int": (lambda: [3, good()[1]], TypeError, "it is an int"),
    "bool": (lambda: [True, good()[1]], TypeError, "it is a bool"),
    "float": (lambda: [1.5, good()[1]], TypeError, "it is a float"),
    "list": (lambda: [good(), good()[1]], TypeError, "it is an array of objects"),
    "dict": (lambda: [{}, good()[1]], TypeError, "it is something else"),
    "dtype": (
        lambda: [good()[0].astype(np.float32), good()[1]],
        TypeError,
        f"kws.{INPUT}.dtype is expected to be int8, it is float32",
    ),
    "rank": (lambda: [good()[0][0], good()[1]], ValueError, f"kws.{INPUT}.ndim is expected to equal 4, it is 3"),
    "shape": (
        lambda: [good()[0][:, :48], good()[1]],
        ValueError,
        f"Argument kws.{INPUT}.shape[1] has an unsatisfied constraint: it is 48, expected is 49",
    ),
    "strides": (
        lambda: [np.zeros((1, 10, 49, 1), np.int8).transpose(0, 2, 1, 3), good()[1]],
        ValueError,
        f"kws.{INPUT}.strides: expected to be compact array",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_raise_exceptions_of_python(loaded: Any, wrong: str) -> None:
    make, kind, text = WRONG[wrong]
    with pytest.raises(kind) as caught:
        loaded.kws(*make())
    assert text in str(caught.value)


def test_the_library_says_what_its_function_takes(loaded: Any) -> None:
    described = loaded.get_function_metadata("kws")
    assert str(tvm_ffi.core.TypeSchema.from_json_str(described["type_schema"])) == "Callable[[Tensor, Tensor], None]"
    assert described["inputs"] == [{"name": INPUT, "shape": [1, 49, 10, 1], "dtype": "int8"}]
    assert described["outputs"][0]["shape"] == [1, 12]
    assert "int8[1, 49, 10, 1], read" in loaded.get_function_doc("kws")


def test_operators_of_graphs_are_called_too(models: Path, tmp_path: Path) -> None:
    factory = imported(models / "hello_world_int8.tflite", "hello", executor="graph")
    path = factory.export_library(tmp_path / "hello.so", options=["-O0"])
    module = tvm_ffi.load_module(str(path))
    kernel = factory.program.calls[0].kernel
    name = factory.code.function_names[kernel.name]
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-5, 5, buffer.shape).astype(buffer.dtype) for buffer in kernel.params]
    copies = [array.copy() for array in arrays]
    module[name](*arrays)
    mlfc.load_module(path).get_function(name, query_imports=True)(*copies)
    np.testing.assert_array_equal(arrays[-1], copies[-1])
    with pytest.raises(TypeError, match="num_args should be"):
        module[name]()
    with pytest.raises(TypeError, match=r"Expect arg\[0\] to be a tensor; it is None"):
        module[name](None, *arrays[1:])
    with pytest.raises(ValueError, match="has another dtype"):
        module[name](*(array.astype(np.float64) for array in arrays))


FOREIGN = r"""
#include <stdint.h>
#include <string.h>
typedef struct { int32_t type_index; uint32_t small; union { int64_t i; double d; void *p; const char *s; } v; } Any;
typedef struct { const char *data; size_t size; } Bytes;
typedef struct {
  void *data; int32_t device_type, device_id, ndim; uint8_t code, bits; uint16_t lanes;
  int64_t *shape, *strides; uint64_t byte_offset;
} Tensor;
#define FN(name) int __tvm_ffi_##name(void *handle, const Any *args, int32_t count, Any *result)
#define UNUSED (void)handle; (void)args; (void)count; (void)result
extern void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);
extern int TVMFFIStringFromByteArray(const Bytes *, Any *);

FN(echo) { UNUSED; *result = args[0]; return 0; }
FN(types) {  /* the types, two digits each, and whether tensors have strides */
  int64_t all = 0;
  UNUSED;
  for (int32_t i = 0; i < count; ++i) all = all * 100 + args[i].type_index;
  result->type_index = 1;
  result->v.i = all;
  return 0;
}
FN(half) { UNUSED; result->type_index = 3; result->v.d = args[0].v.d / 2; return 0; }
FN(nothing) { UNUSED; return 0; }
FN(long_text) {
  const Bytes text = {"a text of more than seven bytes", 31};
  UNUSED;
  return TVMFFIStringFromByteArray(&text, result);
}
FN(short_text) { UNUSED; result->type_index = 11; result->small = 3; memcpy(&result->v, "abc", 4); return 0; }
FN(is_true) { UNUSED; result->type_index = 2; result->v.i = args[0].type_index == 2 && args[0].v.i; return 0; }
FN(last_stride) {
  const Tensor *tensor = args[0].v.p;
  UNUSED;
  result->type_index = 1;
  result->v.i = tensor->strides[tensor->ndim - 1] * 10 + tensor->strides[0];
  return 0;
}
FN(fails) { UNUSED; TVMFFIErrorSetRaisedFromCStr("RuntimeError", "the oven is cold"); return -1; }
FN(refuses) { UNUSED; TVMFFIErrorSetRaisedFromCStr("TypeError", "no such dough"); return -1; }
"""


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "oven.c").write_text(FOREIGN)
    command = [need("gcc", "gcc"), "-shared", "-fPIC", "-o", "oven.so", "oven.c"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "oven.so"


def test_libraries_of_others_are_called(foreign: Path) -> None:
    module = mlfc.load_module(foreign)
    assert module["half"](5.0) == 2.5
    assert module["nothing"]() is None
    assert module["short_text"]() == "abc"
    assert module["long_text"]() == "a text of more than seven bytes"
    assert module["is_true"](True) is True
    for value in (-5, 0, 2**62, 2.5, True, None, "text", b"bytes"):
        if not isinstance(value, bytes):
            assert module["echo"](value) == value
    assert module["echo"](mlfc.cpu(3)) == mlfc.cpu(3)
    array = np.zeros((2, 3), np.float32)
    assert module["types"](1, 1.5, True, None, "text", array, b"x") == 1_03_02_00_08_07_09
    assert module["last_stride"](array) == 13
    assert module["last_stride"](array.T) == 31
    with pytest.raises(RunError, match="fails: RuntimeError: the oven is cold"):
        module["fails"]()
    with pytest.raises(InputError, match="refuses: no such dough"):
        module["refuses"]()


WITHOUT = """
import sys
sys.modules["tvm_ffi"] = None
import mlfc
try:
    mlfc.load_module(sys.argv[1])
except mlfc.errors.MlfcError as error:
    print(error)
"""


def test_what_is_missing_for_a_foreign_library_is_named(foreign: Path) -> None:
    result = subprocess.run([sys.executable, "-c", WITHOUT, foreign], capture_output=True, text=True, check=False)
    assert "which is not installed. Run: pip install apache-tvm-ffi" in result.stdout, result.stderr


def test_our_functions_return_arrays_to_our_callers(words: Path, spoken: tuple[np.ndarray, np.ndarray]) -> None:
    data, expected = spoken
    code = imported_code(words)
    result = code(data)
    np.testing.assert_array_equal(result, expected)
    with pytest.raises(InputError, match=rf"kws.{INPUT}.dtype is expected to be int8"):
        code(data.astype(np.float32))


def imported_code(path: Path) -> Any:
    from mlfc.runtime import LibraryModule
    from mlfc.runtime.ffi.native_code import FfiFunc

    library = LibraryModule(path)
    address = library.address("__tvm_ffi_kws")
    assert address is not None
    return FfiFunc(address, "kws", owner=library)


def test_long_descriptions_are_whole(tmp_path: Path) -> None:
    from mlfc.relay import ir

    names = [f"{'long_' * 30}{number} \\ ä" for number in range(40)]
    inputs = [ir.Var(name, ir.TensorType((1,), "float32")) for name in names]
    body = inputs[0]
    for other in inputs[1:]:
        body = ir.call("add", [body, other])
    module = ir.IRModule({"main": ir.Function(tuple(inputs), body)})
    factory = mlfc.build(module, module_name="sum40")
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-std=c99", "-O1"]
    loaded = tvm_ffi.load_module(str(factory.export_library(tmp_path / "sum40.so", options=strict)))
    assert [entry["name"] for entry in loaded.get_function_metadata("sum40")["inputs"]] == names
    assert names[39] in loaded.get_function_doc("sum40")
    (result,) = np.from_dlpack(loaded.sum40(*(np.full(1, number, np.float32) for number in range(40))))
    assert result == sum(range(40))


@pytest.mark.parametrize("form", [{}, {"external_workspace": True}])
def test_a_function_resets_the_state_of_a_library(form: dict[str, bool], tmp_path: Path) -> None:
    begin = np.linspace(-1, 1, WIDTH, dtype=np.float32).reshape(1, WIDTH)
    model = mlfc.compile(gru(), states=GRU_STATES, state_init={"h_in": begin}, module_name="cell", **form)
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    library = tvm_ffi.load_module(str(model.export_library(tmp_path / "cell.so", options=strict)))
    steps = frames(2)
    expected, _ = gru_steps(steps, begin)
    for _ in range(2):
        found = [np.from_dlpack(library.cell(tvm_ffi.from_dlpack(frame))) for frame in steps]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        library.cell_state_reset()
    with pytest.raises(TypeError, match="cell_state_reset: num_args should be 0"):
        library.cell_state_reset(tvm_ffi.from_dlpack(steps[0]))

"""Library functions in the classic convention check all arguments from any caller before code accesses them."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.codegen.abi import library_files
from mlfc.crt import crt_files
from mlfc.errors import InputError, OptionError, RunError
from mlfc.factory import link
from mlfc.memory import ConstantPool
from mlfc.runtime import LibraryModule
from mlfc.runtime.devices.device import cpu
from mlfc.runtime.tensor.c_abi import DLTensor, array_tensor
from mlfc.support.content import write_data
from tests.conftest import need
from tests.native.extracted import imported
from tests.shared_library import compile_shared

pytestmark = pytest.mark.usefixtures("unoptimized_builds")

WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1")
INPUT, OUTPUT = "serving_default_dense_input:0", "StatefulPartitionedCall:0"
MAIN = "tvmgen_hello___tvm_main__"
SINE = 7, -16
"""An input of the model, and LiteRT's output for it."""


def exported(
    models: Path, folder: Path, name: str = "hello", abi: Sequence[str] = ("classic",), **options: Any
) -> Path:
    factory = imported(models / "hello_world_int8.tflite", name, **options)
    path: Path = factory.export_library(folder / f"{name}.so", abi=abi, options=["-O0"])
    return path


@pytest.fixture(scope="module")
def library(models: Path, tmp_path_factory: pytest.TempPathFactory) -> LibraryModule:
    return LibraryModule(exported(models, tmp_path_factory.mktemp("entries")))


def tensors() -> tuple[np.ndarray, np.ndarray]:
    return np.full((1, 1), SINE[0], np.int8), np.zeros((1, 1), np.int8)


def call(library: LibraryModule, values: list[Any], codes: list[int], count: int | None = None) -> tuple[int, str]:
    """Call the packed function as C would; return its status and error message."""
    slots = (ctypes.c_int64 * max(1, len(values)))(
        *(ctypes.addressof(value) if isinstance(value, DLTensor) else value for value in values)
    )
    kinds = (ctypes.c_int * max(1, len(codes)))(*codes)
    library.library.TVMAPISetLastError(b"")
    result, code = ctypes.c_int64(), ctypes.c_int(4)
    status = library.library[MAIN](
        slots, kinds, len(values) if count is None else count, ctypes.byref(result), ctypes.byref(code), None
    )
    library.library.TVMGetLastError.restype = ctypes.c_char_p
    return status, library.library.TVMGetLastError().decode()


@pytest.mark.parametrize("code", [3, 7, 13])
def test_tensors_come_under_every_code_that_tvm_gives_them(library: LibraryModule, code: int) -> None:
    data, out = tensors()
    given = [array_tensor(array, cpu()) for array in (data, out)]
    assert call(library, given, [code, code]) == (0, "")
    assert out[0, 0] == SINE[1]


def test_strides_and_offsets_are_heeded(library: LibraryModule) -> None:
    data, out = np.arange(16, dtype=np.int8), np.zeros((1, 1), np.int8)
    data[5] = SINE[0]
    first = array_tensor(data[:1].reshape(1, 1), cpu())
    first.byte_offset = 5
    # the stride of a dimension of size one is ignored: DLPack producers store any value there
    first.strides = ctypes.cast((ctypes.c_int64 * 2)(99, -3), ctypes.POINTER(ctypes.c_int64))
    assert call(library, [first, array_tensor(out, cpu())], [7, 7]) == (0, "")
    assert out[0, 0] == SINE[1]


def set_shape(*extents: int) -> Callable[[DLTensor], None]:
    def change(tensor: DLTensor) -> None:
        tensor.shape = ctypes.cast((ctypes.c_int64 * len(extents))(*extents), ctypes.POINTER(ctypes.c_int64))
        tensor.ndim = len(extents)

    return change


def set_field(**fields: Any) -> Callable[[DLTensor], None]:
    def change(tensor: DLTensor) -> None:
        for name, value in fields.items():
            parts = name.split("__")
            owner = tensor
            for part in parts[:-1]:
                owner = getattr(owner, part)
            setattr(owner, parts[-1], value)

    return change


FAULTS = [
    (set_shape(1), f"hello.{INPUT}.ndim is expected to equal 2, it is 1"),
    (set_shape(1, 1, 1), f"hello.{INPUT}.ndim is expected to equal 2, it is 3"),
    (set_field(ndim=-1), f"hello.{INPUT}.ndim is expected to equal 2, it is -1"),
    (
        set_shape(1, 2),
        f"Argument hello.{INPUT}.shape[1] has an unsatisfied constraint: it is 2, expected is 1",
    ),
    (set_shape(0, 1), f"Argument hello.{INPUT}.shape[0] has an unsatisfied constraint: it is 0, expected is 1"),
    (set_field(shape=None), f"hello.{INPUT}.shape is expected to be a pointer, not NULL"),
    (set_field(dtype__code=1), f"hello.{INPUT}.dtype is expected to be int8, it is uint8"),
    (set_field(dtype__bits=32, dtype__code=2), f"hello.{INPUT}.dtype is expected to be int8, it is float32"),
    (set_field(dtype__lanes=4), f"hello.{INPUT}.dtype is expected to be int8, it is int8x4"),
    (set_field(dtype__code=6), f"hello.{INPUT}.dtype is expected to be int8, it is bool"),
    (set_field(dtype__code=77), f"hello.{INPUT}.dtype is expected to be int8, it is of code 77 with 8 bits"),
    (
        set_field(device__type=2),
        f"Argument hello.{INPUT}.device_type has an unsatisfied constraint: it is 2, expected is 1, the CPU",
    ),
    (set_field(data=None), f"hello.{INPUT}.data is expected to be a pointer, not NULL"),
]


@pytest.mark.parametrize(("fault", "text"), FAULTS, ids=[text[-40:] for _, text in FAULTS])
def test_a_tensor_that_does_not_fit_is_named_with_its_fault(
    library: LibraryModule, fault: Callable[[DLTensor], None], text: str
) -> None:
    data, out = tensors()
    given = [array_tensor(array, cpu()) for array in (data, out)]
    fault(given[0])
    assert call(library, given, [7, 7]) == (-1, text)
    assert out[0, 0] == 0


def test_arguments_that_are_no_tensors_are_refused(library: LibraryModule) -> None:
    data, out = tensors()
    given = [array_tensor(array, cpu()) for array in (data, out)]
    for count in (0, 1, 3, -1):
        assert call(library, given, [7, 7], count) == (-1, f"hello: num_args should be 2, it is {count}")
    for code in (0, 1, 2, 5, 6, 8, 11, 12, 99, -1):
        status, text = call(library, given, [7, code])
        assert (status, text) == (-1, f"hello: Expect arg[1] to be pointer, the tensor {OUTPUT}")
    for code in (4, 7):
        assert call(library, [given[0], 0], [7, code]) == (-1, f"hello.{OUTPUT} is expected to be a tensor, not NULL")


def test_lists_that_are_not_there_are_named(library: LibraryModule) -> None:
    data, out = tensors()
    given = [array_tensor(array, cpu()) for array in (data, out)]
    values, codes = (ctypes.c_int64 * 2)(*map(ctypes.addressof, given)), (ctypes.c_int * 2)(7, 7)
    library.library.TVMGetLastError.restype = ctypes.c_char_p
    for lists in ((None, codes), (values, None), (None, None)):
        assert library.library[MAIN](*lists, 2, None, None, None) == -1
        said = library.library.TVMGetLastError().decode()
        assert said == f"hello: Expect arg[0] to be pointer, the tensor {INPUT}; the lists are NULL"
    assert library.library["tvmgen_hello_get_c_metadata"](None, None, 0, None, None, None) == -1
    assert library.library.TVMGetLastError().decode().startswith("tvmgen_hello_get_c_metadata: the result is expected")


def test_models_read_what_is_only_to_be_read_and_write_nothing_there(library: LibraryModule) -> None:
    data, out = tensors()
    data.flags.writeable = False
    library["hello"](data, out)
    assert out[0, 0] == SINE[1]
    out.flags.writeable = False
    with pytest.raises(InputError, match=r"^hello: argument 1 is a read-only array"):
        library["hello"](data, out)


def test_tensors_share_no_memory(library: LibraryModule) -> None:
    data, _ = tensors()
    given = [array_tensor(data, cpu())] * 2
    assert call(library, given, [7, 7]) == (-1, f"hello.{OUTPUT} is expected to share no memory with hello.{INPUT}")
    assert data[0, 0] == SINE[0]


def test_elements_are_aligned_and_strides_compact(models: Path, tmp_path: Path) -> None:
    factory = imported(models / "kws_ref_model_float32.tflite", "words")
    library = LibraryModule(factory.export_library(tmp_path / "words.so", options=["-O1"]))
    run = library["words"]
    raw = np.zeros(4 * 490 + 8, np.uint8)
    out = np.zeros((1, 12), np.float32)
    (name,) = (value.name for value in factory.program.inputs)
    crooked = np.ndarray((1, 49, 10, 1), np.float32, raw, offset=1)
    with pytest.raises(RunError, match=f"words.{name}.data is expected to be aligned to the 4 bytes of an element"):
        run(crooked, out)
    turned = np.zeros((1, 10, 49, 1), np.float32).transpose(0, 2, 1, 3)
    with pytest.raises(RunError, match=f"words.{name}.strides: expected to be compact array"):
        run(turned, out)
    wide = np.zeros((1, 49, 20, 1), np.float32)[:, :, ::2]
    with pytest.raises(RunError, match="compact"):
        run(wide, out)


def test_bool_has_both_of_its_names(tmp_path: Path) -> None:
    from mlfc.relay import ir

    data = ir.Var("flag", ir.TensorType((3,), "bool"))
    body = ir.call("logical_not", [data])
    module = ir.IRModule({"main": ir.Function((data,), body)})
    factory = mlfc.build(module, module_name="negate")
    library = LibraryModule(factory.export_library(tmp_path / "negate.so", options=["-O1"]))
    flags, out = np.array([True, False, True]), np.zeros(3, np.bool_)
    given = [array_tensor(array, cpu()) for array in (flags, out)]
    run = library["negate"]
    for code, bits in ((1, 1), (6, 8)):
        for tensor in given:
            tensor.dtype.code, tensor.dtype.bits = code, bits
        out[:] = True
        assert run.prepare(given)() == 0
        assert out.tolist() == [False, True, False]
    given[0].dtype.code = given[0].dtype.bits = 8
    assert run.prepare(given)() == -1


def test_threads_wait_for_one_another(models: Path, tmp_path: Path) -> None:
    factory = imported(models / "kws_ref_model.tflite", "words")
    path = factory.export_library(tmp_path / "words.so")
    run = LibraryModule(path)["words"]
    rng = np.random.default_rng(1)
    inputs = rng.integers(-128, 128, (8, 1, 49, 10, 1)).astype(np.int8)
    expected = [next(iter(factory.runtime.model.run(data).values())).tolist() for data in inputs]

    model = mlfc.load(path)

    def repeat(data: np.ndarray) -> list[list[list[int]]]:
        found = []
        for turn in range(12):
            out = np.zeros((1, 12), np.int8)
            if turn % 3:
                run(data, out)
            else:  # through the C interface, on separate buffers
                assert model.bind([data], [out])() == 0
            found.append(out.tolist())
        return found

    with ThreadPoolExecutor(4) as pool:
        for found, one in zip(pool.map(repeat, inputs), expected, strict=True):
            assert found == [one] * 12


@pytest.mark.parametrize("options", [{"external_workspace": True}, {"workspace_io": True}])
def test_memory_that_callers_of_c_manage_is_managed_for_others(
    models: Path, tmp_path: Path, options: dict[str, bool]
) -> None:
    run = LibraryModule(exported(models, tmp_path, "placed", ("classic", "ffi"), **options))["placed"]
    data, out = tensors()
    run(data, out)
    assert out[0, 0] == SINE[1]


def test_modules_that_share_their_workspace_wait_at_one_gate(models: Path, tmp_path: Path) -> None:
    factories = [imported(models / "hello_world_int8.tflite", name) for name in ("one", "two")]
    linked = link(factories, share_workspace=True)
    files = {**linked.files, **library_files([f.unit for f in factories], linked.modules, ("classic", "ffi"))}
    library = LibraryModule(_compiled(files, tmp_path))
    for name in ("one", "two"):
        data, out = tensors()
        library[name](data, out)
        assert out[0, 0] == SINE[1]
    assert library.address("tvmgen_mlfc_shared_gate") is not None
    assert library.address("get_c_metadata") is None  # it would be ambiguous


def test_constants_that_callers_load_have_no_place_in_libraries(models: Path) -> None:
    pool = ConstantPool("flash2", 1 << 20, external=True)
    factory = imported(models / "hello_world_int8.tflite", "hello", constants=[pool])
    with pytest.raises(OptionError, match="constants that the caller loads: flash2"):
        library_files([factory.unit], [factory.code], ("classic",))


def test_conventions_are_chosen(models: Path, tmp_path: Path) -> None:
    library = LibraryModule(exported(models, tmp_path, "both", ("ffi",)))
    assert library.address("__tvm_ffi_both") is not None
    assert library.address("tvmgen_both_get_c_metadata") is None
    factory = imported(models / "hello_world_int8.tflite", "hello")
    with pytest.raises(OptionError, match="unknown calling convention 'moden'"):
        library_files([factory.unit], [factory.code], ("moden",))


def _compiled(files: dict[str, Any], folder: Path, *flags: str) -> Path:
    runtime = {f"runtime/{path}": data for path, data in _runtime().items()}
    includes = ["include", "src", "runtime/include", "runtime/library", "runtime/relax"]
    return compile_shared({**files, **runtime}, folder / "library.so", flags, includes=includes)


def _runtime() -> dict[str, bytes]:
    return crt_files("include", "src/runtime/crt/common", "host", "library", "relax")


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("executor", ["aot", "graph"])
def test_the_code_compiles_without_warnings(models: Path, tmp_path: Path, compiler: str, executor: str) -> None:
    factory = imported(models / "hello_world_int8.tflite", "hello", executor=executor)
    files = {**factory.code.files, **library_files([factory.unit], [factory.code], ("classic", "ffi"))}
    for path, data in {**files, **_runtime()}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        write_data(tmp_path / path, data)
    sources = sorted({"src/hello_entries.c", "src/mlfc_relax.c"} & set(files))
    sources += [path for path in _runtime() if path.startswith(("library/", "relax/", "src/runtime/crt/common/"))]
    command = [need(compiler, compiler), *WARNINGS, "-fsyntax-only", "-Iinclude", "-Ilibrary", "-Irelax"]
    result = subprocess.run(
        [*command, *(path for path in sources if path.endswith(".c"))],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")


LOADS = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW | os.RTLD_LOCAL)
class Any(ctypes.Structure):
    _fields_ = (("type_index", ctypes.c_int32), ("small", ctypes.c_uint32), ("value", ctypes.c_int64))
assert not hasattr(ctypes.CDLL(None), "TVMFFIErrorSetRaisedFromCStr")
status = library.__tvm_ffi_hello(None, ctypes.byref(Any()), 0, ctypes.byref(Any()))
library.TVMGetLastError.restype = ctypes.c_char_p
print(status, library.TVMGetLastError().decode())
tensor = Any(7, 0, 64)
for arguments in ((None, 2, ctypes.byref(Any())), (None, 1, ctypes.byref(Any())), (ctypes.byref(tensor), 1, None)):
    status = library.__tvm_ffi_hello(None, *arguments)
    print(status, library.TVMGetLastError().decode())
print(library.__tvm_ffi__doc_hello(None, None, 0, None), library.TVMGetLastError().decode())
"""


def test_libraries_load_and_fail_politely_where_tvm_ffi_is_not(models: Path, tmp_path: Path) -> None:
    path = exported(models, tmp_path, abi=("classic", "ffi"))
    result = subprocess.run([sys.executable, "-c", LOADS, path], capture_output=True, text=True, check=False)
    assert result.stdout.splitlines() == [
        "-1 hello: num_args should be 2, or 1 for results of its own, it is 0",
        "-1 hello: args is expected to be a pointer, not NULL",
        "-1 hello: args is expected to be a pointer, not NULL",
        "-1 hello: result is expected to be a pointer, not NULL",
        "-1 result is expected to be a pointer, not NULL",
    ], result.stderr


def test_only_functions_on_tensors_are_found_by_a_models_name(models: Path) -> None:
    # the module's own code has a plain-pointer function with the name of the packed one
    factory = imported(models / "hello_world_int8.tflite", "hello")
    assert factory.lib.loaded().address(MAIN) is not None
    with pytest.raises(OptionError, match="unknown function 'hello'"):
        factory.lib["hello"]

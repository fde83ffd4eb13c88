"""Libraries of mlfc as executables of TVM's Relax virtual machine."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mlfc
from mlfc.codegen.abi.relax import executable
from mlfc.factory import library_root
from mlfc.library.export import export_library
from mlfc.objfile.exports import exports
from mlfc.runtime.ffi.native_code import FfiAny
from mlfc.support.tensor_info import Array
from tests.native.extracted import imported

tvm_ffi = pytest.importorskip("tvm_ffi", reason="pip install apache-tvm-ffi")

pytestmark = pytest.mark.usefixtures("unoptimized_builds")

LOADER = "ffi.Module.load_from_bytes.relax.VMExecutable"
MACHINE = 7
BY_TVM = """
1e1514422fde25d2 0400000000000000 302e3134 0400000000000000
00000000 0700000000000000 6d796d6f64656c 0000000000000000 0000000000000000 feffffffffffffff 0000000000000000
0000000000000000
01000000 0400000000000000 6d61696e 0000000000000000 0200000000000000 0200000000000000 0300000000000000
0200000000000000 0100000000000000 78 0100000000000000 79
00000000 0200000000000000 6d32 0000000000000000 0000000000000000 feffffffffffffff 0000000000000000 0000000000000000
01000000 0100000000000000 62 0200000000000000 0400000000000000 0100000000000000 0200000000000000
0100000000000000 0100000000000000 71
0000000000000000 0000000000000000
0400000000000000 0000000000000000 0600000000000000 0800000000000000 0d00000000000000
0f00000000000000
0100000000000000 0200000000000000 0000000000000000 0200000000000000 0000000000000000 0100000000000000
0200000000000000 0200000000000000
0100000000000000 0100000000000000 0200000000000000 0100000000000000 0000000000000000
0200000000000000 0100000000000000
"""
"""The stored form by the ExecBuilder of TVM 0.27 of ``main(x, y) = mymodel(x, y)`` and ``b(q) = m2(q)``."""


def test_executables_are_those_of_tvm() -> None:
    assert executable({"main": ("mymodel", ["x", "y"]), "b": ("m2", ["q"])}) == bytes.fromhex(BY_TVM)


class Executable:
    """Stand-in for TVM's loader and virtual machine: runs functions that call one packed function."""

    fault = b""
    """If it is not empty, no virtual machine can load the executable."""

    def __init__(self, stored: bytes) -> None:
        self._stored, self._at = stored, 8  # after the magic number
        assert self._text() == "0.14"
        self.table = [self._entry() for _ in range(self._number())]
        assert (self._number(), self._number()) == (0, 0)
        self.offsets, self.words = self._numbers(), self._numbers()
        assert self._at == len(stored)

    def _number(self) -> int:
        self._at += 8
        return int(struct.unpack_from("<q", self._stored, self._at - 8)[0])

    def _numbers(self) -> list[int]:
        return [self._number() for _ in range(self._number())]

    def _text(self) -> str:
        size = self._number()
        self._at += size
        return self._stored[self._at - size : self._at].decode()

    def _entry(self) -> tuple[str, list[int], list[str]]:
        self._at += 4
        return self._text(), [self._number() for _ in range(4)], [self._text() for _ in range(self._number())]

    def call(self, library: Any, name: str, *args: Any, **named: Any) -> Any:
        """Run a function as `relax.VirtualMachine`, on arguments in order or by name."""
        ((start, _, count, registers), parameters) = next(entry[1:] for entry in self.table if entry[0] == name)
        values = dict(enumerate([*args, *(named[parameter] for parameter in parameters[len(args) :])]))
        assert len(values) == count < registers
        call, end = self.offsets[start], self.offsets[start + 1]
        code, result, called, given = self.words[call : call + 4]
        assert (code, call + 4 + given, self.words[end : end + 2]) == (1, end, [2, result])
        return library[self.table[called][0]](*(values[index] for index in self.words[call + 4 : end]))


@pytest.fixture(scope="module")
def stand_in() -> Iterator[list[Executable]]:
    """Register the stand-in for TVM's loader of executables; return what it loads."""
    found: list[Executable] = []
    module = tvm_ffi.system_lib("relax_stand_in.")

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(FfiAny))
    def vm_load_executable(_handle: int, _args: int, count: int, result: Any) -> int:
        if Executable.fault:
            ctypes.CDLL(None).TVMFFIErrorSetRaisedFromCStr(b"ValueError", Executable.fault)
            return -1
        result[0].type_index, result[0].value = 1, MACHINE
        return count

    symbol = b"__tvm_ffi_relax_stand_in.vm_load_executable"
    register = ctypes.CDLL(None).TVMFFIEnvModRegisterSystemLibSymbol
    assert register(symbol, ctypes.cast(vm_load_executable, ctypes.c_void_p)) == 0

    def load(stored: bytes) -> Any:
        module.clear_imports()
        found.append(Executable(stored))
        return module

    known = tvm_ffi.get_global_func(LOADER, allow_missing=True)
    tvm_ffi.register_global_func(LOADER, load, override=True)
    yield found
    module.clear_imports()
    if known is None:
        tvm_ffi.remove_global_func(LOADER)
    else:
        tvm_ffi.register_global_func(LOADER, known, override=True)


@pytest.fixture
def loaded_executables(stand_in: list[Executable]) -> list[Executable]:
    """Return what the stand-in loads during one test."""
    stand_in.clear()
    return stand_in


def signs() -> onnx.ModelProto:
    """Return a model of the absolute values ``y`` and the signs ``z`` of n numbers ``x``."""
    x, y, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xyz")
    nodes = [helper.make_node("Abs", ["x"], ["y"]), helper.make_node("Sign", ["x"], ["z"])]
    graph = helper.make_graph(nodes, "signs", [x], [y, z])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the libraries of both code generators."""
    return {
        target: mlfc.compile(signs(), module_name="model", target=f"{target} -mcpu=native").factory.export_library(
            tmp_path_factory.mktemp("relax") / "model.so", options=["-O0"]
        )
        for target in ("c", "llvm")
    }


@pytest.fixture(params=["c", "llvm"])
def dynamic(request: pytest.FixtureRequest, both: dict[str, Path]) -> Path:
    return both[request.param]


def check(results: Any, data: Array) -> None:
    """Check the results of the model of `signs`."""
    for found, expected in zip(map(np.from_dlpack, results), (np.abs(data), np.sign(data)), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.fixture
def unused(dynamic: Path, tmp_path: Path) -> Path:
    """Return a library that has not looked up any function of the process, which it would keep."""
    return Path(shutil.copy(dynamic, tmp_path / "unused.so"))


def test_a_virtual_machine_requires_tvm_and_a_library_that_it_loaded(dynamic: Path, unused: Path) -> None:
    if tvm_ffi.get_global_func(LOADER, allow_missing=True) is None:
        with pytest.raises(RuntimeError, match="requires TVM's runtime: import tvm; without TVM, call the model's"):
            tvm_ffi.load_module(str(unused))["vm_load_executable"]()
    library = ctypes.CDLL(str(dynamic))
    module = ctypes.c_void_p.in_dll(library, "__tvm_ffi__library_ctx")
    kept, module.value = module.value, None
    library.TVMGetLastError.restype = ctypes.c_char_p
    assert library.__tvm_ffi_vm_load_executable(None, None, 0, ctypes.byref(FfiAny())) == -1
    assert library.TVMGetLastError() == b"vm_load_executable requires a library that tvm-ffi or TVM loaded"
    module.value = kept


def test_tvm_loads_a_dynamic_model_as_an_executable(dynamic: Path, loaded_executables: list[Executable]) -> None:
    library = tvm_ffi.load_module(str(dynamic))
    for _ in range(2):
        assert library["vm_load_executable"]() == MACHINE
    (imported_library,) = tvm_ffi.system_lib("relax_stand_in.").imports
    for rows in (3, 0):
        data = np.random.default_rng(rows).normal(size=(rows, 2)).astype(np.float32)
        check(loaded_executables[0].call(imported_library, "main", data), data)
        check(loaded_executables[1].call(imported_library, "main", x=data), data)


def test_functions_of_several_models_have_their_names(
    models: Path, tmp_path: Path, loaded_executables: list[Executable]
) -> None:
    names = {"main": "aot", "one": "graph"}
    made = [imported(models / "hello_world_int8.tflite", name, executor=kind) for name, kind in names.items()]
    path = export_library(library_root(made), tmp_path / "both.so", options=["-O0"])
    library, data = tvm_ffi.load_module(str(path)), np.full((1, 1), 7, np.int8)
    library["vm_load_executable"]()
    for name in names:
        assert np.from_dlpack(loaded_executables[0].call(library, name, data)).tolist() == [[-16]]


def test_errors_of_the_virtual_machine_are_raised(
    dynamic: Path, loaded_executables: list[Executable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Executable, "fault", b"unknown opcode")
    with pytest.raises(ValueError, match="unknown opcode"):
        tvm_ffi.load_module(str(dynamic))["vm_load_executable"]()
    assert len(loaded_executables) == 1


def test_libraries_of_classic_functions_have_no_virtual_machine(models: Path, tmp_path: Path) -> None:
    factory = imported(models / "hello_world_int8.tflite", "hello")
    path = factory.export_library(tmp_path / "hello.so", abi=("classic",), options=["-O0"])
    names = {item.name for item in exports(memoryview(path.read_bytes()))}
    assert names.isdisjoint({"__tvm_ffi_vm_load_executable", "__tvm_ffi__library_ctx", "mlfc_relax_load"})


IN_TVM = """
import sys
import numpy, tvm
from tvm import relax
for path in sys.argv[1:]:
    machine = relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
    data = numpy.array([[1, -2], [-3, 0], [5, 6]], numpy.float32)
    machine.set_input("main", x=data)
    machine.invoke_stateful("main")
    machine.save_function("main", "saved", data)
    calls = []
    machine.set_instrument(lambda function, name, before, result, *args: calls.append(name))
    for results in (machine.get_outputs("main"), machine["saved"](), machine["main"](tvm.runtime.tensor(data))):
        numpy.testing.assert_array_equal(results[0].numpy(), abs(data))
        numpy.testing.assert_array_equal(results[1].numpy(), numpy.sign(data))
    print(calls)
"""


@pytest.mark.skipif(find_spec("tvm") is None, reason='pip install "apache-tvm>=0.27,<0.28"')
def test_tvm_runs_dynamic_models(both: dict[str, Path]) -> None:
    command = [sys.executable, "-c", IN_TVM, *both.values()]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == f"{['mlfc_packed_model'] * 4}\n" * 2, result.stderr

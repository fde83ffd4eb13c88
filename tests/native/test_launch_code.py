"""Host functions that launch kernels, with a runtime that records the calls, their order and their arguments."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlfc import memory
from mlfc.codegen import GeneratedCode, Unit, generate
from mlfc.crt import crt_files
from mlfc.support.content import Data, write_data
from mlfc.target.target import parse_target
from mlfc.tir import builder as tb
from mlfc.tir.ir import Buffer, Launch, PrimFunc, Seq, Var
from mlfc.tir.program import KernelCall, Program, Value
from tests.native.crt_executor import DLTensor
from tests.native.test_generated_module import compiler
from tests.native.test_packed_functions import call, tensor
from tests.shared_library import compile_shared

RUNTIME = Path(__file__).with_name("recording_runtime.c")
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
SIZE, OPENCL = 40, 4
ADD, TURN = "tvmgen_device_fused_add", "tvmgen_device_fused_turn"


def launch(grid: tuple[int, int, int], block: tuple[int, int, int], target: Buffer, source: Buffer) -> Launch:
    """Return a launch whose items each copy one element."""
    groups, items = (tuple(Var(f"{kind}{axis}") for axis in "xyz") for kind in ("group", "item"))
    b = tb.StmtBuilder()
    place = groups[0] * block[0] + items[0]
    b.store(target, [place], tb.load(source, [place]))
    return Launch(grid, block, groups, items, b.finish())


def program() -> Program:
    """Return a device program with a function of one launch and a function of two launches and scratch."""
    shape = (SIZE,)
    data, weights, output = (Buffer(name, shape, "float32") for name in ("data", "weights", "output"))
    add = PrimFunc("fused_add", (data,), (weights,), output, (), launch((5, 1, 1), (8, 1, 1), output, weights))
    source, result = (Buffer(name, shape, "float32") for name in ("source", "result"))
    turned = Buffer("turned", shape, "float32", "scratch")
    body = Seq((launch((1, 2, 1), (40, 1, 1), turned, source), launch((40, 1, 3), (1, 1, 2), result, turned)))
    turn = PrimFunc("fused_turn", (source,), (), result, (turned,), body)
    x, middle, y = (
        Value(name, shape, "float32", kind, device="opencl")
        for name, kind in (("x", "input"), ("m", "intermediate"), ("y", "output"))
    )
    constant = Value("w", shape, "float32", "constant", np.zeros(SIZE, np.float32), device="opencl")
    add, turn = replace(add, device="opencl"), replace(turn, device="opencl")
    calls = (KernelCall(add, (x,), (constant,), middle, ("first",)), KernelCall(turn, (middle,), (), y, ("second",)))
    return Program("device", (x,), (y,), (constant,), (add, turn), calls)


def code(host: str = "c") -> GeneratedCode:
    made, targets = program(), (parse_target(host), parse_target("opencl"))
    return generate(Unit(made, memory.plan(made), "device", "graph", target=targets[0], device_target=targets[1]))


def written(folder: Path, host: str = "c") -> tuple[dict[str, Data], str]:
    """Write the runtime's headers; return the files to compile and the include folder."""
    headers = {path: data for path, data in crt_files("include").items() if path.endswith(".h")}
    for path, data in headers.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_data(folder / path, data)
    own = {name: data for name, data in code(host).files.items() if "lib1" in name}
    return {**own, "src/runtime.c": RUNTIME.read_bytes()}, f"-I{folder}/include"


@pytest.fixture(scope="module", params=["c", "llvm"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("launches")
    files, include = written(folder, request.param)
    loaded = ctypes.CDLL(str(compile_shared(files, folder / "device.so", [include])))
    loaded.last_error.restype = loaded.take_record.restype = ctypes.c_char_p
    loaded.enter_context.argtypes = [ctypes.c_void_p]
    loaded.enter_context(0x1000)
    return loaded


def on_device(handle: int, device_id: int = 0) -> DLTensor:
    """Return a tensor whose data pointer must not be dereferenced."""
    made = tensor(np.zeros(SIZE, np.float32))
    made.data, made.device_type, made.device_id = handle, OPENCL, device_id
    return made


def record(library: ctypes.CDLL) -> list[str]:
    return library.take_record().decode().splitlines()


def test_the_device_is_set_and_kernels_get_handles_and_extents(library: ctypes.CDLL) -> None:
    assert call(library, ADD, [on_device(11, 3), on_device(22, 3), on_device(33, 3)])[0] == 0
    assert record(library) == ["__tvm_set_device 4 3", f"{ADD}_kernel @22 @33 5 8"]
    assert call(library, TURN, [on_device(11), on_device(33), on_device(44)])[0] == 0
    assert record(library) == [
        "__tvm_set_device 4 0",
        f"{TURN}_kernel @11 @44 1 2 40 1",
        f"{TURN}_kernel_1 @33 @44 40 1 3 1 1 2",
    ]


def test_kernels_are_called_as_their_table_says(library: ctypes.CDLL) -> None:
    from mlfc.library.device_modules import function_table

    device = code().device
    assert device is not None
    table = function_table(device)
    assert table[f"{ADD}_kernel"].launch_param_tags == ("blockIdx.x", "threadIdx.x")
    assert table[f"{TURN}_kernel"].launch_param_tags == ("blockIdx.x", "blockIdx.y", "threadIdx.x", "threadIdx.y")
    assert table[f"{TURN}_kernel_1"].launch_param_tags[2] == "blockIdx.z"
    call(library, TURN, [on_device(1), on_device(2), on_device(3)])
    for line in record(library)[1:]:
        name, *values = line.split()
        info = table[name]
        assert len(values) == len(info.arg_types) + len(info.launch_param_tags)
        assert [value.startswith("@") for value in values[: len(info.arg_types)]] == [True] * len(info.arg_types)


def test_functions_are_looked_up_once_for_each_context(library: ctypes.CDLL) -> None:
    tensors = [on_device(11), on_device(22), on_device(33)]
    call(library, ADD, tensors)
    library.take_lookups()
    call(library, ADD, tensors)
    assert library.take_lookups() == 0
    library.enter_context(0x2000)
    call(library, ADD, tensors)
    assert library.take_lookups() == 2  # the kernel, and the function that sets the device
    record(library)


def test_what_fails_says_why(library: ctypes.CDLL) -> None:
    tensors = [on_device(11), on_device(33), on_device(44)]
    library.refuse(2)
    assert call(library, TURN, tensors) == (-1, "the device is gone")
    assert len(record(library)) == 2  # the second launch was skipped
    library.enter_context(0)
    assert call(library, TURN, tensors) == (-1, "no module, or no room")
    library.enter_context(0x3000)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"device_type": 1}, "arg[1] is not on the device"),
        ({"device_type": 2}, "arg[1] is not on the device"),
        ({"device_id": 1}, "arg[1] is on another device than arg[0]"),
        ({"byte_offset": 4}, "arg[1] does not start where its memory does"),
        ({"data": None}, "arg[1] is not on the device"),
        ({"bits": 16}, "arg[1] has another dtype"),
    ],
)
def test_tensors_elsewhere_are_refused(library: ctypes.CDLL, fields: dict[str, int], text: str) -> None:
    wrong = on_device(22)
    for name, value in fields.items():
        setattr(wrong, name, value)
    record(library)
    assert call(library, ADD, [on_device(11), wrong, on_device(33)]) == (-1, f"{ADD}: {text}")
    assert record(library) == []


@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_compilers_find_nothing_to_say(name: str, tmp_path: Path) -> None:
    files, include = written(tmp_path)
    for path, data in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        write_data(tmp_path / path, data)
        command = [*compiler(name), *STRICT, "-O2", include, "-c", str(tmp_path / path), "-o", str(tmp_path / "out.o")]
        subprocess.run(command, check=True)

"""Libraries for other machines, built here with a compiler from a wheel, then run or read with third-party tools."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlfc
from mlfc.factory import Factory
from mlfc.support.content import to_bytes
from tests.conftest import need
from tests.native.extracted import imported
from tests.native.foreign_libraries import without_c_library
from tests.native.foreign_programs import emulator_of, link_program

pytest.importorskip("ziglang", reason="pip install ziglang")

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits_int8.tflite"
SAMPLES = 3
LEVEL = "tvmgen_kws_cpu"
ENTRIES = {"tvmgen_kws_run", "tvmgen_kws___tvm_main__", "__tvm_ffi_kws", "__tvm_dev_mblob", "mlfc_abi_version"}

# loads the library, reads inputs from standard input, and writes the outputs of both of the module's functions
PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <tvm/runtime/c_runtime_api.h>
#include "tvmgen_kws.h"

typedef int32_t (*plain_function)(struct tvmgen_kws_inputs *, struct tvmgen_kws_outputs *);
typedef int (*packed_function)(TVMValue *, int *, int, TVMValue *, int *, void *);
typedef const char *(*error_function)(void);

static int8_t x[TVMGEN_KWS_INPUT_1_SIZE], y[TVMGEN_KWS_IDENTITY_SIZE];

static int call(packed_function function, int count) {
  int64_t in_shape[] = {1, 49, 10, 1}, out_shape[] = {1, 12};
  DLTensor in = {x, {kDLCPU, 0}, 4, {kDLInt, 8, 1}, in_shape, NULL, 0};
  DLTensor out = {y, {kDLCPU, 0}, 2, {kDLInt, 8, 1}, out_shape, NULL, 0};
  TVMValue args[2], result;
  int codes[2] = {kTVMDLTensorHandle, kTVMDLTensorHandle}, code = kTVMNullptr;
  args[0].v_handle = &in;
  args[1].v_handle = &out;
  return function(args, codes, count, &result, &code, NULL);
}

int main(void) {
  struct tvmgen_kws_inputs inputs = {x};
  struct tvmgen_kws_outputs outputs = {y};
  void *library = dlopen("./kws.so", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return fprintf(stderr, "%s\\n", dlerror()), 1;
  plain_function plain = (plain_function)dlsym(library, "tvmgen_kws_run");
  packed_function packed = (packed_function)dlsym(library, (const char *)dlsym(library, "__tvm_main__"));
  error_function error = (error_function)dlsym(library, "TVMGetLastError");
  while (fread(x, 1, sizeof x, stdin) == sizeof x) {
    if (plain(&inputs, &outputs) != 0) return 2;
    fwrite(y, 1, sizeof y, stdout);
    memset(y, 0, sizeof y);
    if (call(packed, 2) != 0) return 3;
    fwrite(y, 1, sizeof y, stdout);
  }
  if (call(packed, 1) == 0 || strstr(error(), "kws: num_args should be 2") == NULL) return 4;
  /* behind the numbers of bytes, of modules, and of characters stands the kind of the first module */
  return memcmp((const char *)dlsym(library, "__tvm_dev_mblob") + 24, "AotExecutorFactory", 18) == 0 ? 0 : 5;
}
"""


@pytest.fixture(scope="module", autouse=True)
def _linked_quickly() -> Generator[None, None, None]:
    with without_c_library():
        yield


@pytest.fixture(scope="module")
def factory(models: Path) -> Factory:
    return imported(models / "kws_ref_model.tflite", "kws")


@pytest.fixture(scope="module")
def digits() -> Factory:
    """Return a smaller model of the same name, for libraries that are only linked."""
    return imported(DIGITS, "kws")


@pytest.fixture(scope="module")
def inputs() -> Any:
    return np.random.default_rng(5).integers(-128, 128, (SAMPLES, 1, 49, 10, 1), np.int8)


@pytest.fixture(scope="module")
def expected(factory: Factory, inputs: Any) -> list[bytes]:
    return [next(iter(factory.runtime.run(x).values())).tobytes() for x in inputs]


def compiled(factory: Factory, target: str, triple: str) -> Factory:
    """Return the model for another machine; its C serves all machines, its objects one."""
    if target == "c":
        return factory
    return mlfc.build(factory.module, f"{target} -mtriple={triple}", factory.source_params, module_name="kws")


@pytest.mark.parametrize("target", ["c", "llvm"])
@pytest.mark.parametrize("arch", ["aarch64", "riscv64"])
def test_libraries_of_other_processors_compute_the_same(
    arch: str, target: str, factory: Factory, inputs: Any, expected: list[bytes], tmp_path: Path
) -> None:
    triple = f"{arch}-linux-gnu"
    compiled(factory, target, triple).export_library(tmp_path / "kws.so", target_triple=triple)
    (tmp_path / "main.c").write_text(PROGRAM)
    (tmp_path / "tvmgen_kws.h").write_bytes(to_bytes(factory.code.files["include/tvmgen_kws.h"]))
    include = Path(mlfc.__file__).parent / "crt" / "include"
    link_program(triple, "main.c", [], tmp_path / "main", "-I.", f"-I{include}", "-DTVM_CRT_SYSTEM_LIB=0")
    command = [*emulator_of(triple), "main"]
    done = subprocess.run(command, cwd=tmp_path, input=inputs.tobytes(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"".join(output * 2 for output in expected)


@pytest.mark.parametrize(
    ("triple", "machine"), [("arm64-unknown-linux-gnu", "AArch64"), ("riscv64-linux-gnu", "RISC-V")]
)
def test_shared_libraries_for_linux_export_their_entries(
    triple: str, machine: str, factory: Factory, tmp_path: Path
) -> None:
    path = factory.export_library(tmp_path / "kws.so", target_triple=triple)
    command = [need("readelf", "binutils"), "-W", "-h", "--dyn-syms", str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"Machine:\s+{machine}", said)
    assert re.search(r"Type:\s+DYN", said)
    assert {line.split()[-1] for line in said.splitlines() if "DEFAULT" in line and " UND " not in line} >= ENTRIES


@pytest.mark.parametrize("target", ["c", "llvm -mcpu=auto"])
def test_a_library_for_windows_exports_its_entries(target: str, digits: Factory, tmp_path: Path) -> None:
    triple = "x86_64-w64-mingw32"
    path = compiled(digits, target, triple).export_library(tmp_path / "kws.dll", target_triple=triple)
    said = subprocess.run([need("objdump", "binutils"), "-p", path], capture_output=True, text=True, check=True).stdout
    assert "file format pei-x86-64" in said
    assert "DLL" in said
    names = set(said.partition("Ordinal/Name Pointer] Table")[2].split())
    assert names >= ENTRIES
    assert (LEVEL in names) == target.endswith("auto")


@pytest.mark.parametrize("target", ["c", "llvm -mcpu=auto"])
def test_a_library_for_macos_exports_its_entries(target: str, digits: Factory, tmp_path: Path) -> None:
    triple = "aarch64-macos"
    path = compiled(digits, target, triple).export_library(tmp_path / "kws.dylib", target_triple=triple)
    arch, kind, names = read_macho(path.read_bytes())
    assert (arch, kind) == (0x0100_000C, 6)
    assert {f"_{name}" for name in ENTRIES} <= names
    assert (f"_{LEVEL}" in names) == target.endswith("auto")


def read_macho(data: bytes) -> tuple[int, int, set[str]]:
    """Return a library's processor, its kind, and the external symbols that it defines."""
    magic, arch, _, kind, count = struct.unpack_from("<5I", data)
    assert magic == 0xFEED_FACF
    names, at = set(), 32
    for _ in range(count):
        command, size = struct.unpack_from("<2I", data, at)
        if command == 2:  # the symbol table
            table, entries, text, _ = struct.unpack_from("<4I", data, at + 8)
            for index in range(entries):
                name, traits, section = struct.unpack_from("<IBB", data, table + 16 * index)
                if traits & 1 and section:
                    names.add(data[text + name : data.index(b"\0", text + name)].decode())
        at += size
    return arch, kind, names


@pytest.fixture(scope="module", params=["c", "llvm"])
def wasm(request: pytest.FixtureRequest, factory: Factory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    triple = "wasm32-wasi"
    path = tmp_path_factory.mktemp("wasm") / "kws.wasm"
    return compiled(factory, request.param, triple).export_library(path, target_triple=triple)


def test_webassembly_computes_the_same_in_wasmtime(wasm: Path, inputs: Any, expected: list[bytes]) -> None:
    wasmtime = pytest.importorskip("wasmtime", reason="pip install wasmtime")
    engine = wasmtime.Engine()
    store, linker = wasmtime.Store(engine), wasmtime.Linker(engine)
    store.set_wasi(wasmtime.WasiConfig())
    linker.define_wasi()
    exports = linker.instantiate(store, wasmtime.Module(engine, wasm.read_bytes())).exports(store)
    exports["_initialize"](store)
    memory = exports["memory"]
    x, y, pointers = (exports["malloc"](store, nbytes) for nbytes in (490, 12, 8))
    memory.write(store, struct.pack("<II", x, y), pointers)
    for value, output in zip(inputs, expected, strict=True):
        memory.write(store, value.tobytes(), x)
        assert exports["tvmgen_kws_run"](store, pointers, pointers + 4) == 0
        assert bytes(memory.read(store, y, y + 12)) == output


NODE = """
const fs = require("fs");
const { WASI } = require("wasi");
const [file, input] = process.argv.slice(2);
const wasi = new WASI({ version: "preview1" });
WebAssembly.instantiate(fs.readFileSync(file), wasi.getImportObject()).then(({ instance }) => {
  wasi.initialize(instance);
  const { malloc, memory, tvmgen_kws_run } = instance.exports;
  const data = fs.readFileSync(input);
  const [x, y, pointers] = [490, 12, 8].map((bytes) => malloc(bytes));
  for (let at = 0; at < data.length; at += 490) {
    new Uint32Array(memory.buffer, pointers, 2).set([x, y]);
    new Uint8Array(memory.buffer, x, 490).set(data.subarray(at, at + 490));
    if (tvmgen_kws_run(pointers, pointers + 4) !== 0) process.exit(2);
    process.stdout.write(Buffer.from(memory.buffer, y, 12).toString("hex"));
  }
});
"""


def test_webassembly_computes_the_same_in_node(wasm: Path, inputs: Any, expected: list[bytes], tmp_path: Path) -> None:
    node = need("node", "nodejs")
    (tmp_path / "run.js").write_text(NODE)
    (tmp_path / "in.bin").write_bytes(inputs.tobytes())
    command = [node, "--no-warnings", "run.js", str(wasm), "in.bin"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert bytes.fromhex(said) == b"".join(expected)


# runs a matrix product with one thread and with three, and counts how often its work was shared
_THREADS = """
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static float x[512 * 128], y[2][512 * 128];

int main(void) {
  void *library = dlopen("./product.so", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return fprintf(stderr, "%s\\n", dlerror()), 1;
  int32_t (*run)(void *, void *) = (int32_t (*)(void *, void *))dlsym(library, "tvmgen_product_run");
  void (*choose)(int32_t) = (void (*)(int32_t))dlsym(library, "mlfc_set_num_threads");
  for (int i = 0; i < 512 * 128; ++i) x[i] = (float)(i % 251) - 125;
  for (int k = 0; k < 2; ++k) {
    void *input = x, *output = y[k];
    choose(k == 0 ? 1 : 3);
    if (run(&input, &output) != 0) return 2;
  }
  return memcmp(y[0], y[1], sizeof x) != 0 || y[0][0] == 0 ? 3 : 0;
}
"""


@pytest.fixture(scope="module")
def shared_product() -> Factory:
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.standard_normal((128, 128), np.float32), "w")
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (512, 128)) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", tensors[:1], tensors[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return mlfc.compile(model, "c", module_name="product", parallel=True).factory


def test_threads_of_another_processor_compute_the_same(shared_product: Factory, tmp_path: Path) -> None:
    triple = "aarch64-linux-gnu"
    shared_product.export_library(tmp_path / "product.so", target_triple=triple)
    (tmp_path / "main.c").write_text(_THREADS)
    link_program(triple, "main.c", [], tmp_path / "main")
    done = subprocess.run([*emulator_of(triple), "main"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_library_with_threads_for_windows_is_complete(shared_product: Factory, tmp_path: Path) -> None:
    triple = "x86_64-w64-mingw32"
    path = shared_product.export_library(tmp_path / "product.dll", target_triple=triple)
    said = subprocess.run([need("objdump", "binutils"), "-p", path], capture_output=True, text=True, check=True).stdout
    assert {"mlfc_set_num_threads", "tvmgen_product_run"} <= set(
        said.partition("Ordinal/Name Pointer] Table")[2].split()
    )
    assert {"CreateThread", "SleepConditionVariableSRW"} <= set(said.partition("Ordinal/Name")[0].split())


def test_a_library_for_another_machine_says_so(factory: Factory, tmp_path: Path) -> None:
    path = factory.export_library(tmp_path / "kws.so", target_triple="riscv64-linux-gnu")
    with pytest.raises(mlfc.errors.ArchiveError, match="it is for RISC-V Linux; this machine is"):
        mlfc.load_module(path)


def test_machines_that_nobody_knows_are_refused(factory: Factory, tmp_path: Path) -> None:
    with pytest.raises(mlfc.errors.OptionError, match="unknown machine 'pdp11-linux'"):
        factory.export_library(tmp_path / "kws.so", target_triple="pdp11-linux")
    assert not list(tmp_path.iterdir())

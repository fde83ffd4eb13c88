"""With -DMLFC_TRACE=1 the code reports a checksum and the time of every operator."""

from __future__ import annotations

import ctypes
import re
import zlib
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import mlfc
from mlfc.archive import load_profiled
from mlfc.crt import trace_headers
from mlfc.library.toolchain import compile_cached
from mlfc.runtime import AotModule
from mlfc.runtime.tensor.arrays import fill
from mlfc.verify.litert import LiteRtReference
from tests.conftest import need
from tests.native.extracted import WARNINGS, extracted, imported, make
from tests.native.programs import chain, generated
from tests.native.test_profile import DESCRIPTION

pytestmark = pytest.mark.usefixtures("quick_builds")

LINE = re.compile(r"^trace (\d+) ([0-9a-f]{8}) (\d+)$", re.MULTILINE)


@pytest.mark.parametrize("compiler", ["gcc", "clang", "gcc -fsanitize=address,undefined"])
def test_an_archive_traces_out_of_the_box(compiler: str, models: Path, tmp_path: Path) -> None:
    program = compiler.split(maxsplit=1)[0]
    need(program, program)
    path = models / "kws_ref_model.tflite"
    folder = extracted(imported(path, "kws"), tmp_path, test_vectors=1)
    printed = make(folder, "test", f"CC={compiler}", "CPPFLAGS=-DMLFC_TRACE=1", f"CFLAGS={WARNINGS}")
    operators = mlfc.inspect(tmp_path / "archive.tar")["modules"]["kws"]["operators"]
    lines = LINE.findall(printed)
    assert [int(index) for index, _, _ in lines] == list(range(len(operators)))
    # the output of each operator equals a tensor of LiteRT
    tensors = LiteRtReference(path).run(fill(mlfc.load(tmp_path / "archive.tar").inputs, seed=0))
    sums = {zlib.crc32(np.ascontiguousarray(array).tobytes()) for array in tensors.values()}
    assert all(int(checksum, 16) in sums for _, checksum, _ in lines)
    assert len({checksum for _, checksum, _ in lines}) > len(lines) / 2


def test_the_virtual_machine_traces_calls_of_kernels(tmp_path: Path) -> None:
    body = "a = Constant <value = int64[1] {0}> () s = ReduceSum (x, a) y = Sub (x, s)"
    graph = f"(int32[n, 3] x) => (int32[n, 3] y) {{ {body} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {graph}')
    module, params = mlfc.import_model(model, shapes={"x": (mlfc.Dim("n", 1, 4), 3)})
    folder = extracted(mlfc.build(module, "c", params, module_name="net"), tmp_path, test_vectors=2)
    lines = LINE.findall(make(folder, "test", "CPPFLAGS=-DMLFC_TRACE=1", f"CFLAGS={WARNINGS}"))
    assert [int(index) for index, _, _ in lines] == [0, 1, 0, 1]
    loaded = mlfc.load(tmp_path / "archive.tar")
    for seed, rows in enumerate((1, 4)):  # the first vector has the smallest sizes, the second the largest
        (y,) = loaded.run(fill([info.at({"n": rows}) for info in loaded.inputs], seed=seed)).values()
        assert int(lines[2 * seed + 1][1], 16) == zlib.crc32(y.tobytes())


def test_outputs_of_operators_are_seen_as_they_were(models: Path, tmp_path: Path) -> None:
    """Observe outputs when they are written, because later operators reuse the workspace."""
    path = models / "kws_ref_model.tflite"
    archive = mlfc.export_model_library_format(imported(path, "kws"), tmp_path / "kws.tar")
    module = load_profiled(archive)
    inputs = fill(module.inputs, seed=3)
    seen = module.operator_outputs(inputs)
    tensors = {np.ascontiguousarray(array).tobytes() for array in LiteRtReference(path).run(inputs).values()}
    assert len(seen) == len(module.profile(inputs, 1).operators)
    assert all(output in tensors for output in seen)


OWN = rb"""
#include <stdint.h>
#include <string.h>
char own_text[200];
static uint64_t time = UINT64_C(0xfffffffffffffff0);
void own_print(const char *line) { strcat(own_text, line); }
uint64_t own_ticks(void) { return time += 7; }
"""


def test_its_clock_and_its_printing_are_the_users(tmp_path: Path) -> None:
    program, added = chain(5)
    files = {**generated(program).files, **trace_headers(), "own.c": OWN}
    flags = ("-DMLFC_TRACE=1", "-DMLFC_TRACE_PRINT=own_print", "-DMLFC_TRACE_TICKS=own_ticks")
    library = compile_cached(files, (*flags, *WARNINGS.split()))
    x = np.arange(5, dtype=np.float32)
    y = AotModule(library, DESCRIPTION).run(x)["y"]
    np.testing.assert_allclose(y, x + added, rtol=1e-5)
    text = ctypes.string_at(ctypes.CDLL(str(library)).own_text).decode()
    assert [(int(index), int(ticks)) for index, _, ticks in LINE.findall(text)] == [(0, 7), (1, 7), (2, 7)]
    assert int(LINE.findall(text)[2][1], 16) == zlib.crc32(y.tobytes())


@pytest.mark.parametrize("data", [b"", b"123456789", bytes(8), bytes(range(256)) * 3])
def test_the_checksum_is_zlibs(data: bytes) -> None:
    wrapper = b"""#include "mlfc_checksum.h"
    uint32_t checksum(const void *data, size_t nbytes) { return mlfc_checksum(data, nbytes); }"""
    library = compile_cached({**trace_headers(), "checksum.c": wrapper}, tuple(WARNINGS.split()))
    function = ctypes.CDLL(str(library)).checksum
    function.restype = ctypes.c_uint32
    assert function(data, ctypes.c_size_t(len(data))) == zlib.crc32(data)

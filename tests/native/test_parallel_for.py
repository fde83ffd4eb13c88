"""Code of archives whose kernels share their work through the application's function: no heap, the same bits."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive.write.rebuild import rebuild, recorded_options
from mlfc.errors import OptionError
from mlfc.tir import ir
from mlfc.tir.parallel import parallelize
from mlfc.tir.unroll import Unroll
from mlfc.tir.visitor import walk
from tests.conftest import need
from tests.native.extracted import WARNINGS, extracted, make

pytestmark = pytest.mark.usefixtures("quick_builds")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "two-cores.md"
STAND_INS = Path(__file__).with_name("stand_ins") / "pico"
STRICT = ("-std=c99", *WARNINGS.split(), "-Wno-error=cpp", "-pthread")

# runs ranges in another order, the first with the caller's scratch, the others with scratch full of NaN
_IN_ANY_ORDER = """
#include <mlfc_parallel.h>
#include <mlfc_parallel_sizes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t scratch[MLFC_PARALLEL_SCRATCH_SIZE / 8 + 16];
static int calls;

static int32_t in_any_order(mlfc_task *task, const void *arguments, int32_t count, int32_t most, uint64_t nbytes) {
  void *const own = (void *)(((uintptr_t)scratch + 63) / 64 * 64);
  const int32_t middle = count * (1 + calls % 3) / 4;
  (void)most;
  ++calls;
  if (nbytes > MLFC_PARALLEL_SCRATCH_SIZE) exit(9);
  memset(scratch, 255, sizeof scratch);
  if (task(arguments, middle, count, own) != 0) return -1;
  memset(scratch, 255, sizeof scratch);
  if (task(arguments, middle / 2, middle, own) != 0) return -1;
  return task(arguments, 0, middle / 2, NULL);
}

static void report(void) { printf("shared: %d\\n", calls); }

__attribute__((constructor)) static void begin(void) {
  mlfc_set_parallel_for(in_any_order);
  atexit(report);
}
"""


@pytest.mark.parametrize(
    ("model", "target", "executor", "calls"),
    [
        ("kws_ref_model", "c -mcpu=cortex-m33", "graph", 9),
        ("kws_ref_model", "c -mcpu=cortex-m0plus", "aot", 9),
        ("pretrainedResnet_quant", "c", "aot", 8),
        ("kws_ref_model", "llvm", "graph", 4),
    ],
)
def test_demos_of_archives(model: str, target: str, executor: str, calls: int, models: Path, tmp_path: Path) -> None:
    module, params = mlfc.import_model(models / f"{model}.tflite")
    serial, shared = (
        mlfc.build(module, target, params, executor=executor, module_name="m", parallel=parallel)
        for parallel in (None, True)
    )
    folder = extracted(shared, tmp_path, test_vectors=2)
    (tmp_path / "serial").mkdir()
    vectors = extracted(serial, tmp_path / "serial", test_vectors=2) / "demo" / "m_vectors.c"
    assert (folder / "demo" / "m_vectors.c").read_text() == vectors.read_text()
    (folder / "demo" / "any_order.c").write_text(_IN_ANY_ORDER)
    make(folder, f"CFLAGS={WARNINGS}")
    built = {path.stem for path in (folder / "build").rglob("*.o")}
    assert "codegen_host_src_mlfc_parallel_for" in built
    objects = [str(path) for path in (folder / "build").rglob("demo_*.o")]
    objects += [str(path) for path in (folder / "build").rglob("runtime_host_*.o")]
    command = ["cc", *STRICT, f"-I{folder}/codegen/host/include", "demo/any_order.c", *objects, "libm.a", "-lm"]
    subprocess.run([*command, "-o", "demo/shared"], cwd=folder, check=True)
    done = subprocess.run(["demo/shared"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"shared: (\d+)", done.stdout)[1]) >= 2 * calls  # type: ignore[index]


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_page_on_two_cores(compiler: str, models: Path, tmp_path: Path) -> None:
    module, params = mlfc.import_model(models / "kws_ref_model.tflite")
    shared = mlfc.build(module, "c -mcpu=cortex-m33", params, module_name="kws", parallel=True)
    folder = extracted(shared, tmp_path)
    files = re.findall(r"^```c (\S+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == ["two_cores.c", "two_cores.h", "main.c"]
    for name, text in files:
        (folder / name).write_text(text)
    (folder / "printed.c").write_text(
        (folder / "main.c").read_text().replace("int main(void)", "int run(void)")
        + "#include <pico/multicore.h>\n#include <stdio.h>\nint main(void) {\n  if (run() != 0) return 1;\n"
        + '  for (int i = 0; i < 12; ++i) printf("%d ", scores[i]);\n  printf("%d", asked_core1());\n  return 0;\n}\n'
    )
    sources = [str(path) for path in sorted((folder / "codegen" / "host" / "src").glob("*.c"))]
    sources += ["two_cores.c", "printed.c", str(STAND_INS / "multicore.c")]
    folders = [f"-I{folder}/codegen/host/include", f"-I{STAND_INS}", "-I."]
    subprocess.run([compiler, *STRICT, *folders, *sources, "-lm", "-o", "two_cores"], cwd=folder, check=True)
    said = subprocess.run(["./two_cores"], cwd=folder, capture_output=True, text=True, check=True).stdout.split()
    samples = (np.arange(490) * 7).astype(np.int8).reshape(1, 49, 10, 1)
    expected = mlfc.build(module, "c -mcpu=cortex-m33", params, module_name="kws").runtime.run(samples)
    assert list(map(int, said[:12])) == next(iter(expected.values())).ravel().tolist()
    assert int(said[12]) >= 9


def test_archives_are_loaded_validated_and_compiled_again(models: Path, tmp_path: Path) -> None:
    module, params = mlfc.import_model(models / "kws_ref_model.tflite")
    shared = mlfc.build(module, "c", params, module_name="kws", parallel=True)
    path = mlfc.export_model_library_format(shared, tmp_path / "kws.tar")
    assert not mlfc.validate(path)
    inputs = {shared.program.inputs[0].name: np.ones((1, 49, 10, 1), np.int8)}
    expected = mlfc.compile(models / "kws_ref_model.tflite", "c").run(inputs)
    for name, found in mlfc.load(path).run(inputs).items():
        assert found.tobytes() == expected[name].tobytes()
    again = rebuild(path)
    other = mlfc.export_model_library_format(again[0], tmp_path / "again.tar", options=recorded_options(path))
    assert other.read_bytes() == path.read_bytes()
    with pytest.raises(OptionError, match="--optimize size"):
        mlfc.build(module, "c", params, parallel=True, optimize="size")


def test_boards_know_their_memory(models: Path, tmp_path: Path, command: Any) -> None:
    need("arm-none-eabi-gcc", "gcc-arm-none-eabi")
    asked = ("--board", "mps2-an386", "--parallel", "-o", tmp_path / "kws.tar")
    said = command("compile", models / "kws_ref_model.tflite", *asked)
    assert re.search(r"code of the model +[0-9,]+ +compiled alone", said)
    assert "mlfc_parallel_for has an unknown call target" in said


def test_pairs_of_pixels_are_independent(models: Path) -> None:
    """Compute rows and columns of the output as quotients and remainders of the pixel's number."""
    module, params = mlfc.import_model(models / "kws_ref_model.tflite")
    factory = mlfc.build(module, "c -mcpu=cortex-m33", params, dry_run=True, parallel=True)
    kernel = next(kernel for kernel in factory.program.kernels if kernel.name.endswith("requantize_2"))
    shared = parallelize(Unroll(keeps_begins=True)(kernel))
    (part,) = (stmt for stmt in walk(shared.body) if isinstance(stmt, ir.Parallel))
    assert isinstance(part.count, ir.Const)
    assert part.count.value == 62
    assert not part.private, "what a pair of pixels needs is on the stack"

"""The C of real models: no warnings, and clean under sanitizers on extreme inputs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import mlfc
from mlfc.factory import Factory
from mlfc.support.content import to_bytes, write_data
from tests.conftest import need
from tests.verify_tir import verify

CALLER = """
#include "{header}"
static {kind} input[{prefix}_{input}_SIZE / sizeof({kind})], output[{prefix}_{output}_SIZE / sizeof({kind})];
int main(void) {{
  struct {struct}_inputs inputs = {{input}};
  struct {struct}_outputs outputs = {{output}};
  const int values[] = {{-128, 127, 0, 7}};
  for (int run = 0; run < 4; ++run) {{
    for (unsigned i = 0; i < sizeof input / sizeof input[0]; ++i) {{
      input[i] = ({kind})(run == 3 ? (int)(i * 2654435761U >> 24) - 128 : values[run]);
    }}
    if ({struct}_run(&inputs, &outputs) != 0) {{ return 2; }}
  }}
  return 0;
}}
"""
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
SMALL = ("hello_world_int8", "kws_ref_model", "kws_ref_model_float32", "ad01_int8")
LARGE = ("vww_96_int8", "pretrainedResnet_quant", "pretrainedResnet")
COMPILERS = ("gcc", "clang")
# Compilers, clang more than gcc, take up to a minute to instrument a large model. One model of each kind of operator is
# therefore run, the others are only checked for warnings; the dense layers of ad01_int8 run in the tests of small code.
RUN = {("hello_world_int8", "gcc"), ("hello_world_int8", "clang"), ("kws_ref_model", "gcc"),
       ("kws_ref_model_float32", "gcc"), ("pretrainedResnet_quant", "gcc")}  # fmt: skip


@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_real_model_is_clean(name: str, models: Path, tmp_path: Path) -> None:
    module, params = mlfc.import_model(models / f"{name}.tflite")
    factory = mlfc.build(module, params=params, module_name="model")
    # the smaller models cover warnings that depend on optimization
    level = "-O0" if name in LARGE else "-O1"
    for compiler in COMPILERS:
        run_clean(factory, compiler, tmp_path / compiler, is_run=(name, compiler) in RUN, level=level)


# clang runs code with vectors or blocks of them, gcc the other code
@pytest.mark.parametrize(
    ("cpu", "runs"), [("generic", "clang"), ("cortex-m55", "clang"), ("cortex-m4", "gcc"), ("cortex-m3", "gcc")]
)
def test_shared_kernels_are_clean(cpu: str, runs: str, models: Path, tmp_path: Path) -> None:
    module, params = mlfc.import_model(models / "ad01_int8.tflite")
    factory = mlfc.build(module, f"c -mcpu={cpu}", params, module_name="model", optimize="size")
    assert "->k_count;" in to_bytes(factory.code.files["src/model_lib1.c"]).decode() or cpu != "cortex-m4"
    for compiler in COMPILERS:
        run_clean(factory, compiler, tmp_path / compiler, is_run=compiler == runs)


def run_clean(factory: Factory, compiler: str, tmp_path: Path, *, is_run: bool, level: str = "-O1") -> None:
    """Compile a module without warnings; if `is_run`, run it under sanitizers on extreme inputs."""
    need(compiler, compiler)
    for kernel in factory.program.kernels:
        verify(kernel)
    for path, data in factory.code.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        write_data(tmp_path / path, data)
    header = to_bytes(factory.code.files[f"include/{factory.code.header_name}"]).decode()
    sizes = [line.split()[1] for line in header.splitlines() if line.startswith("#define") and "_SIZE" in line]
    input_name, output_name, _ = (size.removeprefix("TVMGEN_MODEL_").removesuffix("_SIZE") for size in sizes)
    kind = "float" if factory.program.inputs[0].dtype == "float32" else "int8_t"
    names = {"struct": "tvmgen_model", "prefix": "TVMGEN_MODEL", "input": input_name, "output": output_name}
    (tmp_path / "main.c").write_text(CALLER.format(header=factory.code.header_name, kind=kind, **names))
    sources = sorted(str(tmp_path / path) for path in factory.code.files if path.endswith((".c", ".S")))
    checks = [level, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"] if is_run else ["-fsyntax-only"]
    command = [compiler, "-std=c99", *WARNINGS, *checks, "-I", str(tmp_path / "include")]
    if not is_run:
        sources = [source for source in sources if source.endswith(".c")]
    link = ["-o", str(tmp_path / "run"), "-lm"] if is_run else []
    built = subprocess.run([*command, *sources, str(tmp_path / "main.c"), *link],
                           check=False, capture_output=True, text=True)  # fmt: skip
    assert (built.returncode, built.stderr) == (0, "")
    if is_run:
        subprocess.run([str(tmp_path / "run")], check=True, cwd=tmp_path)

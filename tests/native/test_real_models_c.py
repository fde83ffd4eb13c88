"""The C of real models: no warnings, and clean under sanitizers on extreme inputs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import mlfc
from mlfc.factory import Factory
from mlfc.support.content import to_bytes, write_data
from mlfc.tir.verify import verify
from tests.conftest import need

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
CASES = [
    *((name, compiler) for name in SMALL for compiler in ("gcc", "clang")),
    *(pytest.param(name, compiler, marks=pytest.mark.slow) for name in LARGE for compiler in ("gcc", "clang")),
    pytest.param("mobilenet_v2_quantized_1x3x224x224", "gcc", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "compiler"), CASES)
def test_real_model_is_clean(name: str, compiler: str, models: Path, tmp_path: Path) -> None:
    module, params = mlfc.import_model(models / f"{name}.tflite")
    # clang takes minutes to instrument large models, gcc one for the largest, and they find what is in the others too
    sanitized = name in SMALL or (compiler == "gcc" and name in LARGE)
    run_clean(mlfc.build(module, params=params, module_name="model"), compiler, tmp_path, sanitized=sanitized)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("cpu", ["generic", "cortex-m4", "cortex-m55", "cortex-m3"])
def test_shared_kernels_are_clean(cpu: str, compiler: str, models: Path, tmp_path: Path) -> None:
    module, params = mlfc.import_model(models / "ad01_int8.tflite")
    factory = mlfc.build(module, f"c -mcpu={cpu}", params, module_name="model", optimize="size")
    assert "->k_count;" in to_bytes(factory.code.files["src/model_lib1.c"]).decode() or cpu != "cortex-m4"
    run_clean(factory, compiler, tmp_path, sanitized=True)


def run_clean(factory: Factory, compiler: str, tmp_path: Path, *, sanitized: bool) -> None:
    """Build a module without warnings, and run it on extreme inputs."""
    need(compiler, compiler)
    for kernel in factory.program.kernels:
        verify(kernel)
    for path, data in factory.code.files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        write_data(tmp_path / path, data)
    header = to_bytes(factory.code.files[f"include/{factory.code.header_name}"]).decode()
    sizes = [line.split()[1] for line in header.splitlines() if line.startswith("#define") and "_SIZE" in line]
    input_name, output_name, _ = (size.removeprefix("TVMGEN_MODEL_").removesuffix("_SIZE") for size in sizes)
    kind = "float" if factory.program.inputs[0].dtype == "float32" else "int8_t"
    names = {"struct": "tvmgen_model", "prefix": "TVMGEN_MODEL", "input": input_name, "output": output_name}
    (tmp_path / "main.c").write_text(CALLER.format(header=factory.code.header_name, kind=kind, **names))
    sources = sorted(str(tmp_path / path) for path in factory.code.files if path.endswith((".c", ".S")))
    checks = ["-O1", *(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"] if sanitized else [])]
    command = [compiler, "-std=c99", *WARNINGS, *checks, "-I", str(tmp_path / "include"), *sources]
    built = subprocess.run([*command, str(tmp_path / "main.c"), "-o", str(tmp_path / "run"), "-lm"],
                           check=False, capture_output=True, text=True)  # fmt: skip
    assert (built.returncode, built.stderr) == (0, "")
    subprocess.run([str(tmp_path / "run")], check=True, cwd=tmp_path)

"""The files of a module compile everywhere, declare correct sizes, and run clean under sanitizers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.codegen import GeneratedCode
from mlfc.support.content import to_bytes, write_data
from tests.conftest import need
from tests.native.programs import chain, generated

WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]
SMALL, LARGE = 100, 200_000  # the constants of the large one go to a binary file

CALLER = """
#include <stdio.h>
#include "{header}"
static float data[{prefix}_IN_PUT_0_SIZE / sizeof(float)], result[{prefix}_IDENTITY_SIZE / sizeof(float)];
{pool}
int main(void) {{
  for (size_t i = 0; i < {size}; ++i) {{ data[i] = (float)i; }}
  struct tvmgen_chain_v1_inputs inputs = {{data}};
  struct tvmgen_chain_v1_outputs outputs = {{result}};
{pools}
  if (tvmgen_chain_v1_run(&inputs, NULL{pool_argument}) != -1) {{ return 3; }}
  if (tvmgen_chain_v1_run(&inputs, &outputs{pool_argument}) != 0) {{ return 2; }}
  fwrite(result, 1, {prefix}_IDENTITY_SIZE, stdout);
  return 0;
}}
"""
POOL = "static _Alignas(64) uint8_t memory[TVMGEN_CHAIN_V1_GLOBAL_WORKSPACE_WORKSPACE_POOL_SIZE];"
POOLS = "  struct tvmgen_chain_v1_workspace_pools pools = {memory};"


def compiler(name: str) -> list[str]:
    if name == "zig":
        pytest.importorskip("ziglang", reason="pip install ziglang")
        return [sys.executable, "-m", "ziglang", "cc"]
    need(name, name)
    return [name]


def written(code: GeneratedCode, folder: Path) -> list[str]:
    """Write the files and return the paths of the sources."""
    for name, data in code.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_data(path, data)
    return [str(folder / name) for name in sorted(code.files) if name.endswith((".c", ".S"))]


def caller(code: GeneratedCode, size: int) -> str:
    external = {"pool": POOL, "pools": POOLS, "pool_argument": ", &pools"}
    static = dict.fromkeys(external, "")
    names = {"header": code.header_name, "prefix": "TVMGEN_CHAIN_V1", "size": size}
    return CALLER.format(**names, **(external if code.external_workspace else static))


def link(name: str, flags: list[str], sources: list[str], program: Path) -> None:
    """Link a program; zig's objects use gcc's C library, because zig would first compile its own."""
    if name == "zig":
        objects = []
        for number, source in enumerate(sources):
            objects.append(str(program.with_name(f"{number}.o")))
            subprocess.run([*compiler(name), *flags, "-fPIC", "-c", source, "-o", objects[-1]], check=True)
        name, flags, sources = "gcc", [], objects
    subprocess.run([*compiler(name), *flags, *sources, "-o", program, "-lm"], check=True, cwd=program.parent)


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["arrays", "binary"])
@pytest.mark.parametrize("external", [False, True], ids=["static", "external"])
@pytest.mark.parametrize("name", ["gcc", "clang", "zig"])
def test_module_runs_clean_under_sanitizers(name: str, external: bool, size: int, tmp_path: Path) -> None:
    program, total = chain(size)
    code = generated(program, external_workspace=external)
    (tmp_path / "main.c").write_text(caller(code, size))
    sources = [*written(code, tmp_path), str(tmp_path / "main.c")]
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    if name == "zig":  # zig has no sanitizer runtimes: undefined behaviour traps
        checks = ["-fsanitize=undefined", "-fsanitize-trap=undefined"]
    flags = ["-g", "-O1", "-std=c11", *checks, f"-I{tmp_path}/include"]
    link(name, flags, sources, tmp_path / "run")
    result = subprocess.run([str(tmp_path / "run")], check=True, capture_output=True)
    ours = np.frombuffer(result.stdout, np.float32)
    np.testing.assert_allclose(ours, np.arange(size, dtype=np.float32) + total, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "flags"),
    [("gcc", []), ("gcc", ["-m32"]), ("clang", []), ("zig", []), ("arm-none-eabi-gcc", ["-mcpu=cortex-m4"])],
    ids=["gcc", "gcc-m32", "clang", "zig", "cortex-m4"],
)
@pytest.mark.parametrize("optimization", ["-O0", "-O3"])
def test_no_warnings(name: str, flags: list[str], optimization: str, tmp_path: Path) -> None:
    for size in (SMALL, LARGE):
        for source in written(generated(chain(size)[0]), tmp_path):
            command = [*compiler(name), *flags, optimization, *WARNINGS, f"-I{tmp_path}/include", "-c", source]
            result = subprocess.run([*command, "-o", f"{source}.o"], check=False, capture_output=True, text=True)
            assert (result.returncode, result.stderr) == (0, "")


def symbols(objects: list[str]) -> dict[str, int]:
    """Return the sizes of all defined symbols by name."""
    need("nm", "binutils")
    lines = subprocess.run(["nm", "-S", *objects], check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [line.split() for line in lines]
    return {row[3]: int(row[1], 16) for row in rows if len(row) == 4}


def compiled(code: GeneratedCode, folder: Path) -> list[str]:
    sources = written(code, folder)
    for source in sources:
        include = f"-I{folder}/include"
        subprocess.run([*compiler("gcc"), "-O1", include, "-c", source, "-o", f"{source}.o"], check=True)
    return [f"{source}.o" for source in sources]


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["arrays", "binary"])
def test_sizes_are_what_the_objects_hold(size: int, tmp_path: Path) -> None:
    code = generated(chain(size)[0])
    found = symbols(compiled(code, tmp_path))
    constants = {name: count for name, count in found.items() if "constant_" in name}
    assert len(constants) == 2, "equal constants are stored once"
    assert sum(constants.values()) == code.sizes.constants == 2 * 4 * size
    assert found["global_workspace"] == code.sizes.workspace
    header = to_bytes(code.files[f"include/{code.header_name}"]).decode()
    assert f"#define TVMGEN_CHAIN_V1_WORKSPACE_SIZE {code.sizes.workspace}\n" in header


def test_sizes_of_a_real_model(models: Path, tmp_path: Path) -> None:
    module, params = mlfc.import_model(models / "kws_ref_model.tflite")
    code = mlfc.build(module, params=params, module_name="kws").code
    found = symbols(compiled(code, tmp_path))
    assert sum(count for name, count in found.items() if "constant_" in name) == code.sizes.constants
    assert found["global_workspace"] == code.sizes.workspace
    assert code.sizes.io == 490 + 12


def test_header_is_c_plus_plus_and_matches_what_firmware_of_microtvm_uses(models: Path, tmp_path: Path) -> None:
    need("g++", "g++")
    module, params = mlfc.import_model(models / "kws_ref_model.tflite")
    code = mlfc.build(module, params=params, module_name="kws").code
    written(code, tmp_path)
    firmware = """
    #include "tvmgen_kws.h"
    static int8_t in[TVMGEN_KWS_INPUT_1_SIZE], out[TVMGEN_KWS_IDENTITY_SIZE];
    static_assert(TVMGEN_KWS_INPUT_1_SIZE == 490 && TVMGEN_KWS_IDENTITY_SIZE == 12, "sizes");
    static_assert(TVMGEN_KWS_WORKSPACE_SIZE > 0, "workspace");
    int32_t infer() {
      struct tvmgen_kws_inputs inputs = {in};
      struct tvmgen_kws_outputs outputs = {out};
      return tvmgen_kws_run(&inputs, &outputs);
    }
    """
    flags = ["-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{tmp_path}/include"]
    subprocess.run(["g++", "-x", "c++", *flags, "-fsyntax-only", "-"], input=firmware, text=True, check=True)


def test_same_program_gives_the_same_bytes() -> None:
    assert generated(chain(SMALL)[0]).files == generated(chain(SMALL)[0]).files


def test_shared_kernel_is_printed_once() -> None:
    code = generated(chain(SMALL)[0])
    text = to_bytes(code.files["src/chain_v1_lib1.c"]).decode()
    assert text.count("int32_t tvmgen_chain_v1_fused_add(const float") == 1
    assert text.count("if (tvmgen_chain_v1_fused_add(") == 2

"""Constants that an assembler includes: built by every compiler, also for 32-bit machines, from any folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlfc.codegen import GeneratedCode
from mlfc.codegen.constants import BLOB_THRESHOLD
from mlfc.support.content import write_data
from tests.conftest import need
from tests.native.programs import chain, generated

SIZE = BLOB_THRESHOLD // 4  # a module has two arrays of this many floats, together above the threshold
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")

MAIN = f"""
#include <stdio.h>
#include "tvmgen_chain_v1.h"
static float data[{SIZE}], result[{SIZE}];
int main(void) {{
  struct tvmgen_chain_v1_inputs inputs = {{data}};
  struct tvmgen_chain_v1_outputs outputs = {{result}};
  const int32_t status = tvmgen_chain_v1_run(&inputs, &outputs);
  fwrite(result, sizeof result[0], {SIZE}, stdout);
  return status;
}}
"""


def compiler(name: str) -> list[str]:
    if name == "zig":
        pytest.importorskip("ziglang", reason="pip install ziglang")
        return [sys.executable, "-m", "ziglang", "cc"]
    return [need(name, "gcc-arm-none-eabi" if name.startswith("arm") else name)]


def written(code: GeneratedCode, folder: Path) -> Path:
    """Write the module's files under a folder whose name needs quotes, and return it."""
    root = folder / "two words"
    for name, data in code.files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        write_data(root / name, data)
    (root / "src" / "main.c").write_text(MAIN)
    return root


@pytest.mark.parametrize(
    ("name", "flags"), [("gcc", ()), ("clang", ()), ("zig", ()), ("gcc", ("-m32",)), ("clang", ("-m32",))]
)
def test_program_reads_its_constants(name: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    command = [*compiler(name), *flags]
    if flags:
        probe = tmp_path / "probe.c"
        probe.write_text("#include <stdio.h>\nint main(void) { return 0; }\n")
        if subprocess.run([*command, probe, "-o", tmp_path / "probe"], capture_output=True, check=False).returncode:
            pytest.skip("no 32-bit programs are built here; on Debian: apt-get install gcc-multilib")
    program, expected = chain(SIZE)
    root = written(generated(program), tmp_path)
    sources = sorted(root.glob("src/*.[cS]"))
    objects = []
    for source in sources:
        objects.append(tmp_path / f"{source.name}.o")
        line = [*command, *WARNINGS, "-O1", "-fPIC", "-I", root / "include", "-c", source, "-o", objects[-1]]
        built = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (built.returncode, built.stderr) == (0, "")
    # zig would first compile a C library
    linker = compiler("gcc") if name == "zig" else command
    subprocess.run([*linker, *objects, "-o", tmp_path / "program", "-lm"], check=True)
    output = subprocess.run([tmp_path / "program"], capture_output=True, check=True).stdout
    np.testing.assert_array_equal(np.frombuffer(output, "<f4"), expected)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("arm-none-eabi-gcc", ("-mcpu=cortex-m4", "-mthumb")),
        ("zig", ("-target", "aarch64-linux-musl")),
        ("zig", ("-target", "x86_64-windows-gnu")),
        ("zig", ("-target", "aarch64-macos")),
    ],
    ids=["cortex-m4", "aarch64", "windows", "macos"],
)
def test_other_machines_assemble_them(name: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    root = written(generated(chain(SIZE)[0]), tmp_path)
    (assembler,) = root.glob("src/*.S")
    command = [*compiler(name), *flags, "-c", str(assembler), "-o", str(tmp_path / "constants.o")]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    blob = assembler.with_name(f"{assembler.name}.bin").read_bytes()
    assert blob in (tmp_path / "constants.o").read_bytes()

"""Libraries with kernels for several processor levels: the level chosen on each processor, and its results."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import mlfc
from mlfc.archive.describe.inspect_library import inspect_library
from mlfc.errors import OptionError
from mlfc.factory import Factory
from mlfc.library.toolchain import run_tool
from mlfc.support.platforms import this_platform
from mlfc.target.features import LEVELS
from tests.conftest import need
from tests.native.foreign_libraries import without_c_library
from tests.native.foreign_programs import emulator_of, link_program
from tests.verify_tir import verify

_EXAMPLES = Path(__file__).parents[2] / "examples" / "digits"
MODEL, FLOATS = _EXAMPLES / "digits_int8.tflite", _EXAMPLES / "digits.onnx"
# with -O1 kernels compile in a tenth of the time; the flags of the levels follow
QUICK = ("-O1",)
X86 = [level.name for level in LEVELS.get("x86_64").levels]
ARM = [level.name for level in LEVELS.get("aarch64").levels]
AARCH64 = "aarch64-linux-gnu"
MAIN = """\
#include <stdint.h>
#include <stdio.h>
#include "tvmgen_digits.h"
const char *tvmgen_digits_cpu(void);
static @IN in[@INPUTS];
static @OUT out[@OUTPUTS];
int main(void) {
  const char *level = tvmgen_digits_cpu();
  struct tvmgen_digits_inputs inputs = {in};
  struct tvmgen_digits_outputs outputs = {out};
  uint32_t state = 1;
  for (int32_t i = 0; i < @INPUTS; ++i) {
    in[i] = (@IN)((state = state * 1664525u + 1013904223u) >> 24) @SCALE;
  }
  printf("%s %d", level == 0 ? "none" : level, (int)tvmgen_digits_run(&inputs, &outputs));
  for (int32_t i = 0; i < @OUTPUTS; ++i) {
    printf(" %.9g", (double)out[i]);
  }
  return fflush(stdout);
}
"""
SMALL_STACK = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
int main(int argc, char **argv) {
  static char memory[8192];
  const stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
  if (argc != 2 || sigaltstack(&stack, NULL) != 0) {
    return 1;
  }
  void *library = dlopen(argv[1], RTLD_NOW);
  const char *(*level)(void) = (const char *(*)(void))dlsym(library, "tvmgen_digits_cpu");
  printf("%s", level() == NULL ? "none" : level());
  return 0;
}
"""


def build(target: str, model: Path = MODEL) -> Factory:
    """Return a model of digits for a target."""
    module, params = mlfc.import_model(model)
    return mlfc.build(module, target, params, module_name="digits")


def main_text(factory: Factory) -> str:
    """Return a program that runs a model on generated data and prints level, status and results."""
    (given,), (result,) = factory.interface().inputs, factory.interface().outputs
    names = {"float32": "float", "int8": "int8_t", "uint8": "uint8_t"}
    return (
        MAIN.replace("@INPUTS", str(np.prod(given.shape)))
        .replace("@OUTPUTS", str(np.prod(result.shape)))
        .replace("@IN", names[given.dtype])
        .replace("@OUT", names[result.dtype])
        .replace("@SCALE", "/ 255.0f" if given.dtype == "float32" else "")
    )


def ran(command: Sequence[str], **variables: str) -> tuple[str, str, str, str]:
    """Return the level, status and results printed by the program, and its messages."""
    environment = {key: value for key, value in os.environ.items() if key != "MLFC_CPU"} | variables
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    level, status, results = done.stdout.split(" ", 2)
    return level, status, results, done.stderr


@pytest.fixture(scope="module")
def x86(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a library for all x86-64 processors, its objects and a program linked to it."""
    gcc = need("gcc", "gcc")
    if this_platform().arch != "x86_64":
        pytest.skip("this machine is no x86-64")
    folder = tmp_path_factory.mktemp("levels")
    with mock.patch("mlfc.isa.amx.templates.AmxPlan.pays", True):  # too small for tiles by default
        factory = build("c -mcpu=auto -mtriple=x86_64")
    factory.export_library(folder / "digits.so", cc=gcc, options=QUICK, workspace_dir=folder / "objects")
    (folder / "main.c").write_text(main_text(factory))
    (folder / "tvmgen_digits.h").write_bytes(bytes(factory.code.files["include/tvmgen_digits.h"]))
    run_tool([gcc, "-O1", "main.c", "digits.so", "-Wl,-rpath,$ORIGIN", "-o", "main"], folder)
    return folder


def test_every_processor_gets_the_kernels_that_it_can_run(x86: Path) -> None:
    program = str(x86 / "main")
    emulator = need("qemu-x86_64", "qemu-user")
    expected = {
        "qemu64": X86[0],
        "Nehalem": X86[0],
        "Haswell": X86[1],
        "Haswell,-xsave": X86[0],  # like an operating system that does not save wide registers
        "Haswell,-movbe": X86[0],
        "max": X86[1],  # the emulator does not support AVX-512
    }
    found = {cpu: ran([emulator, "-cpu", cpu, program]) for cpu in expected}
    found["here"] = ran([program])
    assert {cpu: item[0] for cpu, item in found.items() if cpu != "here"} == expected
    assert {item[1:3] for item in found.values()} == {("0", found["here"][2])}  # the same bits
    assert not any("mlfc" in item[3] for item in found.values())


def test_a_level_can_be_forced_and_is_refused_where_it_is_missing(x86: Path) -> None:
    program, emulator = str(x86 / "main"), need("qemu-x86_64", "qemu-user")
    haswell = [emulator, "-cpu", "Haswell", program]
    assert ran(haswell, MLFC_CPU=X86[0])[0] == X86[0]
    level, status, _, message = ran(haswell, MLFC_CPU=X86[2])
    assert (level, status) == ("none", "-1")
    assert message.endswith(f"got MLFC_CPU={X86[2]}: {X86[0]} {X86[1]}\n")
    assert ran(haswell, MLFC_CPU="z" * 99)[3].count("z") == 40


def test_programs_that_the_system_gives_no_tiles_run_without(x86: Path, tmp_path: Path) -> None:
    """Run where Linux denies tiles because the stack of a signal handler is too small for them."""
    gcc = need("gcc", "gcc")
    (tmp_path / "small.c").write_text(SMALL_STACK)
    run_tool([gcc, "small.c", "-ldl", "-o", "small"], tmp_path)
    command = [str(tmp_path / "small"), str(x86 / "digits.so")]
    environment = {key: value for key, value in os.environ.items() if key != "MLFC_CPU"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    here = X86.index(ran([str(x86 / "main")])[0])
    assert done.stdout == X86[min(here, 2)]
    refused = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment | {"MLFC_CPU": X86[3]}
    )
    assert refused.stdout == "none"
    assert f"got MLFC_CPU={X86[3]}: {X86[0]}" in refused.stderr


def test_python_refuses_a_level(x86: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFC_CPU", "x86-64-v33")
    with pytest.raises(OptionError, match=r"unknown level of processors 'x86-64-v33'; nearest: 'x86-64-v3'"):
        mlfc.load(x86 / "digits.so")
    with pytest.raises(OptionError, match=r"nearest: 'x86-64-v3'.*Set it to one of: x86-64"):
        _ = build("c -mcpu=auto -mtriple=x86_64").lib.path


def test_no_instruction_is_above_the_level_of_its_file(x86: Path) -> None:
    objdump = need("objdump", "binutils")
    used: dict[str, set[str]] = {level: set() for level in X86}
    for place in sorted((x86 / "objects").rglob("*.o")):
        text = subprocess.run([objdump, "-d", place], capture_output=True, text=True, check=True).stdout
        level = max((name for name in X86 if f"section mlfc.{name}:" in text), default=X86[0])
        names = re.findall(r"%([txyz]mm)[0-9]|%(k)[0-7]|\b(vf)n?m(?:add|sub)", text)
        used[level] |= {name for found in names for name in found if name}
    assert used[X86[0]] == {"xmm"}
    assert used[X86[1]] - {"vf"} == {"xmm", "ymm"}
    assert "zmm" in used[X86[2]]
    assert "tmm" not in used[X86[2]]
    assert "tmm" in used[X86[3]]


def test_the_size_of_each_level_is_told(x86: Path) -> None:
    found = inspect_library(x86 / "digits.so")
    assert list(found["library"]["levels"]) == X86
    assert min(found["library"]["levels"].values()) > 1000
    assert found["modules"]["digits"]["levels"] == X86


def test_long_bodies_stay_in_loops_for_older_processors() -> None:
    files = {name: bytes(data).decode() for name, data in build("c -mcpu=auto -mtriple=x86_64").code.files.items()}
    rolled = {name: text.count("MLF_ROLLED") for name, text in files.items() if "_lib1" in name}
    old, new = (rolled[f"src/digits_lib1_{level}.c"] for level in ("x86_64_v3", "x86_64_v4"))
    assert old > new
    pixels = r"MLF_ROLLED\n *for \(int32_t (px|column_[0-9]+)"  # loops that requantize channels
    assert re.search(pixels, files["src/digits_lib1_x86_64_v3.c"])
    assert re.search(pixels, files["src/digits_lib1.c"])
    assert not re.search(pixels, files["src/digits_lib1_x86_64_v4.c"])


def test_levels_share_weights_and_the_plan() -> None:
    """Check that tiles with different numbers of registers read the same packed weights and fit the planned memory."""
    one, several = build("c"), build("c -mcpu=auto -mtriple=x86_64")
    tables = {"slope", "rest", "above", "below"}  # of float32 lines, which do not replace weights
    lines = [buffer for kernel in several.program.kernels for buffer in kernel.constants if buffer.name in tables]
    aligned = sum((buffer.nbytes + 63) // 64 * 64 for buffer in lines)
    assert one.code.sizes.constants <= several.code.sizes.constants <= one.code.sizes.constants + aligned
    variants = [(kernel, kernel.at(X86[2])) for kernel in several.program.kernels if kernel.variants]
    assert variants
    for kernel, variant in variants:
        verify(variant)
        assert variant.scratch_bytes <= kernel.scratch_bytes
        assert variant.inplace == kernel.inplace


def arm_program(target: str, model: Path, folder: Path) -> list[str]:
    """Return an emulator command to be followed by the name of an AArch64 processor and the program."""
    pytest.importorskip("ziglang", reason="pip install ziglang")
    emulator = emulator_of(AARCH64)
    factory = build(f"{target} -mcpu=auto -mtriple={AARCH64}", model)
    with without_c_library():
        factory.export_library(folder / "digits.so", target_triple=AARCH64, options=QUICK)
    (folder / "main.c").write_text(main_text(factory))
    (folder / "tvmgen_digits.h").write_bytes(bytes(factory.code.files["include/tvmgen_digits.h"]))
    link_program(AARCH64, "main.c", ["digits.so"], folder / "main", "-I.")
    return [*emulator, "-E", f"LD_LIBRARY_PATH={folder}", "-cpu"]


@pytest.mark.parametrize(
    ("target", "model"), [("c", MODEL), ("c", FLOATS), ("llvm", MODEL)], ids=["bytes", "floats", "llvm"]
)
def test_processors_of_aarch64(target: str, model: Path, tmp_path: Path) -> None:
    """Use SVE only with vectors of the size that kernels are compiled for, NEON on all other processors."""
    run, program = arm_program(target, model, tmp_path), str(tmp_path / "main")
    # vector length in bytes; the emulator's default is 64
    expected = {
        "cortex-a53": ARM[0],
        "a64fx": ARM[0],  # SVE without byte dot products
        "cortex-a76": ARM[1],
        "max": ARM[2],
        "max,sve=off": ARM[2],
        "max,sve-default-vector-length=16": ARM[2],
        "max,sve-default-vector-length=256": ARM[2],
        "max,sve-default-vector-length=32": ARM[3],
    }
    found = {cpu: ran([*run, cpu, program]) for cpu in expected}
    assert {cpu: item[0] for cpu, item in found.items()} == expected
    assert {item[1:] for item in found.values()} == {("0", found["max"][2], "")}  # the same bits
    here = [*run, "max,sve-default-vector-length=32", program]
    forced = {level: ran(here, MLFC_CPU=level) for level in ARM}
    assert {level: item[0] for level, item in forced.items()} == {level: level for level in ARM}
    assert {item[1:] for item in forced.values()} == {("0", found["max"][2], "")}
    level, status, _, message = ran([*run, "max", program], MLFC_CPU=ARM[3])
    assert (level, status) == ("none", "-1")
    assert message.endswith(f"got MLFC_CPU={ARM[3]}: {' '.join(ARM[:3])}\n")
    sizes = inspect_library(tmp_path / "digits.so")["library"]["levels"]
    assert list(sizes) == (ARM[:3] if model is MODEL else [ARM[0], ARM[3]])


@pytest.mark.parametrize(
    ("arch", "model", "levels"),
    [
        ("aarch64", MODEL, ["dotprod", "i8mm"]),
        ("aarch64", FLOATS, ["sve256"]),
        ("x86_64", MODEL, ["x86_64_v3", "x86_64_v4", "sapphirerapids"]),
        ("x86_64", FLOATS, ["x86_64_v3", "x86_64_v4"]),
    ],
)
def test_levels_have_the_kernels_that_they_make_faster(arch: str, model: Path, levels: list[str]) -> None:
    """Omit SVE at 256 bits for bytes (no faster than NEON); floats have neither dot products nor tiles."""
    with mock.patch("mlfc.isa.amx.templates.AmxPlan.pays", True):
        factory = build(f"c -mcpu=auto -mtriple={arch}", model)
    files = {path: bytes(data).decode() for path, data in factory.code.files.items()}
    assert {path for path in files if "_lib1_" in path} == {f"src/digits_lib1_{level}.c" for level in levels}
    for level in levels:
        text = files[f"src/digits_lib1_{level}.c"]
        assert ("defined(__aarch64__) && defined(__linux__)" in text) == (level == "sve256")
        # the softmax of the last layer has neither products nor tiles
        assert (f"softmax_{level}(" in text) == (level != "sapphirerapids")


@pytest.mark.parametrize("triple", ["thumbv7em-none-eabi", "riscv32-unknown-elf", "nonsense"])
def test_microcontrollers_choose_nothing(triple: str) -> None:
    with pytest.raises(OptionError, match=rf"'{triple}'.*Name the core of a microcontroller"):
        build(f"c -mcpu=auto -mtriple={triple}")


def test_one_processor_and_several_exclude_each_other(tmp_path: Path) -> None:
    factory = build("c -mcpu=auto")
    with pytest.raises(OptionError, match=r"-mcpu=auto is for several processors, and '-march=native' for one"):
        factory.export_library(tmp_path / "digits.so", options=["-march=native"])
    with pytest.raises(OptionError, match=r"exported sources require a target with one processor.*Compile for 'c'"):
        mlfc.export_model_library_format(factory, tmp_path / "digits.tar")
    with pytest.raises(OptionError, match=r"option -mtriple requires -mcpu=auto"):
        build("c -mtriple=x86_64")

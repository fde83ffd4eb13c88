"""Generated code for AArch64 processors without hardware: instruction counts, and cycles by LLVM's processor models.

QEMU counts instructions. Cycles are LLVM's estimate for each basic block times its execution count; the model assumes
that all data is in the L1 cache and all branches are predicted.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import TypeAlias

from rich.table import Table

import mlfc
from benchmarks.models import Model
from mlfc.archive.describe.inspect_library import inspect_library
from mlfc.factory import Factory
from tests.native.foreign_libraries import without_c_library
from tests.native.foreign_programs import emulator_of, link_program

FLOATS = ["digits", "kws_ref_model_float32", "pretrainedResnet", "squeezenet"]
BYTES = ["kws_ref_model", "pretrainedResnet_quant", "vww_96_int8"]
AARCH64 = "aarch64-linux-gnu"
_DOTS = "-mcpu=generic+v8_2a+dotprod"
_TILES = "c -mcpu=neoverse-n2"  # has templates with int8 matrix multiply instructions
_CPU = "max,sve-default-vector-length=32"
_TURNS = 50
_ANALYZED = ("-mtriple=aarch64", "-mattr=+dotprod,+i8mm,+sve", f"-iterations={_TURNS}", "-instruction-info=0")
_OLDEST = 17  # first LLVM with a model of Neoverse V1
_MAIN = """\
#include <stdint.h>
#include <stdlib.h>
#include "tvmgen_model.h"
{arrays}
int main(void) {{
  struct tvmgen_model_inputs inputs = {{{inputs}}};
  struct tvmgen_model_outputs outputs = {{{outputs}}};
  const int runs = getenv("TWICE") == NULL ? 1 : 2;
  int failed = 0;
  for (int run = 0; run < runs; ++run) {{
    failed |= tvmgen_model_run(&inputs, &outputs);
  }}
  return failed != 0;
}}
"""
_ENDS = re.compile(r"\s*(b|bl|br|blr|ret|cbn?z|tbn?z|svc|b\.\w+)\s")

Code: TypeAlias = "tuple[str, ...]"
"""The instructions of a basic block, as hexadecimal words."""


def _main_text(factory: Factory) -> str:
    interface = factory.interface()
    groups = (("in", interface.inputs), ("out", interface.outputs))
    arrays = [
        f"static uint8_t {kind}{place}[{tensor.nbytes}] __attribute__((aligned(64)));"
        for kind, tensors in groups
        for place, tensor in enumerate(tensors)
    ]
    given, made = (", ".join(f"(void *){kind}{place}" for place in range(len(tensors))) for kind, tensors in groups)
    return _MAIN.format(arrays="\n".join(arrays), inputs=given, outputs=made)


def _program(factory: Factory, flags: tuple[str, ...], folder: Path) -> list[str]:
    """Build a library and a program that runs it; return the command."""
    folder.mkdir()
    with without_c_library():
        factory.export_library(folder / "model.so", target_triple=AARCH64, options=flags)
    (folder / "main.c").write_text(_main_text(factory))
    (folder / "tvmgen_model.h").write_bytes(bytes(factory.code.files["include/tvmgen_model.h"]))
    link_program(AARCH64, "main.c", ["model.so"], folder / "main", "-I.")
    return [*emulator_of(AARCH64), "-E", f"LD_LIBRARY_PATH={folder}", "-cpu", _CPU, str(folder / "main")]


def _trace(command: list[str], place: Path, **variables: str) -> Counter[tuple[int, Code]]:
    """Return the execution count of basic blocks, by address and code."""
    tracing = ["-d", "in_asm,exec,nochain", "-D", str(place)]
    subprocess.run([command[0], *tracing, *command[1:]], check=True, env=os.environ | variables)
    code: dict[int, list[str]] = {}
    found: Counter[int] = Counter()
    words: list[str] = []
    with place.open() as lines:
        for line in lines:
            if line.startswith("Trace"):
                found[int(line.split("/", 2)[1], 16)] += 1
            elif line.startswith("IN:"):
                words = []
            elif line.startswith("0x"):
                address, word = line.split()[:2]
                if not words:
                    code[int(address.rstrip(":"), 16)] = words
                words.append(word)
    place.unlink()
    return Counter({(address, tuple(code[address])): count for address, count in found.items()})


def run_once(command: list[str], place: Path) -> Counter[Code]:
    """Return the execution count of basic blocks in one run of the model."""
    pieces = _trace(command, place, TWICE="1")
    pieces.subtract(_trace(command, place))
    starts = {address: code for (address, code), count in pieces.items() if count > 0}
    rest = {address: pieces[address, code] for address, code in starts.items()}
    found: Counter[Code] = Counter()
    for address, code in sorted(starts.items()):
        # QEMU splits blocks at page boundaries
        behind = address + 4 * len(code)
        if behind % 4096 == 0 and behind in starts and not _ENDS.match(disassembled(code[-1:])[0] + " "):
            both = min(rest[address], rest[behind])
            found[(*code, *starts[behind])] += both
            rest[address] -= both
            rest[behind] -= both
        found[code] += rest[address]
    return +found


def disassembled(words: tuple[str, ...]) -> list[str]:
    """Return instructions as text."""
    text = "\n".join(" ".join(f"0x{word[place : place + 2]}" for place in (6, 4, 2, 0)) for word in words)
    command = [_tool("llvm-mc"), "--disassemble", "--triple=aarch64", "--mattr=+all"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return [line.strip() for line in done.stdout.splitlines() if line.strip() and ".text" not in line]


def _tool(name: str) -> str:
    """Return the path of an LLVM program whose version has the model."""
    names = [name, *(f"{name}-{version}" for version in range(30, _OLDEST - 1, -1))]
    for path in filter(None, map(which, names)):
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        if (version := re.search(r"version (\d+)", said)) and int(version[1]) >= _OLDEST:
            return path
    raise SystemExit(f"{name} of LLVM {_OLDEST} or later is missing")


def cycles(pieces: Counter[Code], processor: str) -> float:
    """Return the cycles of all blocks on a processor for which LLVM has a model."""
    order = list(pieces)
    texts = iter(disassembled(tuple(word for code in order for word in code)))
    lines = []
    for number, code in enumerate(order):
        lines += [f"# LLVM-MCA-BEGIN {number}", *(next(texts) for _ in code), "# LLVM-MCA-END"]
    command = [_tool("llvm-mca"), *_ANALYZED, f"-mcpu={processor}"]
    done = subprocess.run(command, input="\n".join([*lines, ""]), capture_output=True, text=True, check=True)
    found = [int(number) for number in re.findall(r"^Total Cycles: +(\d+)", done.stdout, re.MULTILINE)]
    assert len(found) == len(order)
    return sum(pieces[code] * each / _TURNS for code, each in zip(order, found, strict=True))


@dataclass(frozen=True, eq=False)
class _Build:
    """A library for one processor."""

    factory: Factory
    flags: tuple[str, ...]
    folder: Path

    @property
    def size(self) -> int:
        """The bytes of the library without constants."""
        return (self.folder / "model.so").stat().st_size - self.factory.code.sizes.constants


def _compared(builds: Sequence[_Build], processor: str) -> list[str]:
    """Return the columns for two builds: instructions, their ratio, cycles and their ratio."""
    ran = [run_once(_program(build.factory, build.flags, build.folder), build.folder / "trace") for build in builds]
    counts = [sum(len(code) * count for code, count in pieces.items()) for pieces in ran]
    times = [cycles(pieces, processor) for pieces in ran]
    columns = []
    for first, second in (counts, times):
        columns += [f"{first:,.0f}", f"{second:,.0f}", f"{second / first:.2f}"]
    return columns


def _of_vectors(model: Model, folder: Path) -> list[str]:
    module, params = mlfc.import_model(model.path)
    one = mlfc.build(module, _TILES, params, module_name="model")
    neon = _Build(one, (f"{_DOTS}+i8mm",), folder / f"{model.name}-neon")
    sve = _Build(one, (f"{_DOTS}+i8mm+sve", "-msve-vector-bits=256"), folder / f"{model.name}-sve")
    columns = _compared((neon, sve), "neoverse-v1")
    several = mlfc.build(module, "c -mcpu=auto -mtriple=aarch64", params, module_name="model")
    (folder / f"{model.name}-auto").mkdir()
    with without_c_library():
        path = several.export_library(folder / f"{model.name}-auto" / "model.so", target_triple=AARCH64)
    levels = inspect_library(path)["library"]["levels"]
    ratio = _Build(several, (), path.parent).size / neon.size
    return [*columns, ", ".join(f"{level} {nbytes:,}" for level, nbytes in levels.items()), f"{ratio:.2f}"]


def _of_dots(model: Model, folder: Path) -> list[str]:
    module, params = mlfc.import_model(model.path)
    builds = [
        _Build(mlfc.build(module, target, params, module_name="model"), (_DOTS,), folder / f"{model.name}-{name}")
        for name, target in (("columns", "c"), ("tiles", _TILES))
    ]
    return _compared(builds, "neoverse-n1")


def _table(title: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> Table:
    found = Table("model", title=title)
    for name in columns:
        found.add_column(name, justify="right")
    for name, row in rows:
        found.add_row(name, *row)
    return found


def vectors(models: Sequence[Model], folder: Path) -> Table:
    """Return the table of 256-bit vectors."""
    columns = ("instructions, NEON", "SVE", "ratio", "cycles, NEON", "SVE", "ratio", "bytes of -mcpu=auto", "/ one's")
    title = "kernels for Neoverse V1 with vectors of 256 bits (SVE), and with NEON"
    return _table(title, columns, ((model.name, _of_vectors(model, folder)) for model in models))


def dots(models: Sequence[Model], folder: Path) -> Table:
    """Return the table of dot product instructions."""
    columns = ("instructions, usual", "by i8mm's tile", "ratio", "cycles, usual", "by i8mm's tile", "ratio")
    title = "kernels for Neoverse N1 with dot products of bytes, and with those of bytes with a sign"
    return _table(title, columns, ((model.name, _of_dots(model, folder)) for model in models))

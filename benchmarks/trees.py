"""Decision trees compared with emlearn and m2cgen: flash, RAM, instructions and time of one inference.

``python -m benchmarks.trees --peers PYTHON``, where PYTHON has the other generators:

    python -m venv peers
    peers/bin/pip install emlearn m2cgen scikit-learn skl2onnx lightgbm onnxmltools

Flash is the size of a linked program that only calls the model, including the C library; everything is compiled with
-Os. Instructions are the mean over the tested rows, counted under QEMU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import mlfc
from mlfc.micro.board.board import Board, find_board
from mlfc.micro.firmware.bare_metal import Firmware, project_files, write_files
from mlfc.micro.run.firmware_build import build
from mlfc.micro.run.firmware_run import execute

ROOT = Path(__file__).parent
INSTALL = "emlearn m2cgen scikit-learn skl2onnx lightgbm onnxmltools"
PEERS = (
    "emlearn int16 tables, votes", "emlearn int16 code, votes", "emlearn int16 tables", "emlearn int16 code",
    "emlearn float code", "m2cgen",
)  # fmt: skip
OURS = {"mlfc size": "size", "mlfc speed": "speed"}
_M4 = ("-mthumb", "-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")
_M0 = ("-mthumb", "-mcpu=cortex-m0", "-mfloat-abi=soft")
# the emulated Cortex-M3 runs Cortex-M0 code, and has enough memory for all models
CORES = {"Cortex-M4": ("mps2-an386", "cortex-m4", _M4), "Cortex-M0": ("mps2-an385", "cortex-m0", _M0)}
_BOUND = "void predict(const void *x, void *out);\n"
_MAIN = (
    _BOUND
    + """
#include <stdint.h>
#include "counter.h"
#include "host_io.h"
#include "stack_paint.h"
#define ROWS {rows}
static const unsigned char data[ROWS][{stride}] __attribute__((aligned(8))) = {{{data}}};
static double out[64];

static void print(uint64_t value) {{
  char text[24];
  int at = 23;
  text[at] = 0;
  text[--at] = '\\n';
  do {{ text[--at] = (char)('0' + value % 10); value /= 10; }} while (value);
  host_print(text + at);
}}

int main(void) {{
  stack_paint();
  predict(data[0], out);
  const unsigned stack = (unsigned)stack_used();
  const uint64_t before = counter_ticks();
  for (int row = 0; row < ROWS; ++row) {{
    predict(data[row], out);
  }}
  print(counter_ticks() - before);
  print(stack);
  return 0;
}}
"""
)
_START = _BOUND + "double x[1024], y[64];\nvoid start(void) { for (;;) predict(x, y); }\n"
_MANY = (
    _BOUND
    + """
void many(const char *rows, int count, int stride, int turns) {
  double out[64];
  for (int turn = 0; turn < turns; ++turn)
    for (int row = 0; row < count; ++row) predict(rows + row * stride, out);
}
void once(const void *x, void *out) { predict(x, out); }
"""
)


@dataclass(frozen=True)
class Candidate:
    """A model in one form: its C files, and its input rows."""

    files: Mapping[str, bytes]
    rows: Any
    folders: tuple[str, ...] = ()


def ours(model: Path, optimize: str, cpu: str, x: Any) -> Candidate:
    """Return a model compiled by mlfc."""
    module, params = mlfc.import_model(model, shapes={"X": (1, x.shape[1])})
    factory = mlfc.build(module, f"c -mcpu={cpu}" if cpu else "c", params, module_name="model", optimize=optimize)
    places, at = [], 0
    for tensor in factory.interface().outputs:
        places.append(f"(char *)out + {at}")
        at += -(-tensor.nbytes // 8) * 8
    text = (
        '#include "tvmgen_model.h"\nvoid predict(const void *x, void *out) {\n'
        "  struct tvmgen_model_inputs in = {(void *)x};\n"
        f"  struct tvmgen_model_outputs result = {{{', '.join(places)}}};\n  tvmgen_model_run(&in, &result);\n}}\n"
    )
    files = {
        name: data.encode() if isinstance(data, str) else bytes(data) for name, data in factory.code.built_files.items()
    }
    return Candidate({**files, "src/predict.c": text.encode()}, x, ("include",))


def peer(folder: Path, way: str) -> Candidate | None:
    """Return a model written by another generator; None if the generator does not support it."""
    source = folder / f"{way}.c"
    if not source.exists():
        return None
    x = np.load(folder / "x.npy")
    rows = np.load(folder / "codes.npy") if "int16" in way else x.astype(np.float64) if way == "m2cgen" else x
    headers = {f"include/{path.name}": path.read_bytes() for path in (folder.parent / "include").glob("*.h")}
    return Candidate({"src/predict.c": source.read_bytes(), **headers}, rows, ("include",))


def flash_and_ram(candidate: Candidate, folder: Path, flags: tuple[str, ...]) -> tuple[int, int]:
    """Return the bytes of flash and RAM of a program that only calls the model."""
    write_files(folder, {**candidate.files, "start.c": _START.encode()})
    sources = [name for name in (*candidate.files, "start.c") if name.endswith((".c", ".S"))]
    subprocess.run(
        ["arm-none-eabi-gcc", *flags, "-Os", "-w", "-std=gnu99", "-ffunction-sections", "-fdata-sections", "-Iinclude",
         "-fno-math-errno", "-nostartfiles", "--specs=nano.specs", "--specs=nosys.specs", "-Wl,--gc-sections,-e,start",
         *sources, "-lm", "-o", "only.elf"], cwd=folder, check=True)  # fmt: skip
    said = subprocess.run(["arm-none-eabi-size", "only.elf"], cwd=folder, check=True, capture_output=True, text=True)
    text, data, bss = (int(number) for number in said.stdout.splitlines()[1].split()[:3])
    return text + data, data + bss - 1088 * 8  # without the tensors of `start`


def counted(candidate: Candidate, folder: Path, board: Board) -> tuple[float, int]:
    """Return the instructions of an inference, and the bytes of its stack."""
    raw = np.ascontiguousarray(candidate.rows).reshape(len(candidate.rows), -1).view(np.uint8)
    data = ",".join("{" + ",".join(map(str, row)) + "}" for row in raw.tolist())
    main = _MAIN.format(rows=len(raw), stride=raw.shape[1], data=data)
    write_files(folder, project_files("model", candidate.files, None, board, Firmware(main, {}, candidate.folders)))
    build(folder, board, trace=False, cflags="-Os -w")
    status, said = execute(folder, board, 300.0)
    if status != 0:
        raise RuntimeError(f"the firmware ended with {status}: {said}")
    ticks, stack = (int(line) for line in said.split()[:2])
    assert board.emulator is not None
    return ticks * (board.emulator.instructions_per_tick or 0) / len(raw), stack


class OnHost:
    """A model as a library for the host."""

    def __init__(self, candidate: Candidate, folder: Path) -> None:
        write_files(folder, {**candidate.files, "many.c": _MANY.encode()})
        sources = [name for name in (*candidate.files, "many.c") if name.endswith((".c", ".S"))]
        subprocess.run(
            ["cc", "-O2", "-w", "-std=gnu99", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-Iinclude", "-o", "many.so",
             *sources, "-lm"], cwd=folder, check=True)  # fmt: skip
        self._library = ctypes.CDLL(str(folder / "many.so"))
        self._rows = np.ascontiguousarray(candidate.rows)
        self.turns = 1

    def seconds(self) -> float:
        """Return the time of one inference."""
        stride = self._rows.nbytes // len(self._rows)
        address = ctypes.c_void_p(self._rows.ctypes.data)
        start = time.perf_counter()
        self._library.many(address, len(self._rows), stride, self.turns)
        return (time.perf_counter() - start) / self.turns / len(self._rows)

    def result(self, row: int) -> Any:
        """Return the bytes that an inference writes."""
        out = np.zeros(64)
        self._library.once(ctypes.c_void_p(self._rows[row].ctypes.data), ctypes.c_void_p(out.ctypes.data))
        return out


def timed(candidates: Mapping[str, Candidate], folder: Path) -> dict[str, float]:
    """Return the median time of an inference of each candidate; runs alternate."""
    hosts = {}
    for way, candidate in candidates.items():
        hosts[way] = OnHost(candidate, folder / f"host {way}")
        hosts[way].turns = max(1, int(2e-3 / max(hosts[way].seconds(), 1e-9) / len(candidate.rows)))
    samples: dict[str, list[float]] = {way: [] for way in hosts}
    for _ in range(41):
        for way, host in hosts.items():
            samples[way].append(host.seconds())
    return {way: statistics.median(found) for way, found in samples.items()}


def measure(folder: Path, work: Path) -> list[tuple[str, ...]]:
    """Return the rows of the table of one model."""
    facts = json.loads((folder / "facts.json").read_text())
    x = np.load(folder / "x.npy")
    peers = {way: found for way in PEERS if (found := peer(folder, way)) is not None}
    found: dict[str, list[Any]] = {way: [] for way in (*peers, *OURS)}
    for core, (name, cpu, flags) in CORES.items():
        board = find_board(name)
        board = replace(board, toolchain=replace(board.toolchain, flags=flags))
        mine = {way: ours(folder / "model.onnx", optimize, cpu, x) for way, optimize in OURS.items()}
        for way, candidate in {**peers, **mine}.items():
            place = work / f"{core} {way}".replace(" ", "_")
            flash, ram = flash_and_ram(candidate, place / "size", flags)
            instructions, stack = counted(candidate, place / "run", board)
            found[way] += [flash, ram + stack, instructions]
    host = {way: ours(folder / "model.onnx", optimize, "", x) for way, optimize in OURS.items()}
    times = timed({**peers, **host}, work)
    return [
        (facts["name"] if index == 0 else "", f"{facts['nodes']:,}" if index == 0 else "", way,
         *(f"{number:,.0f}" for number in numbers), f"{times[way] * 1e9:,.0f}")
        for index, (way, numbers) in enumerate(found.items())
    ]  # fmt: skip


def table(models: Path) -> Table:
    """Return the table of all models in a folder written by `benchmarks.tree_models`."""
    versions = json.loads((models / "versions.json").read_text())
    result = Table(title="Decision trees, -Os; " + ", ".join(f"{name} {number}" for name, number in versions.items()))
    headings = [f"{core} {what}" for core in ("M4", "M0") for what in ("flash", "RAM", "instructions")]
    for heading in ("model", "nodes", "by", *headings, "host ns"):
        result.add_column(heading, justify="left" if heading in ("model", "by") else "right")
    for folder in sorted(path for path in models.iterdir() if (path / "facts.json").exists()):
        with tempfile.TemporaryDirectory() as work:
            for row in measure(folder, Path(work)):
                print(" | ".join(row), file=sys.stderr, flush=True)  # the whole table takes minutes
                result.add_row(*row)
    return result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=sys.executable, help="the Python that has emlearn and m2cgen")
    parser.add_argument("--models", nargs="+", default=[], help="parts of names; default: all")
    parser.add_argument("--folder", type=Path, help="of models that an earlier run made")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name) / "models"
        if not folder.exists():
            command = [options.peers, str(ROOT / "tree_models.py"), str(folder), *options.models]
            if subprocess.run([options.peers, "-c", "import emlearn, m2cgen, lightgbm"], check=False).returncode:
                parser.error(f"{options.peers} lacks packages: python -m venv peers; peers/bin/pip install {INSTALL}")
            subprocess.run(command, check=True)
        found = table(folder)
    if options.markdown:
        found.box = box.MARKDOWN
    Console(width=200).print(found)


if __name__ == "__main__":
    main()

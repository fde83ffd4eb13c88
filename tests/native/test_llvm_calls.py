"""C calls the functions of LLVM objects as declared in the header, on every available kind of processor."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.relay import ir
from mlfc.support.content import to_bytes
from tests.conftest import WATCHDOG
from tests.harness import module_of
from tests.native.foreign_programs import emulator_of, link_program

SIZE = 40


@dataclass(frozen=True)
class System:
    """A triple and zig's name of the same system."""

    triple: str
    zig: str


SYSTEMS = (
    System("x86_64-linux-gnu", "x86_64-linux-gnu"),
    System("aarch64-linux-gnu", "aarch64-linux-gnu"),
    System("riscv64-linux-gnu", "riscv64-linux-gnu"),
    System("armv7a-linux-gnueabihf", "arm-linux-gnueabihf"),
    System("wasm32-wasi", "wasm32-wasi"),
)


def network(inputs: int, outputs: int) -> ir.IRModule:
    """Return a module whose outputs are weighted sums of its inputs."""

    def body(number: int) -> Callable[[Any], Any]:
        def weighted(v: Any) -> Any:
            weight = ir.Constant(np.full((1, SIZE), number + 0.5, np.float32))
            total = ir.call("multiply", [v["x0"], weight])
            for index in range(1, inputs):
                total = ir.call("add", [total, v[f"x{index}"]])
            return total

        return weighted

    given = {f"x{index}": np.zeros((1, SIZE), np.float32) for index in range(inputs)}
    return module_of(given, {f"y{index}": body(index) for index in range(outputs)})


def main_file(inputs: int, outputs: int, *, io: bool, external: bool) -> str:
    """Return a program that sets element j of input i to i + j/4 and prints all outputs."""
    pools = "pools" if external else ""
    lines = ["#include <stdio.h>", '#include "tvmgen_model.h"', "int main(void) {", "  int failed = 0;"]
    if external:
        lines += [
            "  static unsigned char memory[TVMGEN_MODEL_GLOBAL_WORKSPACE_WORKSPACE_POOL_SIZE + 64];",
            "  struct tvmgen_model_workspace_pools pool = {memory + (64 - (unsigned long)memory % 64) % 64};",
            "  struct tvmgen_model_workspace_pools *pools = &pool;",
        ]
    if io:
        lines += [
            f"  struct tvmgen_model_inputs in = tvmgen_model_map_inputs({pools});",
            f"  struct tvmgen_model_outputs out = tvmgen_model_map_outputs({pools});",
        ]
    else:
        lines += [f"  static float x[{inputs}][{SIZE}], y[{outputs}][{SIZE}];"]
        lines += [f"  struct tvmgen_model_inputs in = {{{', '.join(f'x[{index}]' for index in range(inputs))}}};"]
        lines += [f"  struct tvmgen_model_outputs out = {{{', '.join(f'y[{index}]' for index in range(outputs))}}};"]
    for index in range(inputs):
        lines.append(f"  for (int j = 0; j < {SIZE}; ++j) ((float *)in.x{index})[j] = {index} + j / 4.0f;")
    arguments = ", ".join([*([] if io else ["&in", "&out"]), *([pools] if external else [])])
    lines.append(f"  failed |= tvmgen_model_run({arguments}) != 0;")
    names = ["y0"] if outputs == 1 else [f"y{index}" for index in range(outputs)]
    for name in names:
        lines.append(f'  for (int j = 0; j < {SIZE}; ++j) printf("%.9g\\n", ((float *)out.{name})[j]);')
    if not io:
        lines.append(f"  failed |= tvmgen_model_run(NULL, &out{', pools' if external else ''}) != -1;")
        lines.append("  in.x0 = NULL;")
        lines.append(f"  failed |= tvmgen_model_run({arguments}) != -1;")
    return "\n".join([*lines, "  return failed;", "}", ""])


@pytest.mark.parametrize(
    ("io", "counts"),
    [(False, (2, 2)), (True, (1, 1)), (True, (2, 2)), (True, (3, 3))],
    ids=["given", "in-workspace-one", "in-workspace-two", "in-workspace-three"],
)
@pytest.mark.parametrize("system", SYSTEMS, ids=[system.triple for system in SYSTEMS])
def test_c_finds_tensors_where_the_header_says(
    system: System, io: bool, counts: tuple[int, int], tmp_path: Path
) -> None:
    external = counts == (2, 2)
    code = mlfc.build(
        network(*counts),
        f"llvm -mtriple={system.triple}",
        module_name="model",
        workspace_io=io,
        external_workspace=external,
    ).code
    objects = []
    for path, data in code.files.items():
        name = path.rpartition("/")[2]
        (tmp_path / name).write_bytes(to_bytes(data))
        objects += [name] if name.endswith(".o") else []
    (tmp_path / "main.c").write_text(main_file(*counts, io=io, external=external and bool(code.external_workspace)))
    link_program(system.zig, "main.c", objects, tmp_path / "program", "-Wall", "-Werror")
    printed = run(system, tmp_path / "program")
    x = [index + np.arange(SIZE, dtype=np.float32) / 4 for index in range(counts[0])]
    expected = np.concatenate([x[0] * np.float32(number + 0.5) + sum(x[1:]) for number in range(counts[1])])
    np.testing.assert_array_equal(np.array(printed.split(), np.float32), expected.astype(np.float32))


def run(system: System, program: Path) -> str:
    if system.zig == "wasm32-wasi":
        return run_wasm(program)
    emulator = [] if system.zig == "x86_64-linux-gnu" else emulator_of(system.zig)
    result = subprocess.run([*emulator, program], capture_output=True, text=True, check=False, timeout=WATCHDOG)
    assert result.returncode == 0
    return result.stdout


def run_wasm(program: Path) -> str:
    wasmtime = pytest.importorskip("wasmtime")
    engine = wasmtime.Engine()
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    store = wasmtime.Store(engine)
    wasi = wasmtime.WasiConfig()
    out = program.with_suffix(".txt")
    wasi.stdout_file = str(out)
    store.set_wasi(wasi)
    instance = linker.instantiate(store, wasmtime.Module.from_file(engine, str(program)))
    try:
        instance.exports(store)["_start"](store)
    except wasmtime.ExitTrap as trap:
        if trap.code != 0:
            raise
    return out.read_text()

"""Start-up code and linker scripts: section addresses, loaded data, and messages of firmware that fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mlfc.errors import RunError, ToolchainError
from mlfc.micro.board.board import Board, MemoryRegion
from mlfc.micro.firmware.bare_metal import ELF, REPORT, Firmware, project_files
from mlfc.micro.run.emulator import emulated_factory
from mlfc.micro.run.firmware_build import build, section_sizes
from mlfc.micro.run.firmware_run import emulate
from tests.emulator.conftest import need_board
from tests.emulator.test_graph_firmware import WARNINGS as GRAPH_FLAGS
from tests.harness import built as compiled
from tests.harness import seeded_inputs

BARE = ("mps2-an386", "mps3-an547", "microbit", "qemu-riscv32")
REPORTED = "#include <host_io.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <string.h>\n"


def built(folder: Path, board: Board, main: str, cflags: str = "-O2") -> Path:
    for path, data in project_files("m", {}, {}, board, Firmware(main)).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(bytes(data))
    build(folder, board, trace=False, cflags=f"{cflags} -Wall -Wextra -Wpedantic -Werror")
    return folder


def regions_main(board: Board) -> str:
    """Return a program that reports the addresses of its arrays, or 0 for one with wrong content.

    Sizes are odd, so that the following array must be aligned again.
    """
    lines, checks = [REPORTED], []
    for number, name in enumerate([*(item.name for item in board.memories), "elsewhere"]):
        lines.append(f'const uint8_t fixed_{name}[7] __attribute__((section(".rodata.tvm.{name}"))) = {{{number}, 9}};')
        checks.append(("fixed_" + name, f"fixed_{name}[0] == {number} && fixed_{name}[1] == 9 && fixed_{name}[6] == 0"))
        if all(item.kind == "ram" for item in board.memories if item.name == name):
            lines.append(f'uint8_t pool_{name}[33] __attribute__((section(".bss.noinit.tvm.{name}"), aligned(64)));')
            checks.append((f"pool_{name}", f"(pool_{name}[32] = 5) == 5"))
    lines += ["uint8_t data[5] = {1, 2, 3, 4, 5}, zeros[3];", "static char text[40];", "int main(void) {"]
    lines += [
        "  volatile uint8_t *seen;",
        f'  const int file = host_open("{REPORT}", 1);',
        "  if (file == -1) return 1;",
    ]
    checks += [("data", "data[4] == 5"), ("zeros", "zeros[0] == 0 && zeros[2] == 0")]
    for name, holds in checks:
        lines.append(f"  seen = (volatile uint8_t *)(uintptr_t){name};")
        lines.append("  (void)seen[0];")
        lines.append(f'  sprintf(text, "{name} %lu\\n", (unsigned long)({holds} ? (uintptr_t){name} : 0));')
        lines.append("  if (host_write(file, text, strlen(text)) != 0) return 2;")
    return "\n".join([*lines, "  host_close(file);", "  return 0;", "}", ""])


@pytest.mark.parametrize("name", [*BARE, "mps2-an505"])
def test_sections_lie_in_the_regions_that_they_name_and_are_loaded(name: str, tmp_path: Path) -> None:
    board = need_board(name)
    built(tmp_path, board, regions_main(board))
    emulate(tmp_path, board, 60)
    places = {key: int(value) for key, value in map(str.split, (tmp_path / REPORT).read_text().splitlines())}
    for item in board.memories:
        assert item.origin <= places[f"fixed_{item.name}"] < item.end
        if item.kind == "ram":
            assert item.origin <= places[f"pool_{item.name}"] < item.end
    for key in ("data", "zeros", "pool_elsewhere"):
        assert board.ram.origin <= places[key] < board.ram.end
    assert board.flash.origin <= places["fixed_elsewhere"] < board.flash.end


def test_regions_that_nobody_uses_take_an_entry_of_the_table_at_most(tmp_path: Path) -> None:
    board = need_board("mps3-an547")
    few = replace(board, memories=tuple(item for item in board.memories if item.name in ("itcm", "code", "ram")))
    main = "int main(void) { return 0; }\n"
    all_of_them = section_sizes(built(tmp_path / "all", board, main) / ELF)
    without = section_sizes(built(tmp_path / "few", few, main) / ELF)
    assert all_of_them == (without[0] + 2 * 12, without[1])


@pytest.mark.parametrize("name", BARE)
def test_start_up_takes_few_instructions(name: str, models: Path) -> None:
    board = need_board(name)
    made = emulated_factory(compiled(models / "hello_world_int8.tflite", board.target), board)
    startup = made.measure(seeded_inputs(made.inputs, 0)).startup_instructions
    assert startup is not None
    # start-up needs at least a load, a store and a branch per word of data
    assert 0 < startup < 400


# Iterations of a loop of 64 instructions, most of which take an emulator no time; 11 million overflow 24 bits of ticks.
PASSES = {"mps2-an386": 11_000_000, "mps2-an385": 32_000, "mps2-an500": 32_000, "mps2-an505": 32_000}
PASSES |= {"mps3-an547": 32_000, "microbit": 32_000, "qemu-riscv32": 32_000}


@pytest.mark.parametrize("name", PASSES)
def test_counters_agree_with_a_loop_of_known_length(name: str, tmp_path: Path) -> None:
    board, passes = need_board(name), PASSES[name]
    step = "addi %0, %0, -1\\n\\tbnez %0, 1b" if board.arch == "riscv" else "subs %0, %0, #1\\n\\tbne 1b"
    syntax = "" if board.arch == "riscv" else ".syntax unified\\n"
    main = f"""{REPORTED}#include <counter.h>
int main(void) {{
  char text[32];
  const int file = host_open("{REPORT}", 1);
  uint32_t passes = {passes};
  const uint64_t started = counter_ticks();
  __asm volatile("{syntax}1:\\n\\t.rept 62\\n\\tnop\\n\\t.endr\\n\\t{step}" : "+l"(passes) : : "cc");
  sprintf(text, "%lu", (unsigned long)(counter_ticks() - started));
  return host_write(file, text, strlen(text));
}}
"""
    built(tmp_path, board, main.replace('"+l"', '"+r"') if board.arch == "riscv" else main)
    emulate(tmp_path, board, 120)
    assert board.emulator is not None
    assert board.emulator.instructions_per_tick is not None
    instructions = int((tmp_path / REPORT).read_text()) * board.emulator.instructions_per_tick
    # a tick is up to 63 instructions, and the overflow handler takes some
    assert instructions == pytest.approx(64 * passes, rel=1e-6, abs=150)


# unmapped addresses
NOWHERE = {"mps2-an386": 0xF0000000, "mps3-an547": 0xF0000000, "microbit": 0x60000000, "qemu-riscv32": 0x4}
NAMES = ("bad address", "no instruction", "hang", "restart", "stack outside")
CORTEX = BARE[:3]


def misbehaving(folder: Path, board: Board, what: str) -> Path:
    """Return the folder of firmware that fails in the way that it reads; one program per board contains all ways."""
    deeds = ["", "for (volatile int never = 0; never == 0;) { }"]
    if board.arch == "avr":  # only the hang is tested on AVR
        main = f"int main(void) {{ {deeds[1]} return 0; }}\n"
        return built(folder, board, main)
    deeds[0] = f"volatile uintptr_t place = {NOWHERE.get(board.name, 0)}U; (void)*(volatile int *)place;"
    if board.arch == "cortex-m":
        # Where this address accepts writes, as on the M4's board, the push does not fault. The counter's interrupt,
        # pended here, then fails because the memory has not kept the pushed registers.
        load = f"ldr r0, ={board.ram.origin - 64:#x}; ldr r1, =0xE000ED04; ldr r2, =0x04000000"
        move = f"{load}; mov sp, r0; push {{r0}}; str r2, [r1]"
        deeds.insert(1, '__asm volatile("udf #0");')
        deeds.append("*(volatile unsigned *)0xE000ED0CU = 0x05FA0004U; for (;;) { }")
        deeds.append(f'__asm volatile("{move}" ::: "r0", "r1", "r2"); for (;;) {{ }}')
    elif board.arch == "riscv":
        deeds.insert(1, '__asm volatile(".word 0");')
    else:
        deeds.insert(1, "")
    cases = "".join(f"    case {number}: {{ {deed} break; }}\n" for number, deed in enumerate(deeds))
    main = f"""#include <host_io.h>
#include <stdint.h>
int main(void) {{
  uint8_t deed = 255;
  const int file = host_open("deed.bin", 0);
  if (file == -1 || host_read(file, &deed, 1) != 0) return 1;
  switch (deed) {{
{cases}    default: return 1;
  }}
  return 0;
}}
"""
    built(folder, board, main)
    (folder / "deed.bin").write_bytes(bytes([NAMES.index(what)]))
    return folder


@pytest.mark.parametrize("name", BARE)
@pytest.mark.parametrize("fault", ["bad address", "no instruction"])
def test_faults_are_said_with_their_place(fault: str, name: str, tmp_path: Path) -> None:
    board = need_board(name)
    misbehaving(tmp_path, board, fault)
    with pytest.raises(RunError, match=r"the core faulted.*exception 0x[0-9a-f]{8} at 0x([0-9a-f]{8})") as caught:
        emulate(tmp_path, board, 60)
    address = int(str(caught.value).rpartition("at 0x")[2][:8], 16)
    assert board.flash.origin <= address < board.flash.origin + 0x10000


@pytest.mark.parametrize("name", [*BARE, "arduino_mega", "host"])
def test_hangs_are_said(name: str, tmp_path: Path) -> None:
    board = need_board(name)
    misbehaving(tmp_path, board, "hang")
    # it never ends, regardless of the timeout
    with pytest.raises(RunError, match=rf"{name}: the firmware did not end within 0\.2 seconds"):
        emulate(tmp_path, board, 0.2)


@pytest.mark.parametrize("name", CORTEX)
def test_firmware_that_starts_again_is_stopped(name: str, tmp_path: Path) -> None:
    board = need_board(name)
    misbehaving(tmp_path, board, "restart")
    with pytest.raises(RunError, match="reset or exited before it reported"):
        emulate(tmp_path, board, 60)


@pytest.mark.parametrize("name", CORTEX)
def test_faults_of_a_stack_outside_its_memory_are_said(name: str, tmp_path: Path) -> None:
    board = need_board(name)
    misbehaving(tmp_path, board, "stack outside")
    with pytest.raises(RunError, match=r"the core faulted.*exception|signal 6 ended it.*Lockup"):
        emulate(tmp_path, board, 60)


@pytest.mark.parametrize(("name", "executor"), [("mps2-an386", "aot"), ("qemu-riscv32", "aot"), ("microbit", "graph")])
def test_a_stack_that_runs_out_is_said(name: str, executor: str, models: Path) -> None:
    board = need_board(name)
    model = "hello_world_int8" if executor == "graph" else "kws_ref_model"
    factory = compiled(models / f"{model}.tflite", board.target, executor)
    # the same graph runtime as in test_graph_firmware.py, so it is built once
    cflags = GRAPH_FLAGS if executor == "graph" else "-O1"
    made = emulated_factory(factory, replace(board, stack_bytes=256), cflags=cflags)
    with pytest.raises(RunError, match="stack overflowed"):
        made.measure(seeded_inputs(made.inputs, 0))


@pytest.mark.parametrize("status", [3, 9])
def test_the_status_of_main_is_said(status: int, tmp_path: Path) -> None:
    board = need_board("qemu-riscv32")
    built(tmp_path, board, f"int main(void) {{ return {status}; }}\n")
    with pytest.raises(RunError, match="could not write its outputs" if status == 3 else "ended with status 9"):
        emulate(tmp_path, board, 60)


def test_what_changed_is_built_again_and_nothing_else(tmp_path: Path) -> None:
    board = need_board("mps2-an386")
    built(tmp_path, board, '#include "counter.h"\nint main(void) { return (int)counter_ticks(); }\n')
    objects = {path: path.stat().st_mtime_ns for path in tmp_path.joinpath("build").rglob("*.o")}

    def rebuilt(cflags: str) -> set[str]:
        build(tmp_path, board, trace=False, cflags=f"{cflags} -Wall -Wextra -Wpedantic -Werror")
        changed = {path.name for path, time in objects.items() if path.stat().st_mtime_ns != time}
        objects.update({path: path.stat().st_mtime_ns for path in objects})
        return changed

    assert rebuilt("-O2") == set()
    assert rebuilt("-Os") == {path.name for path in objects}
    (tmp_path / "board" / "fault.h").touch()
    assert {"fault.c.o", "startup.c.o"} <= rebuilt("-Os") < {path.name for path in objects}


def test_a_missing_emulator_is_said_with_its_package(tmp_path: Path) -> None:
    board = need_board("mps2-an386")
    assert board.emulator is not None
    missing = replace(board, emulator=replace(board.emulator, program="qemu-system-nothing"))
    built(tmp_path, board, "int main(void) { return 0; }\n")
    with pytest.raises(
        ToolchainError, match=r"qemu-system-nothing is not on the PATH.*apt-get install qemu-system-arm"
    ):
        emulate(tmp_path, missing, 60)


def test_a_region_of_ones_own_is_used(tmp_path: Path) -> None:
    """Use a board whose description splits a second RAM off the end of the first one."""
    board = need_board("mps2-an386")
    split = replace(
        board,
        memories=(
            board.memories[0],
            MemoryRegion("ram", "ram", 0x20000000, 0x40000),
            MemoryRegion("mine", "ram", 0x20040000, 0x1000),
        ),
    )
    built(tmp_path, split, regions_main(split))
    emulate(tmp_path, split, 60)
    assert "pool_mine" in (tmp_path / REPORT).read_text()

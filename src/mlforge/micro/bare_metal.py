"""A bare-metal project for a Cortex-M: start-up, linker script, Makefile, and a main that runs the model once.

The project needs an Arm compiler and make, nothing of mlforge. Inputs come from the host's file ``inputs.bin``,
outputs and measures go to ``outputs.bin`` and ``report.txt``, by semihosting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from mlforge.codegen.writer import Writer, comment_text
from mlforge.errors import ArchiveError
from mlforge.micro.board import Board
from mlforge.support.c_names import unique
from mlforge.support.content import Data

_TEMPLATES = (
    "startup.c", "semihosting.c", "semihosting.h", "counter.c", "counter.h", "stack_paint.c", "stack_paint.h",
    "report.c", "report.h",
)  # fmt: skip
_TRACE = "mlforge_trace.h"
# archives name their files as they like; make would run what stands in $( )
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]*")
_LICENCE = "SPDX-License-Identifier: 0BSD"
INPUTS, OUTPUTS, REPORT, ELF = "inputs.bin", "outputs.bin", "report.txt", "firmware.elf"


def project_files(name: str, code: Mapping[str, Data], details: Mapping[str, Any], board: Board) -> dict[str, Data]:
    """Return the files of a project.

    Parameters
    ----------
    name : str
        The module's.
    code : mapping of str to Data
        The generated code of an AOT module: ``src/...`` and ``include/...``.
    details : mapping
        The module's checked ``mlforge`` object.
    board : Board

    Returns
    -------
    dict of str to Data
        ``make`` builds ``firmware.elf``, ``make run`` runs it under the board's emulator if it has one.

    Raises
    ------
    ArchiveError
        For a file whose name make would take for something else than a name.
    """
    for path in code:
        if not _PLAIN_PATH.fullmatch(path):
            raise ArchiveError(
                "the file's name has characters that a Makefile cannot hold",
                place=path,
                next_step="Compile the model again with: mlforge compile MODEL",
            )
    folder = files("mlforge.micro").joinpath("templates", "bare_metal")
    texts = {f"board/{item}": folder.joinpath(item).read_text(encoding="utf-8") for item in _TEMPLATES}
    texts[f"trace/{_TRACE}"] = folder.joinpath(_TRACE).read_text(encoding="utf-8")
    texts["main.c"] = main_file(name, details)
    texts["link.ld"] = linker_script(board)
    sources = sorted(path for path in (*texts, *(f"model/{item}" for item in code)) if path.endswith((".c", ".S")))
    texts["Makefile"] = makefile(name, board, sources)
    return {**{path: text.encode() for path, text in texts.items()}, **{f"model/{p}": data for p, data in code.items()}}


def main_file(name: str, details: Mapping[str, Any]) -> str:
    """Return the C file that feeds the model, runs it, and reports."""
    prefix = f"tvmgen_{name}"
    inputs, outputs = details["inputs"], details["outputs"]
    fields = _fields(inputs, outputs)
    macros = [f"{prefix.upper()}_{field.upper()}_SIZE" for field in fields]
    workspace = details["memory"]["workspace_bytes"] if details["external_workspace"] else 0
    w = Writer()
    w.lines([f"/* Runs module {comment_text(name)} once and reports. {_LICENCE} */", f'#include "{prefix}.h"'])
    w.lines(['#include "counter.h"', '#include "report.h"', '#include "semihosting.h"', '#include "stack_paint.h"', ""])
    count = max(1, len(details["operators"]))
    w.lines(["#if defined(MLFORGE_TRACE)", f"enum {{ OPERATORS = {count} }};"])
    w.lines(["uint64_t operator_ticks[OPERATORS], operator_started;", "#else", "enum { OPERATORS = 0 };"])
    w.lines(["static const uint64_t operator_ticks[1] = {0};", "#endif", ""])
    for field, macro in zip(fields, macros, strict=True):
        w.line(f"static uint8_t {field}[{macro} > 0 ? {macro} : 1] __attribute__((aligned(16)));")
    if workspace:
        w.line(f"static uint8_t workspace[{workspace}] __attribute__((aligned(64)));")
    w.line()
    with w.block("int main(void)"):
        _fill_structs(w, prefix, fields, len(inputs), bool(workspace))
        call = ", ".join(["&inputs", "&outputs", *(["&pools"] if workspace else [])])
        given = list(zip(fields, macros, strict=True))
        _transfers(w, "read", INPUTS, given[: len(inputs)])
        w.lines(["counter_start();", "stack_paint();", "started = counter_ticks();"])
        w.line(f"status = {prefix}_run({call});")
        w.lines(["ticks = counter_ticks() - started;", "stack = stack_used();"])
        with w.block("if (status != 0)"):
            w.line("return 4;")
        _transfers(w, "write", OUTPUTS, given[len(inputs) :])
        w.line(f'return write_report("{REPORT}", ticks, stack, operator_ticks, OPERATORS) == 0 ? 0 : 5;')
    return w.text()


def _fields(inputs: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields' names as the header has them: made of all tensors' names together."""
    from mlforge.codegen.c_interface import RESERVED

    return unique((tensor["name"] for tensor in (*inputs, *outputs)), RESERVED)


def _fill_structs(w: Writer, prefix: str, fields: Sequence[str], num_inputs: int, pools: bool) -> None:
    for kind, group in (("inputs", fields[:num_inputs]), ("outputs", fields[num_inputs:])):
        values = ", ".join(group) or "0"
        w.line(f"struct {prefix}_{kind} {kind} = {{{values}}};")
    if pools:
        w.line(f"struct {prefix}_workspace_pools pools = {{workspace}};")
    w.lines(["uint64_t started, ticks;", "size_t stack;", "int32_t status;", "int file;"])


def _transfers(w: Writer, verb: str, path: str, tensors: Sequence[tuple[str, str]]) -> None:
    if not tensors:
        return
    w.line(f'file = semihosting_open("{path}", {int(verb == "write")});')
    tests = ["file == -1", *(f"semihosting_{verb}_all(file, {field}, {macro}) != 0" for field, macro in tensors)]
    with w.block(f"if ({' || '.join(tests)})"):
        w.line(f"return {2 if verb == 'read' else 3};")
    w.line("semihosting_close(file);")


def linker_script(board: Board) -> str:
    """Return the linker script: the vector table first, code and constants in flash, data and stack in RAM."""
    vectors, flash, ram = board.memories[0], board.largest("flash"), board.largest("ram")
    lines = [f"/* Memory of {board.description}. {_LICENCE} */", "ENTRY(vector_table)", "MEMORY", "{"]
    for item in board.memories:
        access = "rx" if item.kind == "flash" else "rwx"
        lines.append(f"  {item.name} ({access}) : ORIGIN = 0x{item.origin:08x}, LENGTH = 0x{item.nbytes:x}")
    return "\n".join([*lines, "}", _SECTIONS.format(vectors=vectors.name, flash=flash.name, ram=ram.name)])


_SECTIONS = """\
SECTIONS
{{
  .vectors : {{ KEEP(*(.vectors)) }} > {vectors}
  .text : {{ *(.text .text.*) *(.rodata .rodata.*) . = ALIGN(4); }} > {flash}
  .ARM.exidx : {{ *(.ARM.exidx*) }} > {flash}
  .data : {{
    linker_data_start = .;
    *(.data .data.*)
    . = ALIGN(4);
    linker_data_end = .;
  }} > {ram} AT > {flash}
  linker_data_load = LOADADDR(.data);
  /* the workspace's contents do not matter, so start-up need not clear it */
  .noinit (NOLOAD) : {{ *(.bss.noinit .bss.noinit.*) }} > {ram}
  .bss (NOLOAD) : {{
    . = ALIGN(8);
    linker_bss_start = .;
    *(.bss .bss.*) *(COMMON)
    . = ALIGN(8);
    linker_bss_end = .;
  }} > {ram}
  linker_stack_top = ORIGIN({ram}) + LENGTH({ram});
  linker_stack_bottom = linker_stack_top - STACK_BYTES;
  ASSERT(linker_bss_end <= linker_stack_bottom, "data and stack do not fit into {ram}")
}}
"""


def makefile(name: str, board: Board, sources: Sequence[str]) -> str:
    """Return the project's Makefile."""
    run = []
    if board.emulator:
        run = [
            "run: firmware.elf",
            f"\t{board.emulator.program} -M {board.emulator.machine} -nographic -monitor none -serial none \\",
            "\t  -icount shift=0 -semihosting-config enable=on,target=native -kernel firmware.elf",
            "",
        ]
    return "\n".join(
        [
            f"# Firmware of module {name} for {board.name}. {_LICENCE}",
            f"CC := {board.toolchain.prefix}gcc",
            f"CORE := {' '.join(board.toolchain.flags)}",
            f"LINK := {' '.join(board.toolchain.link_flags)}",
            "CFLAGS ?= -O3",
            f"STACK_BYTES ?= {board.stack_bytes}",
            "FLAGS := $(CORE) -std=c99 -ffunction-sections -fdata-sections -fno-math-errno -fno-trapping-math \\",
            "  -ffp-contract=fast -Iboard -Imodel/include $(if $(TRACE),-DMLFORGE_TRACE -Itrace) $(CFLAGS)",
            f"SOURCES := {' '.join(sources)}",
            "OBJECTS := $(addprefix build/,$(addsuffix .o,$(SOURCES)))",
            "",
            "firmware.elf: $(OBJECTS) link.ld",
            "\t$(CC) $(CORE) $(LINK) -Wl,--gc-sections \\",
            "\t  -Wl,--defsym=STACK_BYTES=$(STACK_BYTES) -Wl,-Map=firmware.map -T link.ld -o $@ $(OBJECTS) -lm",
            "",
            *run,
            "build/%.o: %",
            "\t@mkdir -p $(dir $@)",
            "\t$(CC) $(FLAGS) -c $< -o $@",
            "",
            "clean:",
            "\trm -rf build firmware.elf firmware.map",
            "",
            ".PHONY: run clean",
            "",
        ]
    )

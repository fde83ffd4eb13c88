"""The linker script of a bare-metal project, made from a board's memory regions.

Generated C says by sections what it wants where: ``.bss.noinit.tvm.<region>`` and ``.rodata.tvm.<region>`` go to the
region of that name, what names none of the board's to its default regions. What nobody uses takes no bytes, but for an
entry of twelve bytes in the table of copies for each RAM beside the default one.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.codegen.writer import comment_text
from mlfc.micro.board.board import Board, Memory

_LICENCE = "SPDX-License-Identifier: 0BSD"


@dataclass(frozen=True)
class _Layout:
    """What an architecture adds: its first symbol and section, names of its small data, and its own tables."""

    entry: str
    first: str
    constants: str = ""
    data: str = ""
    zeros: str = ""
    tables: str = ""


_LAYOUTS = {
    "cortex-m": _Layout("vector_table", ".vectors", tables="  .ARM.exidx : {{ *(.ARM.exidx*) }} > {flash}\n"),
    "riscv": _Layout(
        entry="start",
        first=".start",
        constants=" *(.srodata .srodata.*)",
        # gp points to the middle of what twelve bits of offset reach
        data=" PROVIDE(__global_pointer$ = . + 0x800); *(.sdata .sdata.*)",
        # a section of thread-local zeros (errno) takes no room by itself: the one thread's follows the other zeros
        zeros=" *(.sbss .sbss.*) . = ALIGN(8); linker_threads = .; . += SIZEOF(.tbss);",
        tables="  .tbss : {{ *(.tbss .tbss.*) }} > {ram}\n",
    ),
}


def has_linker_script(board: Board) -> bool:
    """Tell whether firmware for the board is linked by a script of ours."""
    return lays_out(board) or board.arch == "avr"


def lays_out(board: Board) -> bool:
    """Tell whether a script of ours says where everything lies; else it adds to the compiler's own."""
    return board.arch in _LAYOUTS


def linker_script(board: Board) -> str:
    """Return the script: start-up first, code and constants in flash, data and stack in RAM, pools where they say."""
    description = comment_text(board.description)
    if not lays_out(board):
        return _ADDED.format(description=description, licence=_LICENCE, ram=board.ram.name, end=board.ram.end)
    layout, flash, ram = _LAYOUTS[board.arch], board.flash, board.ram
    lines = [f"/* Memory of {description}. {_LICENCE} */", f"ENTRY({layout.entry})", "MEMORY", "{"]
    for item in board.memories:
        access = "rx" if item.kind == "flash" else "rwx"
        lines.append(f"  {item.name} ({access}) : ORIGIN = 0x{item.origin:08x}, LENGTH = 0x{item.nbytes:x}")
    lines += ["}", "SECTIONS", "{", f"  .start : {{ KEEP(*({layout.first})) }} > {board.memories[0].name}"]
    copied = [".data"]
    for item in board.memories:
        if item is flash or item is ram:
            continue
        if item.kind == "flash":
            lines.append(f"  .constants_{item.name} : {{ {_constants(item)} }} > {item.name}")
            continue
        copied.append(f".constants_{item.name}")
        lines.append(f"  {copied[-1]} : ALIGN(4) {{ {_constants(item)} }} > {item.name} AT > {flash.name}")
        lines.append(f"  .pool_{item.name} (NOLOAD) : {{ *(.bss.noinit.tvm.{item.name}) }} > {item.name}")
    copies = "\n".join(f"    LONG(LOADADDR({name})) LONG(ADDR({name})) LONG(SIZEOF({name}))" for name in copied)
    fields = {"flash": flash.name, "ram": ram.name, "ram_constants": _constants(ram), "copies": copies}
    return "\n".join([*lines, _SECTIONS.format(layout=layout, tables=layout.tables.format(**fields), **fields)])


def _constants(region: Memory) -> str:
    return f"*(.rodata.tvm.{region.name})"


_ADDED = """\
/* What the compiler's own script leaves open of {description}. {licence} */
SECTIONS
{{
  linker_stack_bottom = _end;
  ASSERT(_end + STACK_BYTES <= 0x{end:x}, "data and stack do not fit into {ram}")
}}
INSERT AFTER .noinit;
"""

_SECTIONS = """\
  .data : ALIGN(8) {{
    *(.data .data.*) {ram_constants}{layout.data}
    . = ALIGN(4);
  }} > {ram} AT > {flash}
  .text : {{
    *(.text .text.*)
    *(.rodata .rodata.*){layout.constants}
    . = ALIGN(4);
    linker_copies = .;
{copies}
    linker_copies_end = .;
  }} > {flash}
{tables}  /* contents do not matter before the program writes them, so start-up need not clear it */
  .noinit (NOLOAD) : {{ *(.bss.noinit .bss.noinit.*) }} > {ram}
  .bss (NOLOAD) : ALIGN(8) {{
    linker_bss_start = .;
    *(.bss .bss.*) *(COMMON){layout.zeros}
    . = ALIGN(4);
    linker_bss_end = .;
  }} > {ram}
  /* where a C library that has a heap begins it */
  PROVIDE(end = linker_bss_end);
  linker_stack_top = ORIGIN({ram}) + LENGTH({ram});
  linker_stack_bottom = linker_stack_top - STACK_BYTES;
  ASSERT(linker_bss_end <= linker_stack_bottom, "data and stack do not fit into {ram}")
}}
"""

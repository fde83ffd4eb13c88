"""The Makefile of a bare-metal project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlfc.micro.board.board import Board
from mlfc.micro.firmware.avr import EEPROM
from mlfc.micro.firmware.linker_script import has_linker_script
from mlfc.support.module_info import ModuleInfo, ModuleInterface

if TYPE_CHECKING:
    from mlfc.micro.firmware.bare_metal import BareMetal

COMPILE_FLAGS = (
    "-std=c99", "-ffunction-sections", "-fdata-sections", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
)  # fmt: skip
"""Of every file, beside the core's flags and the user's own."""

# code that is small already gains next to nothing by -Os, which leaves registers unused in the inner loops
_LEVELS = {"speed": "-O3", "size": "-O2"}
MAP = "firmware.map"
"""What the linker says of the program."""

_LICENCE = "SPDX-License-Identifier: 0BSD"


def optimization_level(details: ModuleInterface | None) -> str:
    """Return the flag for the C compiler by what a module was compiled for."""
    return _LEVELS.get(details.optimize if isinstance(details, ModuleInfo) else "speed", _LEVELS["speed"])


def makefile(name: str, board: Board, project: BareMetal, level: str, *, is_selftest: bool = False) -> str:
    """Return the Makefile: ``make`` builds ``firmware.elf``, ``make run`` runs it where that can be done here.

    `project`: what is compiled and linked, and where headers lie, under the project's folder; safe in a Makefile.
    `level`: of optimization, unless the user sets CFLAGS.
    `is_selftest`: whether ``make run`` is called ``make selftest``, too.
    """
    script = " link.ld" if has_linker_script(board) else ""
    layout = "-Wl,--defsym=STACK_BYTES=$(STACK_BYTES) -T link.ld " if script else ""
    model = " $(MODEL)" if project.objects else ""
    flags = "$(CC) $(FLAGS) $(LINK)" + (" $(STACK_BYTES)" if script else "")
    return "\n".join(
        [
            f"# Firmware of module {name} for {board.name}. {_LICENCE}",
            f"CC := {board.toolchain.prefix}gcc",
            f"CORE := {' '.join(project.core_flags)}",
            f"LINK := {' '.join(board.toolchain.link_flags)}",
            f"CFLAGS ?= {level}",
            "# libraries that the code of external generators calls",
            "LIBS ?=",
            *([f"STACK_BYTES ?= {board.stack_bytes}"] if script else []),
            f"FLAGS := $(CORE) {' '.join(COMPILE_FLAGS)} \\",
            f"  {' '.join(f'-I{folder}' for folder in project.folders)} \\",
            "  $(if $(TRACE),-DMLFC_TRACE -Itrace) $(CFLAGS)",
            f"SOURCES := {' '.join(project.sources)}",
            "OBJECTS := $(addprefix build/,$(addsuffix .o,$(SOURCES)))",
            *([f"MODEL := {' '.join(project.objects)}"] if project.objects else []),
            "",
            f"firmware.elf: $(OBJECTS){model} build/flags{script}",
            f"\t$(CC) $(CORE) $(LINK) -Wl,--gc-sections -Wl,-Map={MAP} \\",
            f"\t  {layout}-o $@ $(OBJECTS){model} $(LIBS) -lm",
            "",
            *_run(board),
            *(["selftest: run", ""] if is_selftest else []),
            "build/%.o: % build/flags",
            "\t@mkdir -p $(dir $@)",
            "\t$(CC) $(FLAGS) -MMD -MP -c $< -o $@",
            "",
            "-include $(OBJECTS:.o=.d)",
            "",
            "# changes only where the flags do, so that others than before build all again",
            "build/flags: always",
            "\t@mkdir -p build",
            f"\t@echo '{flags}' | cmp -s - $@ || echo '{flags}' > $@",
            "",
            "clean:",
            "\trm -rf build firmware.elf firmware.map",
            "",
            ".PHONY: always run selftest clean" if is_selftest else ".PHONY: always run clean",
            "",
        ]
    )


def _run(board: Board) -> list[str]:
    if board.arch == "avr":
        # the simulator starts with the inputs in the memory that keeps its contents
        return [
            "# firmware that reads no inputs finds erased memory",
            "inputs.bin:",
            "\t@printf '\\377' > $@",
            "",
            f"{EEPROM}: inputs.bin",
            f"\t{board.toolchain.prefix}objcopy -I binary -O ihex --change-addresses 0x810000 $< $@",
            "",
            f"run: firmware.elf {EEPROM}",
            f"\t{' '.join(board.emulator.command('firmware.elf'))}" if board.emulator else "\t@false",
            "",
        ]
    command = board.run_command("firmware.elf")
    return ["run: firmware.elf", f"\t{' '.join(command)}", ""] if command else []

"""The Makefile of a bare-metal project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlfc.micro.board.board import Board
from mlfc.micro.firmware.linker_script import has_linker_script
from mlfc.micro.render import render
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


def optimization_level(details: ModuleInterface | None) -> str:
    """Return the flag for the C compiler by what a module was compiled for."""
    return _LEVELS.get(details.optimize if isinstance(details, ModuleInfo) else "speed", _LEVELS["speed"])


def makefile(name: str, board: Board, project: BareMetal, level: str, *, is_selftest: bool = False) -> bytes:
    """Return the Makefile: ``make`` builds ``firmware.elf``, ``make run`` runs it where that can be done here.

    `project`: sources, objects and include folders in the project's folder; safe in a Makefile.
    `level`: the optimization flag, unless the user sets CFLAGS.
    `is_selftest`: whether ``make selftest`` does what ``make run`` does.
    """
    return render(
        "makefile/Makefile",
        name=name,
        board=board,
        project=project,
        level=level,
        is_selftest=is_selftest,
        has_script=has_linker_script(board),
        compile_flags=COMPILE_FLAGS,
        run=board.run_command("firmware.elf"),
    )

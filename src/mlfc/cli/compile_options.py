"""From the options of ``mlfc compile`` to those of `build`, `ExportOptions` and `export_library`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlfc.errors import MlfcError, OptionError, ProblemsError, unknown
from mlfc.support.text import byte_count

if TYPE_CHECKING:
    from mlfc.archive.write.options import ExportOptions
    from mlfc.memory import Pool
    from mlfc.micro.board.board import Board

LIBRARIES = ("so", "a", "tar")
EMITS = ("mlf", "c", "o", *LIBRARIES)
_BY_SUFFIX = {".so": "so", ".dylib": "so", ".dll": "so", ".wasm": "so", ".a": "a", ".o": "o"}
_OF_ARCHIVES = (
    "source_params",
    "runtime",
    "test_vectors",
    "seed",
    "format_version",
    "rfc",
    "params_form",
    "system_lib",
)
_SIZED = re.compile(r"([^=]*)(?:=([0-9]{1,15} ?[kKmMgG]?(?:i[bB])?))?", re.ASCII)
_FORM = "Write NAME or NAME=BYTES, such as dtcm=65536 or dtcm=64k"
_BOARD = "Name one with --board"
_ONE = "Remove one of them"


def form_of(emit: str | None, output: Path | None) -> str:
    """Return the form to emit: the one that was asked for, else the one that the output's name says.

    Raises OptionError for a form that does not exist, and for an archive under the name of a library or an object.
    """
    if emit is not None and emit not in EMITS:
        raise OptionError(unknown("form", emit, EMITS), place="--emit")
    named = _BY_SUFFIX.get(output.suffix) if output else None
    if output is None or named is None or emit not in (None, "mlf"):
        return emit or "mlf"
    if emit is None and named in LIBRARIES:
        return named
    raise OptionError(
        f"expected a file name of an archive, got '{output.name}'",
        place="-o",
        next_step=f"Name it {output.stem}.tar, or add --emit {named}"
        + (" for objects in a folder" if named == "o" else ""),
    )


def library_options(
    emit: str, board: str | None, abi: str | None, triple: str | None, cc: str | None
) -> dict[str, Any]:
    """Return the options of `mlfc.library.export.export_library`.

    Raises OptionError where they are given and no library is made, and for libraries for boards.
    """
    if board is not None and emit in LIBRARIES:
        raise OptionError(
            f"a library requires an operating system; board '{board}' has none",
            place=f"--emit {emit}",
            next_step="Make objects with --emit o, an archive with --emit mlf, or firmware with mlfc project create",
        )
    asked = {"abi": abi and tuple(abi.split(",")), "target_triple": triple, "cc": cc}
    given = {name: value for name, value in asked.items() if value is not None}
    if given and emit not in LIBRARIES:
        raise OptionError(
            "options --abi, --triple and --cc require a library",
            next_step=f"Use --emit {', '.join(LIBRARIES[:-1])} or {LIBRARIES[-1]}",
        )
    return given


def library_target(form: str, triple: str | None, cc: str | None) -> str | None:
    """Return the target that a library has by default: every processor of its machine; None for what is no library.

    A compiler that the user names builds for a machine of its own choice, hence for what all of it have.
    """
    if form not in LIBRARIES or cc is not None:
        return None
    from mlfc.support.platforms import parse_platform
    from mlfc.target.defaults import EVERY_CPU

    return EVERY_CPU if triple is None else f"{EVERY_CPU} -mtriple={parse_platform(triple).arch}"


def export_options(asked: Mapping[str, Any], emit: str, archive: Path | None) -> ExportOptions:
    """Return the options of an export.

    `asked`: the user's values by option name, None if not given.
    `archive`: the archive to compile again; its own options are the defaults.

    Raises OptionError for options of archives where something else is made.
    """
    from mlfc.archive.write.options import ExportOptions
    from mlfc.archive.write.rebuild import recorded_options

    given = {name: value for name, value in asked.items() if value is not None}
    idle = [f"--{name.replace('_', '-')}" for name in _OF_ARCHIVES if name in given]
    if emit != "mlf" and idle:
        raise OptionError(
            "this option requires --emit mlf",
            place=", ".join(idle),
            next_step=f"Remove it, or remove --emit {emit}",
        )
    if "params_form" in given:
        given["params_forms"] = tuple(dict.fromkeys(("params", *given.pop("params_form"))))
    return replace(recorded_options(archive) if archive else ExportOptions(), **given)


def memory_options(
    workspace_io: bool | None,
    pools: Sequence[str],
    constants: Sequence[str],
    loaded: Sequence[str],
    board: Board | None = None,
    *,
    board_pools: bool = False,
) -> dict[str, Any]:
    """Return the arguments of `build` that say where memory lies; what the user said nothing about is left out.

    `pools`, `constants`, `loaded`: ``NAME`` or ``NAME=BYTES``: of the workspace, of constants in sections, of constants
        that the caller loads.
    `board_pools`: whether to spread the workspace over the board's memories.

    Raises OptionError or ProblemsError for all that is wrong with them at once.
    """
    from mlfc.memory import ConstantPool, MemoryOptions, Pool

    problems: list[MlfcError] = []

    def sized(texts: Sequence[str], flag: str) -> list[tuple[str, int | None]]:
        found = []
        for text in texts:
            match = _SIZED.fullmatch(text)
            if match is None:
                problems.append(OptionError(f"expected NAME or NAME=BYTES, got '{text}'", place=flag, next_step=_FORM))
            else:
                found.append((match[1], byte_count(match[2]) if match[2] else None))
        return found

    wanted = [Pool(name, nbytes) for name, nbytes in sized(pools, "--pool")]
    if board_pools and board is None:
        problems.append(OptionError("option --board-pools requires --board", place="--board-pools", next_step=_BOARD))
    if board_pools and wanted:
        problems.append(
            OptionError("options --pool and --board-pools exclude each other", place="--pool", next_step=_ONE)
        )
    memories = [ConstantPool(name, nbytes) for name, nbytes in sized(constants, "--constants")]
    memories += [ConstantPool(name, nbytes, external=True) for name, nbytes in sized(loaded, "--load-constants")]
    try:
        MemoryOptions(pools=tuple(wanted), constants=tuple(memories))
    except ProblemsError as error:
        problems += error.problems
    except MlfcError as error:
        problems.append(error)
    if problems:
        raise problems[0] if len(problems) == 1 else ProblemsError(problems)
    chosen = {
        "workspace_io": workspace_io,
        "pools": wanted or (_of_board(board) if board_pools else None),
        "constants": memories or None,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _of_board(board: Board | None) -> tuple[Pool, ...] | None:
    if board is None:
        return None
    from mlfc.micro.board.board import board_pools

    return board_pools(board)

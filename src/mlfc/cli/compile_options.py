"""From the options of ``mlfc compile`` to those of `build`, `ExportOptions` and `export_library`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlfc.cli.options import given_options
from mlfc.errors import MlfcError, OptionError, ProblemsError, unknown
from mlfc.support.text import byte_count

if TYPE_CHECKING:
    from mlfc.archive.write.options import ExportOptions
    from mlfc.memory import Pool
    from mlfc.micro.board.board import Board

LIBRARIES = ("so", "a", "tar")
EMITS = ("mlf", "c", "o", *LIBRARIES)
_BY_SUFFIX = {".so": "so", ".dylib": "so", ".dll": "so", ".wasm": "so", ".a": "a", ".o": "o"}
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


@dataclass(frozen=True)
class LibraryOptions:
    """Options of libraries; None for what the user did not give."""

    abi: str | None = None
    triple: str | None = None
    cc: str | None = None
    parallel: bool | None = None

    def arguments(self, emit: str, board: str | None) -> dict[str, Any]:
        """Return the options of `mlfc.library.export.export_library`.

        Raises OptionError where they are given and no library is made, and for libraries for boards.
        """
        if board is not None and emit in LIBRARIES:
            raise OptionError(
                f"a library requires an operating system; board '{board}' has none",
                place=f"--emit {emit}",
                next_step="Make objects with --emit o, an archive with --emit mlf, or firmware with mlfc project"
                " create",
            )
        asked = given_options(
            {"abi": self.abi and tuple(self.abi.split(",")), "target_triple": self.triple, "cc": self.cc}
        )
        if asked and emit not in LIBRARIES:
            raise OptionError(
                "options --abi, --triple and --cc require a library",
                next_step=f"Use --emit {', '.join(LIBRARIES[:-1])} or {LIBRARIES[-1]}",
            )
        return asked

    def target(self, emit: str) -> str | None:
        """Return the target that a library has by default: every processor of its machine; None for other forms.

        A compiler that the user names builds for a machine of its own choice, hence for what all of it have.
        """
        if emit not in LIBRARIES or self.cc is not None:
            return None
        from mlfc.support.platforms import parse_platform
        from mlfc.target.defaults import EVERY_CPU

        return EVERY_CPU if self.triple is None else f"{EVERY_CPU} -mtriple={parse_platform(self.triple).arch}"

    @property
    def suffix(self) -> str:
        """The suffix of shared libraries for the machine, default this one."""
        from mlfc.support.platforms import parse_platform

        return ".so" if self.triple is None else parse_platform(self.triple).suffix


def export_options(
    archived: Mapping[str, Any],
    forms: Sequence[str] | None,
    sharing: Mapping[str, Any],
    emit: str,
    archive: Path | None,
) -> ExportOptions:
    """Return the options of an export.

    `archived`: those of archives. `forms`: of parameters. `sharing`: those of several modules together.
    `archive`: the archive to compile again; its own options are the defaults.

    Raises OptionError for options of archives where something else is made.
    """
    from mlfc.archive.write.options import ExportOptions
    from mlfc.archive.write.rebuild import recorded_options

    asked = {**archived, **({"params_form": forms} if forms else {})}
    if emit != "mlf" and asked:
        raise OptionError(
            "this option requires --emit mlf",
            place=", ".join(f"--{name.replace('_', '-')}" for name in asked),
            next_step=f"Remove it, or remove --emit {emit}",
        )
    if asked.pop("params_form", None) and forms:
        asked["params_forms"] = tuple(dict.fromkeys(("params", *forms)))
    recorded = recorded_options(archive) if archive else ExportOptions()
    return replace(recorded, **asked, **sharing)


@dataclass(frozen=True)
class PlacementOptions:
    """Options about memory; None for what the user did not give.

    `pool`, `constants`, `load_constants`: ``NAME`` or ``NAME=BYTES``: of the workspace, of constants in sections, of
    constants that the caller loads.
    """

    workspace_io: bool | None = None
    external_workspace: bool | None = None
    pool: list[str] | None = None
    board_pools: bool = False  # spread the workspace over the board's memories
    constants: list[str] | None = None
    load_constants: list[str] | None = None

    def arguments(self, board: Board | None = None) -> dict[str, Any]:
        """Return the options of `build` that the user gave; OptionError or ProblemsError for all faults at once."""
        from mlfc.memory import ConstantPool, MemoryOptions, Pool

        problems: list[MlfcError] = []
        wanted = [Pool(name, nbytes) for name, nbytes in _sized(self.pool, "--pool", problems)]
        if self.board_pools and board is None:
            problems.append(
                OptionError("option --board-pools requires --board", place="--board-pools", next_step=_BOARD)
            )
        if self.board_pools and wanted:
            problems.append(
                OptionError("options --pool and --board-pools exclude each other", place="--pool", next_step=_ONE)
            )
        memories = [ConstantPool(*sized) for sized in _sized(self.constants, "--constants", problems)]
        loaded = _sized(self.load_constants, "--load-constants", problems)
        memories += [ConstantPool(name, nbytes, external=True) for name, nbytes in loaded]
        try:
            MemoryOptions(pools=tuple(wanted), constants=tuple(memories))
        except ProblemsError as error:
            problems += error.problems
        except MlfcError as error:
            problems.append(error)
        if problems:
            raise problems[0] if len(problems) == 1 else ProblemsError(problems)
        return given_options(
            {
                "workspace_io": self.workspace_io,
                "external_workspace": self.external_workspace,
                "pools": wanted or (_of_board(board) if self.board_pools else None),
                "constants": memories or None,
            }
        )


def _sized(texts: Sequence[str] | None, flag: str, problems: list[MlfcError]) -> list[tuple[str, int | None]]:
    """Return names and sizes; add an OptionError to `problems` for each text of another form."""
    found = []
    for text in texts or ():
        match = _SIZED.fullmatch(text)
        if match is None:
            problems.append(OptionError(f"expected NAME or NAME=BYTES, got '{text}'", place=flag, next_step=_FORM))
        else:
            found.append((match[1], byte_count(match[2]) if match[2] else None))
    return found


def _of_board(board: Board | None) -> tuple[Pool, ...] | None:
    if board is None:
        return None
    from mlfc.micro.board.board import board_pools

    return board_pools(board)

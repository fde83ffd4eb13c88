"""Where memory is to lie, from what the user of ``mlfc compile`` writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlfc.errors import MlfcError, OptionError, ProblemsError

if TYPE_CHECKING:
    from mlfc.memory import Pool
    from mlfc.micro.board.board import Board

_SIZED = re.compile(r"([^=]*)(?:=([0-9]{1,15}))?")


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

    Parameters
    ----------
    workspace_io : bool or None
    pools, constants, loaded : sequence of str
        ``NAME`` or ``NAME=BYTES``: of the workspace, of constants in sections, of constants that the caller loads.
    board : Board, optional
    board_pools : bool
        Whether the workspace is to be spread over the board's memories.

    Raises
    ------
    OptionError, ProblemsError
        For all that is wrong with them at once.
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
                found.append((match[1], int(match[2]) if match[2] else None))
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


_FORM = "Write NAME or NAME=BYTES"
_BOARD = "Name one with --board"
_ONE = "Remove one of them"


def _of_board(board: Board | None) -> tuple[Pool, ...] | None:
    if board is None:
        return None
    from mlfc.micro.board.pools import board_pools

    return board_pools(board)

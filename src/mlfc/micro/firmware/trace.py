"""What traced firmware says of each operator: a line with a checksum of its output and its ticks, or the output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlfc.errors import OptionError, RunError
from mlfc.micro.board.board import Board

LINES, CHOSEN, TENSORS = "trace.txt", "chosen.bin", "tensors.bin"
"""Files that traced firmware writes, and the one of a byte for each operator that says whose outputs are written."""

_LINE = re.compile(r"trace ([0-9]{1,10}) ([0-9a-f]{8}) ([0-9]{1,20})")
_NUMBERS = re.compile(r"numbers((?: [0-9]{1,20})*)")


@dataclass(frozen=True)
class TracedOperator:
    """What one operator of a run did."""

    checksum: int  # the CRC-32 of its output's bytes
    ticks: int  # of the board's counter


@dataclass(frozen=True)
class CalledOperator:
    """What an operator of the virtual machine did in a run, which may call it in each turn of a loop, or never."""

    calls: tuple[tuple[int, ...], ...]  # the numbers of each call of its kernel
    ticks: int  # of the board's counter, all calls together


def traces(board: Board) -> bool:
    """Tell whether a board's firmware has files of the host to write what operators computed to."""
    return board.arch != "avr"


def check_traces(board: Board) -> None:
    """Raise OptionError for a board whose firmware cannot hand over what its operators compute."""
    if not traces(board):
        raise OptionError(
            f"board '{board.name}' cannot transfer the results of operators",
            next_step=f'Leave out --layers, or look at the same C here: --layers --target "{board.target}"',
        )


def read_trace(folder: Path, operators: int) -> tuple[TracedOperator, ...]:
    """Return what a run wrote of each operator; raise RunError if there is not one line for each."""
    found: list[TracedOperator] = []
    for match in map(_LINE.fullmatch, _lines(folder)):
        if match is None or int(match[1]) != len(found):
            break
        found.append(TracedOperator(int(match[2], 16), int(match[3])))
    if len(found) != operators:
        raise RunError(f"expected {operators} operators from the firmware, got {len(found)}", place=LINES)
    return tuple(found)


def read_calls(folder: Path, operators: int) -> tuple[CalledOperator, ...]:
    """Return what a run of the virtual machine wrote of each operator; raise RunError for a line that tells nothing."""
    calls: list[list[tuple[int, ...]]] = [[] for _ in range(operators)]
    ticks = [0] * operators
    lines = _lines(folder)
    for number in range(0, len(lines), 2):
        match, *numbers = _LINE.fullmatch(lines[number]), *map(_NUMBERS.fullmatch, lines[number + 1 : number + 2])
        if match is None or int(match[1]) >= operators or not numbers or numbers[0] is None:
            raise RunError(f"line {number + 1} names no call of {operators} operators", place=LINES)
        calls[int(match[1])].append(tuple(map(int, numbers[0][1].split())))
        ticks[int(match[1])] += int(match[3])
    return tuple(map(CalledOperator, map(tuple, calls), ticks))


def _lines(folder: Path) -> list[str]:
    path = folder / LINES
    text = path.read_text(encoding="ascii", errors="replace") if path.is_file() else ""
    return text.splitlines()


def choose(folder: Path, sizes: Mapping[int, int], operators: int) -> None:
    """Have the next run in a folder write the outputs of some operators.

    `sizes`: bytes of each operator's output, by its place in the order.
    """
    (folder / CHOSEN).write_bytes(bytes(int(index in sizes) for index in range(operators)))


def read_tensors(folder: Path, sizes: Mapping[int, int]) -> dict[int, bytes]:
    """Return what the run after `choose` wrote; raise RunError if that is not all."""
    path = folder / TENSORS
    data = path.read_bytes() if path.is_file() else b""
    if len(data) != sum(sizes.values()):
        raise RunError(f"the firmware wrote {len(data):,} bytes out of {sum(sizes.values()):,}", place=TENSORS)
    found, offset = {}, 0
    for index in sorted(sizes):
        found[index] = data[offset : offset + sizes[index]]
        offset += sizes[index]
    return found

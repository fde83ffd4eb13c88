"""``mlfc boards``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlfc.cli.tables import print_json, print_table
from mlfc.support.text import printable

if TYPE_CHECKING:
    from mlfc.micro.board.board import Board

EXAMPLES = ("mlfc boards", "mlfc boards stm32h743", "mlfc run kws.tflite --board mps2-an386 --profile")


_OF_THE_FILE = ("text", "trusted")


def boards(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="All of one board, or of a file of your own")
    ] = None,
    as_json: bool = False,
) -> None:
    """List the boards for --board. The path of a file of the same form (.toml) names a board of your own."""
    from mlfc.micro.board.board import boards as all_boards
    from mlfc.micro.board.board import find_board

    if name is not None:
        # shown, not run
        _print_one(find_board(name, trust=True), as_json)
        return
    found = [all_boards().get(item) for item in all_boards()]
    if as_json:
        print_json({board.name: _document(board) for board in found})
        return
    columns = ("board", "chip", "core", "features", "flash", "RAM", "MHz", "runs under", "description")
    optional = ("description", "features", "runs under", "chip", "MHz")
    print_table("boards", columns, [_row(board) for board in found], names=True, optional=optional)


def _document(board: Board) -> dict[str, Any]:
    facts = {key: value for key, value in asdict(board).items() if key not in _OF_THE_FILE}
    return {**facts, "features": board.features}


def _row(board: Board) -> tuple[object, ...]:
    clock = board.fastest_clock_hz
    return (
        board.name,
        board.chip or None,
        board.core,
        " ".join(board.features),
        _size(board.flash.nbytes) if board.memories else None,
        _size(board.ram.nbytes) if board.memories else None,
        clock / 1e6 if clock else None,
        _runs_under(board),
        board.description,
    )


def _runs_under(board: Board) -> str | None:
    if board.arch == "host":
        return "itself"
    return board.emulator.program if board.emulator else None


def _size(nbytes: int) -> str:
    """Return bytes in short, in KiB or MiB where that is exact."""
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if nbytes % size == 0:
            return f"{nbytes // size}{unit}"
    return str(nbytes)


def _print_one(board: Board, as_json: bool) -> None:
    if as_json:
        print_json(_document(board))
        return
    tool, serial, emulator = board.flash_tool, board.serial, board.emulator
    facts = {
        "description": board.description,
        "chip": board.chip,
        "core": board.core,
        "features": " ".join(board.features),
        "target": board.target,
        "clock Hz": board.clock_hz,
        "at most": board.max_clock_hz,
        "stack bytes": board.stack_bytes,
        "bare metal": "yes" if board.bare_metal else "no: by its vendor's build system",
        "compiler": f"{board.toolchain.prefix}gcc {' '.join(board.toolchain.flags)}".rstrip(),
        "Debian packages": " ".join((*board.toolchain.packages, *(emulator.packages if emulator else ()))),
        "runs under": " ".join(board.run_command("firmware.elf") or ()),
        "flash tool": " ".join(tool.command) if tool else None,
        "to install it": tool.install if tool else None,
        "serial port": serial and f"{serial.baud} baud" + _usb(serial.vid, serial.pid),
        "numbers from": board.source,
        **{f"name in {system}": name for system, name in board.vendor.items()},
    }
    typer.echo(board.name)
    width = max(map(len, facts))
    for key, value in facts.items():
        if value:
            typer.echo(f"  {key.ljust(width)}  {printable(str(value))}")
    if not board.memories:
        return
    defaults = (board.flash, board.ram)
    rows = [
        (
            item.name,
            item.kind,
            f"0x{item.origin:08x}",
            item.nbytes,
            item.wait_cycles,
            "yes" if item in defaults else None,
        )
        for item in board.memories
    ]
    print_table("memory", ("region", "kind", "origin", "bytes", "wait cycles", "default"), rows)


def _usb(vid: int | None, pid: int | None) -> str:
    return f", USB {vid:04x}:{pid:04x}" if vid is not None and pid is not None else ""

"""``mlfc devices``, ``mlfc operators``, ``mlfc targets`` and ``mlfc boards``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlfc.cli.tables import print_json, print_table
from mlfc.errors import DeviceError, OptionError
from mlfc.support.text import printable

if TYPE_CHECKING:
    from mlfc.micro.board.board import Board

DEVICES_EXAMPLES = ("mlfc devices", "mlfc compile resnet18.onnx --target opencl")
OPERATORS_EXAMPLES = ("mlfc operators", "mlfc operators --json")
TARGETS_EXAMPLES = (
    "mlfc targets",
    'mlfc compile kws.tflite --target "c -mcpu=cortex-m4"',
    'mlfc compile kws.tflite --target "llvm -mtriple=thumbv7em-none-eabi -mcpu=cortex-m4"',
)
BOARDS_EXAMPLES = (
    "mlfc boards",
    "mlfc boards stm32h743",
    "mlfc boards nrf52840dk --toml > mine.toml",
    "mlfc run kws.tflite --board mps2-an386 --profile",
)
_OF_THE_FILE = ("text", "trusted")


def devices(as_json: bool = False) -> None:
    """List the devices that models can run on here.

    Also shows the requirements of other kinds of devices.
    """
    from mlfc.runtime.devices.device import devices_of, known_kinds

    found: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for kind in known_kinds():
        try:
            found += [
                {"device": str(api.device), "name": api.name, "memory": api.memory_bytes, "driver": api.driver}
                for api in devices_of(kind)
            ]
        except DeviceError as error:
            missing[kind] = str(error)
    if as_json:
        print_json({"devices": found, "missing": missing})
        return
    print_table("devices", ("device", "name", "memory", "driver"), [list(item.values()) for item in found])
    for kind, reason in missing.items():
        typer.echo(f"no {kind}: {printable(reason)}")


def operators(as_json: bool = False) -> None:
    """List the operators and their numeric contracts."""
    from mlfc.relay.op import OPERATORS

    known = [OPERATORS.get(name) for name in OPERATORS]
    if as_json:
        print_json(
            {
                item.name: {
                    "attributes": [attr.name for attr in item.attrs],
                    "kind": item.kind.value,
                    "contract": item.contract,
                    "doc": item.doc,
                }
                for item in known
            }
        )
        return
    print_table(
        "operators", ("name", "kind", "contract", ""), [(i.name, i.kind.value, i.contract, i.doc) for i in known]
    )


def targets(as_json: bool = False) -> None:
    """List the targets and processors for --target.

    The kind llvm supports every other processor of LLVM as well.
    """
    from mlfc.target.features import CPUS
    from mlfc.target.target import KINDS

    kinds = {name: KINDS.get(name) for name in KINDS}
    known = {name: asdict(CPUS.get(name).features) for name in CPUS}
    if as_json:
        listed = {name: {"options": kind.options, "device": kind.device} for name, kind in kinds.items()}
        print_json({"kinds": listed, "cpus": known})
        return
    options = {name: " ".join(f"{option}=..." for option in kind.options) for name, kind in kinds.items()}
    runs_on = {name: f"{kind.device}, beside a host" if kind.device else "host" for name, kind in kinds.items()}
    print_table("kinds", ("kind", "runs on", "options"), [(name, runs_on[name], options[name]) for name in kinds])
    rows = [(name, item["vector_bytes"], item["vector_registers"]) for name, item in known.items()]
    print_table("processors of c and llvm", ("-mcpu=", "vector bytes", "registers"), rows)


def boards(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Details of one board, or of your own board file")
    ] = None,
    toml: Annotated[
        bool, typer.Option("--toml", help="Print the board's file, to start one of your own from.")
    ] = False,
    as_json: bool = False,
) -> None:
    """List the boards for --board.

    For a board of your own, --board accepts the path of a .toml file.
    """
    from mlfc.micro.board.board import boards as all_boards
    from mlfc.micro.board.board import find_board

    if name is not None:
        board = find_board(name, trust=True)  # displayed, not executed
        if toml:
            typer.echo(board.text, nl=False)
        else:
            _print_one(board, as_json)
        return
    if toml:
        raise OptionError("option --toml requires a board", next_step="Name it: mlfc boards NAME --toml")
    found = [all_boards().get(item) for item in all_boards()]
    if as_json:
        print_json({board.name: _document(board) for board in found})
        return
    rows = []
    for board in found:
        clock, runner = board.fastest_clock_hz, board.emulator and board.emulator.program
        sizes = [_size(region.nbytes) for region in (board.flash, board.ram)] if board.memories else [None, None]
        facts = (board.name, board.chip or None, board.core, " ".join(board.features), *sizes)
        runs_under = "itself" if board.arch == "host" else runner
        rows.append((*facts, clock / 1e6 if clock else None, runs_under, board.description))
    columns = ("board", "chip", "core", "features", "flash", "RAM", "MHz", "runs under", "description")
    optional = ("description", "features", "runs under", "chip", "MHz")
    print_table("boards", columns, rows, names=True, optional=optional)


def _document(board: Board) -> dict[str, Any]:
    facts = {key: value for key, value in asdict(board).items() if key not in _OF_THE_FILE}
    return {**facts, "features": board.features}


def _size(nbytes: int) -> str:
    """Return bytes as text, in KiB or MiB if exact."""
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if nbytes % size == 0:
            return f"{nbytes // size}{unit}"
    return str(nbytes)


def _print_one(board: Board, as_json: bool) -> None:
    if as_json:
        print_json(_document(board))
        return
    tool, serial, emulator = board.flash_tool, board.serial, board.emulator
    usb = f", USB {serial.vid:04x}:{serial.pid:04x}" if serial and None not in (serial.vid, serial.pid) else ""
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
        "serial port": serial and f"{serial.baud} baud{usb}",
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
    rows = []
    for item in board.memories:
        is_default = "yes" if item in defaults else None
        rows.append((item.name, item.kind, f"0x{item.origin:08x}", item.nbytes, item.wait_cycles, is_default))
    print_table("memory", ("region", "kind", "origin", "bytes", "wait cycles", "default"), rows)

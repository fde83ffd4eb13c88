"""``mlforge boards``."""

from __future__ import annotations

from dataclasses import asdict

from mlforge.cli.options import Json
from mlforge.cli.tables import print_json, print_table

EXAMPLES = ("mlforge boards", "mlforge run kws.tflite --board mps2-an386 --profile")


def boards(as_json: Json = False) -> None:
    """List the boards for --board. The path of a file of the same form (.toml) names a board of your own."""
    from mlforge.micro.board import boards as all_boards

    found = all_boards()
    if as_json:
        print_json({name: asdict(found.get(name)) for name in found})
        return
    rows = [
        (
            board.name,
            board.description,
            board.core,
            board.flash.nbytes,
            board.ram.nbytes,
            board.emulator.machine if board.emulator else None,
        )
        for board in (found.get(name) for name in found)
    ]
    print_table("boards", ("board", "description", "core", "flash bytes", "RAM bytes", "QEMU machine"), rows)

"""How firmware on an AVR, without semihosting, has its files: inputs in the EEPROM, outputs on the serial line."""

from __future__ import annotations

import re
from pathlib import Path

EEPROM = "inputs.hex"
"""The file that the Makefile makes of the inputs for the simulator."""

_COLOURS = re.compile(r"\x1b\[[0-9]*m")
_PRINTED = re.compile(r"(?:open (?P<path>[a-z.]+?)|data (?P<data>([0-9a-f]{2})+)|exit (?P<status>[0-9]{1,3}))\.?")
_FILES = frozenset({"outputs.bin", "report.txt"})


def write_files(printed: str, folder: Path) -> tuple[int | None, str]:
    """Write the files that the firmware printed, and return its exit status and what else it said.

    `printed`: what the simulator shows of the serial line: lines that end with a point, each in colours.
    `folder`: where the files go; only those that firmware has.

    The status is None if the firmware never ended itself.
    """
    found: dict[str, bytearray] = {}
    status, current, said = None, bytearray(), []
    for line in _COLOURS.sub("", printed).splitlines():
        match = _PRINTED.fullmatch(line)
        if match is None:
            said.append(line.removesuffix("."))
        elif match["status"]:
            status = int(match["status"])
        elif match["data"]:
            current += bytes.fromhex(match["data"])
        elif match["path"] in _FILES:
            current = found.setdefault(match["path"], bytearray())
    for name, data in found.items():
        (folder / name).write_bytes(data)
    return status, "\n".join(said).strip()

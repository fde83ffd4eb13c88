"""Whether an object file can be linked into this process: told by its ELF header alone."""

from __future__ import annotations

import platform
import struct
import sys

# class (1: 32 bits, 2: 64 bits), byte order (1: little), machine, by what Python calls this machine
_MACHINES = {
    "x86_64": 62,
    "amd64": 62,
    "i386": 3,
    "i686": 3,
    "aarch64": 183,
    "arm64": 183,
    "armv6l": 40,
    "armv7l": 40,
    "armv8l": 40,
    "riscv64": 243,
    "ppc64le": 21,
    "ppc64": 21,
    "s390x": 22,
    "loongarch64": 258,
}
_NAMES = {3: "x86", 8: "MIPS", 20: "PowerPC", 40: "Arm", 62: "x86-64", 183: "AArch64", 94: "Xtensa", 243: "RISC-V"}
_RELOCATABLE = 1
_TYPE_OFFSET = 16


def misfit(data: bytes | memoryview) -> str | None:
    """Say why an object cannot be linked for this process; None if it can.

    Parameters
    ----------
    data : bytes
        At least the first 20 bytes of the file.
    """
    head = bytes(data[:20])
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return "it is not an ELF object"
    bits, order = {1: 32, 2: 64}.get(head[4]), {1: "little", 2: "big"}.get(head[5])
    if bits is None or order is None:
        return "its ELF header is damaged"
    kind, machine = struct.unpack_from("<HH" if order == "little" else ">HH", head, _TYPE_OFFSET)
    if kind != _RELOCATABLE:
        return "it is not a relocatable object"
    ours = 64 if sys.maxsize > 1 << 32 else 32
    wanted = _MACHINES.get(platform.machine().lower())
    # a 32-bit Python on a 64-bit kernel
    if ours == 32:
        wanted = {62: 3, 183: 40}.get(wanted or 0, wanted)
    if (bits, order, machine) != (ours, sys.byteorder, wanted):
        return f"it is for {_NAMES.get(machine, f'machine {machine}')}, {bits} bits, {order} endian"
    return None

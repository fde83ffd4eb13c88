"""Headers of objects and libraries, and the names of machines."""

from __future__ import annotations

import struct

import pytest

from mlfc.errors import OptionError
from mlfc.objfile.head import LIBRARY, OBJECT, misfit, read_head
from mlfc.support.platforms import Platform, parse_platform

X86 = Platform("x86_64", "linux", "gnu")


def elf(kind: int, machine: int, bits: int = 64, order: str = "<") -> bytes:
    start = b"\x7fELF" + bytes([bits // 32, 1 if order == "<" else 2]) + bytes(10)
    return start + struct.pack(f"{order}HH", kind, machine) + bytes(40)


def pe(machine: int, traits: int) -> bytes:
    start = b"MZ" + bytes(0x3A) + struct.pack("<I", 0x80) + bytes(0x40)
    return start + b"PE\0\0" + struct.pack("<H", machine) + bytes(16) + struct.pack("<H", traits)


@pytest.mark.parametrize(
    ("head", "kind", "reason"),
    [
        (b"", OBJECT, "it is not an object"),
        (b"\xff" * 64, LIBRARY, "it is not a library"),
        (b"!<arch>\n" + bytes(20), OBJECT, "it is an archive of objects, not an object"),
        (b"\x7fELF\x09\x01" + bytes(20), OBJECT, "it is not an object"),
        (b"\x7fELF\x02\x01" + bytes(4), LIBRARY, "it is not a library"),
        (elf(3, 62), OBJECT, "it is a library, not an object"),
        (elf(1, 62), LIBRARY, "it is an object, not a library"),
        (elf(2, 62), LIBRARY, "it is a program, not a library"),
        (elf(1, 20, 32, ">"), OBJECT, "it is for powerpc, big endian Linux; what is built is x86-64 Linux"),
        (elf(3, 183), LIBRARY, "it is for AArch64 Linux; what is built is x86-64 Linux"),
        (elf(3, 3, 32), LIBRARY, "it is for x86 Linux"),
        (pe(0x8664, 0x2000), LIBRARY, "it is for x86-64 Windows"),
        (pe(0xAA64, 0x2000), LIBRARY, "it is for AArch64 Windows"),
        (b"MZ" + bytes(20), LIBRARY, "it is not a library"),
        (struct.pack("<III", 0xFEEDFACF, 0x0100000C, 0) + struct.pack("<I", 6), LIBRARY, "it is for AArch64 macOS"),
        (
            struct.pack(">II", 0xCAFEBABE, 2) + struct.pack(">I16x", 0x01000007) + struct.pack(">I16x", 0x0100000C),
            LIBRARY,
            "it is for x86-64 macOS, AArch64 macOS",
        ),
        (b"\xca\xfe\xba\xbe\0\0\0\x37" + bytes(40), LIBRARY, "it is not a library"),
        (b"\0asm\1\0\0\0", LIBRARY, "it is for WebAssembly WASI"),
        (struct.pack("<HHIIIH", 0xAA64, 4, 0, 99, 5, 0), OBJECT, "it is for AArch64 Windows"),
    ],
)
def test_a_misfit_is_named(head: bytes, kind: str, reason: str) -> None:
    assert reason in str(misfit(head, kind, X86))


def test_what_fits_is_no_misfit() -> None:
    assert misfit(elf(3, 62), LIBRARY, X86) is None
    assert misfit(elf(1, 183), OBJECT, Platform("aarch64", "linux", "musl")) is None
    assert misfit(pe(0x8664, 0x2022), LIBRARY, Platform("x86_64", "windows", "gnu")) is None


@pytest.mark.parametrize("head", [elf(3, 62), pe(0x8664, 0x2000), struct.pack(">II", 0xCAFEBABE, 2) + bytes(40)])
def test_no_prefix_of_a_head_stops_the_reader(head: bytes) -> None:
    for length in range(len(head)):
        read_head(head[:length])


@pytest.mark.parametrize(
    ("text", "triple"),
    [
        ("aarch64-linux-gnu", "aarch64-linux-gnu"),
        ("aarch64-unknown-linux-gnu", "aarch64-linux-gnu"),
        ("aarch64-linux-musl", "aarch64-linux-musl"),
        ("riscv64-linux-gnu", "riscv64-linux-gnu"),
        ("x86_64-pc-linux-gnu", "x86_64-linux-gnu"),
        ("x86_64-w64-mingw32", "x86_64-windows-gnu"),
        ("x86_64-windows-gnu", "x86_64-windows-gnu"),
        ("aarch64-macos", "aarch64-macos"),
        ("arm64-apple-darwin20.6", "aarch64-macos"),
        ("arm64-apple-macosx11.0.0", "aarch64-macos"),
        ("wasm32-unknown-wasi", "wasm32-wasi"),
        ("wasm32-wasip1", "wasm32-wasi"),
        ("arm-linux-gnueabihf", "arm-linux-gnueabihf"),
        ("armv7l-linux", "arm-linux-gnueabihf"),
        ("i686-linux-gnu", "x86-linux-gnu"),
    ],
)
def test_every_spelling_of_a_machine_is_known(text: str, triple: str) -> None:
    assert parse_platform(text).triple == triple
    assert parse_platform(parse_platform(text).triple) == parse_platform(text)


@pytest.mark.parametrize("text", ["", "pdp11-linux", "x86_64", "aarch64-plan9", "x86_64-pc-windows-msvc", "-", "; ls"])
def test_machines_that_nobody_builds_for_are_refused(text: str) -> None:
    with pytest.raises(OptionError):
        parse_platform(text)

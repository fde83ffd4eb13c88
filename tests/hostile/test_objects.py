"""Damaged objects are refused before LLVM's linker sees them; it would end the process."""

from __future__ import annotations

import platform
import random
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import mlfc
from mlfc.errors import ToolchainError
from mlfc.library.jit import LinkedObjects
from mlfc.library.object_check import check_object
from mlfc.support.content import to_bytes
from mlfc.target.llvm import host_triple
from tests.conftest import WATCHDOG, need

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.onnx"
HEADER, SECTION, SYMBOL, RELOCATION = 64, 64, 24, 24
SOURCE = """
extern int elsewhere(int);
static const char *const texts[] = {"one", "two"};
__thread int calls;
int common;
static int zeros[100];
int twice(int value);
__attribute__((weak)) int weak(void) { return 3; }
int twice(int value) { calls += value; zeros[value & 7]++; return common + elsewhere(texts[value & 1][0]); }
"""


@cache
def objects(triple: str) -> dict[str, bytes]:
    """Return the objects of a small model."""
    module, params = mlfc.import_model(DIGITS)
    files = mlfc.build(module, f"llvm -mtriple={triple}", params).lib.files
    return {name: to_bytes(data) for name, data in files.items() if name.endswith(".o")}


def kernels() -> bytes:
    return max(objects("x86_64-linux-gnu").values(), key=len)


class Damage:
    """An object whose tables are spoiled one number at a time."""

    def __init__(self) -> None:
        self.data = bytearray(kernels())
        (self.sections,) = struct.unpack_from("<Q", self.data, 0x28)
        (self.count,) = struct.unpack_from("<H", self.data, 60)

    def section(self, kind: int, field: int, value: int, form: str = "Q") -> None:
        """Write into the header of the first section of a kind."""
        struct.pack_into(f"<{form}", self.data, self._place(kind) + field, value)

    def row(self, kind: int, index: int, nbytes: int, field: int, form: str, value: int) -> None:
        """Write into a row of the table that is the first section of a kind; -1 is the last one."""
        start, size = struct.unpack_from("<QQ", self.data, self._place(kind) + 24)
        struct.pack_into(f"<{form}", self.data, start + (index % (size // nbytes)) * nbytes + field, value)

    def _place(self, kind: int) -> int:
        places = range(self.sections, self.sections + self.count * SECTION, SECTION)
        return next(place for place in places if struct.unpack_from("<I", self.data, place + 4)[0] == kind)


PROGBITS, SYMTAB, STRTAB, RELA = 1, 2, 3, 4
FAULTS = {
    "none of an object": lambda damage: struct.pack_into("<I", damage.data, 20, 9),
    "a table of names is missing": lambda damage: struct.pack_into("<H", damage.data, 62, 999),
    "it has no sections": lambda damage: struct.pack_into("<H", damage.data, 60, 0),
    "its table of sections is cut off": lambda damage: struct.pack_into("<Q", damage.data, 0x28, 1 << 40),
    "a section has no name": lambda damage: damage.section(PROGBITS, 0, 1 << 30, "I"),
    "that the file does not hold": lambda damage: damage.section(PROGBITS, 24, 1 << 62),
    "larger than instructions reach": lambda damage: damage.section(PROGBITS, 32, 1 << 33),
    "multiples of no power of two": lambda damage: damage.section(PROGBITS, 48, 24),
    "has an address already": lambda damage: damage.section(PROGBITS, 16, 4096),
    "neither bytes nor memory": lambda damage: (damage.section(PROGBITS, 8, 0), damage.section(PROGBITS, 4, 8, "I")),
    "its table of symbols is of another size": lambda damage: damage.section(SYMTAB, 56, 16),
    "its symbols are not in order": lambda damage: damage.section(SYMTAB, 44, 1, "I"),
    "its table of symbols is broken": lambda damage: damage.row(SYMTAB, 1, SYMBOL, 0, "I", 1 << 31),
    "known in no known way": lambda damage: damage.row(SYMTAB, -1, SYMBOL, 4, "B", 0xF0),
    "a section that there is not": lambda damage: damage.row(SYMTAB, -1, SYMBOL, 6, "H", 4000),
    "a symbol lies outside": lambda damage: damage.row(SYMTAB, 2, SYMBOL, 8, "Q", 1 << 50),
    "relocations are of no table": lambda damage: damage.section(RELA, 40, 1, "I"),
    "relocations are of no section with bytes": lambda damage: damage.section(RELA, 44, 0, "I"),
    "a symbol that there is not": lambda damage: damage.row(RELA, 0, RELOCATION, 12, "I", 60_000),
    "writes outside": lambda damage: damage.row(RELA, 0, RELOCATION, 0, "Q", (1 << 64) - 2),
}


@pytest.mark.parametrize("expected", FAULTS)
def test_damage_is_named(expected: str) -> None:
    damage = Damage()
    FAULTS[expected](damage)
    with pytest.raises(ValueError, match=expected):
        check_object(bytes(damage.data))


def test_the_linker_is_given_no_damaged_object() -> None:
    damage = Damage()
    FAULTS["writes outside"](damage)
    with pytest.raises(ToolchainError, match=r"the object is damaged or cut off: .*writes outside") as caught:
        LinkedObjects({"lib/a.o": bytes(damage.data)})
    assert caught.value.place == "lib/a.o"


TRIPLES = ("x86_64-linux-gnu", "i686-linux-gnu", "aarch64-linux-gnu", "armv7-linux-gnueabihf", "riscv64-linux-gnu")
FLAGS = ("-O2 -g", "-O0 -fcommon -ffunction-sections -fdata-sections", "-O3 -fpic")
GCC_FLAGS = (*FLAGS, "-m32") if platform.machine() == "x86_64" else FLAGS


@pytest.mark.parametrize("triple", TRIPLES)
def test_objects_that_we_compile_are_sound(triple: str) -> None:
    for data in objects(triple).values():
        check_object(data)


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [*(("gcc", flags) for flags in GCC_FLAGS), *(("clang", f"--target={triple} -O2") for triple in TRIPLES),
     *(("clang", f"--target={TRIPLES[0]} {flags}") for flags in FLAGS)],
)  # fmt: skip
def test_objects_that_c_compilers_write_are_sound(compiler: str, flags: str, tmp_path: Path) -> None:
    if compiler == "gcc" and sys.platform != "linux":
        pytest.skip("gcc writes objects of its own system, which are ELF files on Linux")
    (tmp_path / "a.c").write_text(SOURCE)
    subprocess.run([need(compiler, compiler), *flags.split(), "-c", "a.c", "-o", "a.o"], cwd=tmp_path, check=True)
    data = (tmp_path / "a.o").read_bytes()
    check_object(data)
    with pytest.raises(ValueError, match=r"file does not hold|is cut off"):
        check_object(data[: len(data) // 2])


ALL_LINKED = """
import os, sys
from mlfc.errors import ToolchainError
from mlfc.library.jit import LinkedObjects

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            LinkedObjects({"lib/a.o": bytes.fromhex(line)}).address("anything")
        except ToolchainError:
            os._exit(3)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux links ELF objects into the process")
def test_no_damage_ends_the_process() -> None:
    rng, damaged = random.Random(7), []
    for data in objects(host_triple()).values():
        (table,) = struct.unpack_from("<Q", data, 0x28)
        for _ in range(150):
            spoilt = bytearray(data)
            for _ in range(rng.choice((1, 1, 2, 8))):
                # tables are a small part of the file, and matter most
                spoilt[rng.choice((rng.randrange(16, HEADER), rng.randrange(table, len(data))))] = rng.randrange(256)
            damaged.append(spoilt if rng.randrange(4) else spoilt[: rng.randrange(HEADER, len(data))])
    done = subprocess.run(
        [sys.executable, "-c", ALL_LINKED],
        input="\n".join(spoilt.hex() for spoilt in damaged),
        check=True,
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
    )
    found = done.stdout.split()
    assert len(found) == len(damaged)
    assert {*found} == {"0", "3"}

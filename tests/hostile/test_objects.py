"""A file that is not a complete object for this machine is rejected before LLVM's linker reads it."""

from __future__ import annotations

import platform
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import mlfc
from mlfc.errors import ToolchainError
from mlfc.library.llvm_library import LinkedObjects
from mlfc.support.content import to_bytes
from mlfc.target.llvm import host_triple
from tests.conftest import need

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.onnx"
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


def damaged(change: Callable[[bytearray], object]) -> bytes:
    data = bytearray(max(objects(host_triple()).values(), key=len))
    change(data)
    return bytes(data)


def of_64_bits() -> None:
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("the places are those of little endian objects of 64 bits")


FAULTS: dict[str, Callable[[bytearray], object]] = {
    "its table of sections is cut off": lambda data: struct.pack_into("<Q", data, 0x28, 1 << 40),
    "section headers of 9 bytes": lambda data: struct.pack_into("<H", data, 58, 9),
    "it is a program, not an object": lambda data: struct.pack_into("<H", data, 16, 2),
    "it is for RISC-V Linux; this machine is": lambda data: struct.pack_into("<H", data, 18, 243),
    "it is not an object": lambda data: struct.pack_into("<B", data, 4, 9),
}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux links ELF objects into the process")
@pytest.mark.parametrize("expected", FAULTS)
def test_the_linker_is_given_none(expected: str) -> None:
    of_64_bits()
    with pytest.raises(ToolchainError, match=f"the object cannot be linked: .*{expected}") as caught:
        LinkedObjects({"lib/a.o": damaged(FAULTS[expected])})
    assert caught.value.place == "lib/a.o"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux links ELF objects into the process")
def test_the_linker_is_given_no_part_of_an_object(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(SOURCE)
    subprocess.run([need("gcc", "gcc"), "-O2", "-g", "-c", "a.c", "-o", "a.o"], cwd=tmp_path, check=True)
    data = (tmp_path / "a.o").read_bytes()
    for end in (10, len(data) // 2, len(data) - 1):
        with pytest.raises(ToolchainError, match="the object cannot be linked: "):
            LinkedObjects({"lib/a.o": data[:end]})
    of_64_bits()
    (table,) = struct.unpack_from("<Q", data, 0x28)
    moved = bytearray(data[: table - 8])
    struct.pack_into("<Q", moved, 0x28, 64)
    moved[64:64] = data[table:]
    with pytest.raises(ToolchainError, match="the file ends at byte"):
        LinkedObjects({"lib/a.o": bytes(moved[: len(moved) // 2])})

"""Validation finds the same functions in C and in objects as a compiler and nm."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

import mlfc
from mlfc.archive.validate.parsed_files import defined_functions, defined_symbols
from mlfc.errors import ArchiveError
from tests.conftest import need

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.tflite"

TRICKY = r"""
#define CALL(f) int f(int x) { return x; }
#define LINES int in_a_macro(void) { \
  return 0; }
#include <stdint.h> /* int in_an_include(void) { */
/* int in_a_comment(void) { return 0; } */
// int in_a_line_comment(void) { \
   int in_its_next_line(void) { return 0; }
static const char *text = "int in_a_string(void) { return 0; } \" { /*";
static const char open_brace = '{', quote = '"', backslash = '\\';
int declared(int x);
extern int data_elsewhere[4];
static int private_one(int x) { if (x) { return declared(x); } return (x); }
__attribute__((noinline)) int with_attribute(int x) { return private_one(x) + open_brace + quote + backslash; }
struct pair { int a, b; };
struct pair returns_struct(int (*callback)(int), struct pair p) { p.a = callback(p.a); return p; }
int (*returns_pointer(int x))(int) { return x ? with_attribute : declared; }
static int table[3] = {1, 2, 3}, other;
int global_array[0x10] = {1};
uint8_t aligned_array[12] __attribute__((aligned(16)));
int uses(void) { return table[0] + other + (text != 0); }
typedef int type_of_array[7];
static inline int inline_one(int x) { return x; }
int last(void) { return inline_one(1); }
"""


def symbols_of_nm(code: str, folder: Path, *flags: str) -> tuple[set[str], bytes]:
    source, target = folder / "a.c", folder / "a.o"
    source.write_text(code)
    subprocess.run(
        [need("gcc", "gcc"), "-std=gnu99", "-w", "-c", *flags, "-I", folder, source, "-o", target], check=True
    )
    listed = subprocess.run(
        [need("nm", "binutils"), "-g", "--defined-only", target], capture_output=True, text=True, check=True
    )
    found = {line.split()[2] for line in listed.stdout.splitlines() if line.split()[1] == "T"}
    return found, target.read_bytes()


@pytest.mark.parametrize("bits", [32, 64])
def test_functions_are_those_of_nm(tmp_path: Path, bits: int) -> None:
    # freestanding, so that 32-bit code needs no headers of the C library
    expected, data = symbols_of_nm(TRICKY, tmp_path, f"-m{bits}", "-ffreestanding", "-fno-pie", "-O0")
    found = defined_symbols(TRICKY.encode())
    in_c = {name for name, is_public in found.functions.items() if is_public}
    # not recognized: the name of a function returning a function pointer is in parentheses; generated code has none
    assert in_c == expected - {"returns_pointer"}
    assert {"private_one", "inline_one"} <= found.functions.keys()
    assert found.arrays == {"aligned_array": 12, "global_array": 16, "table": 3}
    assert defined_functions(data, "a.o") == expected


def test_functions_of_generated_code_are_those_of_nm(tmp_path: Path) -> None:
    module, params = mlfc.import_model(DIGITS)
    factory = mlfc.build(module, params=params, module_name="digits")
    files = {path: bytes(data) for path, data in factory.code.files.items() if isinstance(data, bytes)}
    for path, data in files.items():
        (tmp_path / Path(path).name).write_bytes(data)
    for path, data in files.items():
        if path.endswith(".c"):
            expected, compiled = symbols_of_nm(data.decode(), tmp_path)
            assert {name for name, public in defined_symbols(data).functions.items() if public} == expected
            assert defined_functions(compiled, path) == expected
            assert expected


def test_big_endian_objects_are_read(tmp_path: Path) -> None:
    clang = need("clang", "clang")
    (tmp_path / "a.c").write_text("int seven(void) { return 7; } static int own(void) { return 1; }")
    for target in ("powerpc-none-eabi", "powerpc64-none-eabi", "armv7m-none-eabi"):
        subprocess.run([clang, f"--target={target}", "-c", tmp_path / "a.c", "-o", tmp_path / "a.o", "-w"], check=True)
        assert defined_functions((tmp_path / "a.o").read_bytes(), "a.o") == {"seven"}


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"MZ" * 100, b"\x7fELF\x02\x01\x01" + b"\xff" * 300])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(ArchiveError, match=r"a\.o.*ELF"):
        defined_functions(data, "a.o")


def symbol_table(names: bytes, starts: range, tables: int = 1) -> bytes:
    """Return a 64-bit object with a table of global functions whose names start at `starts` of `names`."""
    symbols = b"".join(struct.pack("<IBBHQQ", start, 0x12, 0, 1, 0, 0) for start in starts)
    table = 64 + len(symbols) + len(names)
    header = b"\x7fELF\x02\x01" + bytes(34) + struct.pack("<Q10xHH", table, 64, 1 + tables)
    strings = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 64 + len(symbols), len(names), 0, 0, 1, 0)
    symtab = struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, 64, len(symbols), 0, 0, 8, 24)
    return header.ljust(64, b"\0") + symbols + names + strings + tables * symtab


def test_objects_that_ask_for_much_work_are_refused() -> None:
    assert defined_functions(symbol_table(b"ab\0", range(2)), "a.o") == {"ab", "b"}
    with pytest.raises(ArchiveError, match="2 tables of symbols"):
        defined_functions(symbol_table(b"ab\0", range(2), tables=2), "a.o")
    names = (b"a" * 4000 + b"\0") * 5
    with pytest.raises(ArchiveError, match="names of more than 33,554,432 bytes"):
        defined_functions(symbol_table(names, range(len(names) - 5)), "a.o")

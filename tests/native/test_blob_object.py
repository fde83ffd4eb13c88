"""Linkers and LLVM's reader accept the object files that mlfc writes, on every machine."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from mlfc.errors import OptionError
from mlfc.objfile.write import blob_source, elf_machine_of, object_with_data
from mlfc.support.content import Content, to_bytes, write_data
from tests.conftest import WATCHDOG, need

BLOB = bytes(range(256)) * 3 + b"xyz"
SECOND = b"12345"
SYMBOL = "__tvm_dev_mblob"
ELF = {
    "x86_64-linux-gnu": "Advanced Micro Devices X86-64",
    "x86_64-linux-gnux32": "Advanced Micro Devices X86-64",
    "i686-linux-gnu": "Intel 80386",
    "aarch64-unknown-linux-musl": "AArch64",
    "armv7-linux-gnueabihf": "ARM",
    "thumbv7em-none-eabi": "ARM",
    "riscv64-linux-gnu": "RISC-V",
    "riscv32-unknown-elf": "RISC-V",
    "powerpc64le-linux-gnu": "PowerPC64",
    "s390x-linux-gnu": "IBM S/390",
    "loongarch64-linux-gnu": "LoongArch",
    "xtensa-none-elf": "Tensilica Xtensa Processor",
}
DATA_SECTIONS = {b".rodata", b".lrodata", b".rdata", b"__const"}
SECONDS_AT = 832  # the next multiple of 64 behind the 771 bytes


def contents() -> dict[str, bytes]:
    return {SYMBOL: BLOB, "second": SECOND}


def written(content: Content, path: Path) -> Path:
    write_data(path, content)
    assert path.stat().st_size == content.nbytes
    return path


def readelf(*arguments: object) -> str:
    command = [need("readelf", "binutils"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def linked(tool: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "ziglang", tool, *map(str, arguments)], check=True, timeout=WATCHDOG)


@pytest.mark.parametrize(
    "triple", [*ELF, "x86_64-windows-gnu", "arm64-windows-gnu", "arm64-apple-macosx11.0", "x86_64-macos"]
)
def test_llvm_reads_the_data_behind_the_headers(triple: str, tmp_path: Path) -> None:
    path = written(object_with_data(contents(), triple), tmp_path / "a.o")
    sections = {section.name(): section.data() for section in llvm.ObjectFileRef.from_path(str(path)).sections()}
    (data,) = (data for name, data in sections.items() if name in DATA_SECTIONS)
    assert data == BLOB + bytes(SECONDS_AT - len(BLOB)) + SECOND


# features of Linux's RISC-V ABI that LLVM's generic processor lacks
RISCV = {
    "riscv64-unknown-linux-gnu": {"features": "+m,+a,+f,+d,+c", "abiname": "lp64d"},
    "riscv32-unknown-elf": {"features": "+c"},
}


@pytest.mark.parametrize(
    "triple",
    [
        *RISCV, "x86_64-unknown-linux-gnux32", "i686-linux-gnu", "aarch64-linux-gnu", "aarch64_be-linux-gnu",
        "armebv7-linux-gnueabi", "thumbv7em-none-eabi", "powerpc64le-linux-gnu", "powerpc64-linux-gnu",
        "powerpc-linux-gnu", "s390x-linux-gnu", "loongarch64-linux-gnu",
    ],
)  # fmt: skip
def test_headers_say_of_the_machine_what_llvms_do(triple: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(**RISCV.get(triple, {}))
    theirs = machine.emit_object(llvm.parse_assembly(f'target triple = "{triple}"'))
    ours = to_bytes(object_with_data({SYMBOL: BLOB}, triple))
    assert elf_machine_of(ours) == elf_machine_of(theirs)
    # class, byte order and version; then the kind of file, the machine and the version again
    assert (ours[:16], ours[16:24]) == (theirs[:16], theirs[16:24])


@pytest.mark.parametrize("triple", ELF)
def test_binutils_sees_aligned_data_that_all_may_read(triple: str, tmp_path: Path) -> None:
    path = written(object_with_data(contents(), triple), tmp_path / "a.o")
    assert f"Machine:                           {ELF[triple]}" in readelf("-h", path)
    table = readelf("-SsW", path)
    assert re.search(r"\.rodata +PROGBITS +0+ 0*40 0*345 00 +A +0 +0 64\n", table)
    # only targets with an operating system can make the stack non-executable
    assert (".note.GNU-stack" in table) == ("linux" in triple)
    symbols = re.findall(r"(\w+) +(\d+) OBJECT +GLOBAL (\w+) +1 (\w+)\n", table)
    assert [(int(value, 16), int(size), seen, name) for value, size, seen, name in symbols] == [
        (0, len(BLOB), "DEFAULT", SYMBOL),
        (SECONDS_AT, len(SECOND), "DEFAULT", "second"),
    ]
    hidden = written(object_with_data(contents(), triple, hidden=True), tmp_path / "b.o")
    assert readelf("-sW", hidden).count("HIDDEN") == 2


@pytest.mark.parametrize("triple", [name for name in ELF if "linux" in name and "gnux32" not in name])
def test_lld_makes_libraries_that_export_it(triple: str, tmp_path: Path) -> None:
    path = written(object_with_data({SYMBOL: BLOB}, triple), tmp_path / "a.o")
    linked("ld.lld", "-shared", "-o", tmp_path / "a.so", path)
    assert re.search(
        rf" {len(BLOB)} OBJECT +GLOBAL DEFAULT +\d+ {SYMBOL}\n", readelf("--dyn-syms", "-W", tmp_path / "a.so")
    )


def test_lld_makes_a_dll_that_exports_it(tmp_path: Path) -> None:
    path = written(object_with_data(contents(), "x86_64-windows-gnu"), tmp_path / "a.o")
    linked("lld-link", "/dll", "/noentry", f"/out:{tmp_path / 'a.dll'}", path)
    exported = subprocess.run(
        [need("objdump", "binutils"), "-p", tmp_path / "a.dll"], capture_output=True, text=True, check=True
    ).stdout
    assert re.findall(r"\[ *\d+\].* (\w+)\n", exported.partition("Ordinal/Name")[2]) == [SYMBOL, "second"]


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_library_of_this_machine_has_it_where_it_must_lie(compiler: str, tmp_path: Path) -> None:
    triple = subprocess.run(
        [need(compiler, compiler), "-dumpmachine"], capture_output=True, text=True, check=True
    ).stdout
    path = written(object_with_data(contents(), triple.strip()), tmp_path / "a.o")
    subprocess.run([compiler, "-shared", "-o", tmp_path / "a.so", path], check=True)
    library = ctypes.CDLL(str(tmp_path / "a.so"))
    for symbol, data in contents().items():
        address = ctypes.addressof(ctypes.c_char.in_dll(library, symbol))
        assert address % 64 == 0
        assert ctypes.string_at(address, len(data)) == data
    # without the note, linkers make the stack executable
    assert re.search(r"GNU_STACK.* RW ", readelf("-lW", tmp_path / "a.so"))


@dataclass(frozen=True)
class Zeros:
    """A large content that is never in memory as a whole; the last byte is 7."""

    nbytes: int

    def chunks(self) -> Iterator[bytes]:
        piece = bytes(1 << 20)
        for _ in range(self.nbytes // len(piece) - 1):
            yield piece
        yield piece[:-1] + b"\7"


def test_large_data_lies_out_of_the_way_of_code(tmp_path: Path) -> None:
    large = Zeros(32 << 20)
    path = written(object_with_data({SYMBOL: large}, "x86_64-linux-gnu"), tmp_path / "a.o")
    # l: SHF_X86_64_LARGE
    assert re.search(r"\.lrodata +PROGBITS .* Al +0 +0 64\n", readelf("-SW", path))
    linked("ld.lld", "-shared", "-o", tmp_path / "a.so", path)
    assert re.search(rf" {large.nbytes:#x} OBJECT .*{SYMBOL}\n", readelf("--dyn-syms", "-W", tmp_path / "a.so"))


@pytest.mark.parametrize("triple", ["x86_64-linux-gnu", "x86_64-windows-gnu", "aarch64-macos", "C"])
def test_data_is_never_joined(triple: str) -> None:
    data = Zeros((4 if triple == "C" else 512) << 20)
    tracemalloc.start()
    content = blob_source(data, SYMBOL) if triple == "C" else object_with_data({SYMBOL: data}, triple)
    total = sum(len(chunk) for chunk in content.chunks())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == content.nbytes > data.nbytes
    assert peak < 8 << 20


def test_the_c_form_is_c_and_cpp(tmp_path: Path) -> None:
    text = blob_source(BLOB, SYMBOL)
    path = written(text, tmp_path / "devc.c")
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
    for compiler, options in (("gcc", ["-std=c99"]), ("clang", ["-std=c99"]), ("gcc", ["-x", "c++", "-std=c++11"])):
        library = tmp_path / f"{compiler}{len(options)}.so"
        subprocess.run([need(compiler, compiler), *strict, *options, path, "-o", library], check=True)
        address = ctypes.addressof(ctypes.c_char.in_dll(ctypes.CDLL(str(library)), SYMBOL))
        assert address % 64 == 0
        assert ctypes.string_at(address, len(BLOB)) == BLOB


def test_what_is_not_written_is_said() -> None:
    for triple in ("wasm32-wasi", "avr-none", "riscv64-windows-gnu", "s390x-macos", ""):
        with pytest.raises(OptionError, match=f"unsupported machine for objects: '{triple}'.*as C"):
            object_with_data({SYMBOL: BLOB}, triple)
    for symbol in ("", "a b", "1a", "a\n", 'a";', "é"):
        with pytest.raises(OptionError, match="is not a symbol"):
            object_with_data({symbol: BLOB}, "x86_64-linux-gnu")
        with pytest.raises(OptionError, match="is not a symbol"):
            blob_source(BLOB, symbol)
    for triple in ("i686-linux-gnu", "x86_64-windows-gnu"):
        with pytest.raises(OptionError, match="2,148,532,224 bytes exceed"):
            object_with_data({SYMBOL: Zeros(2049 << 20)}, triple)


def test_the_same_data_gives_the_same_bytes() -> None:
    for triple in ("x86_64-linux-gnu", "x86_64-windows-gnu", "aarch64-macos"):
        first, second = (to_bytes(object_with_data(contents(), triple)) for _ in range(2))
        assert first == second

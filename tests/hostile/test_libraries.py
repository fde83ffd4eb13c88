"""Damaged libraries are refused before any of their code runs; the loader itself would end the process."""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import mlfc
from mlfc.errors import ArchiveError
from mlfc.library.cache import cache_folder
from mlfc.library.toolchain import compile_shared
from mlfc.runtime.modules.description import read_description
from mlfc.support import elf_image
from mlfc.support.elf_check import check_image
from mlfc.support.elf_image import GNU_HASH, STRSZ, ElfImage
from mlfc.support.platforms import this_platform
from tests.hostile.corpus_blobs import LIB, classic, rows, string, u64

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="libraries of other systems are checked by their loaders"
)

GOOD = classic(LIB, string(b"metadata_module"), tree=rows((1,), ()))
SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern const unsigned char __tvm_dev_mblob[%d];
const unsigned char __tvm_dev_mblob[] = {%s};
extern const char mlfc_description[];
const char mlfc_description[] = {%s, 0};
extern const int mlfc_abi_version;
const int mlfc_abi_version = %d;
static __thread int calls;
int twice(int value);
int twice(int value) { return 2 * value + calls; }
void *__tvm_module_ctx = NULL;
int (*pointer)(int) = twice;
__attribute__((constructor)) static void loaded(void) {
  const char *mark = getenv("MLFC_TEST_MARK");
  FILE *file = mark == NULL ? NULL : fopen(mark, "w");
  if (file != NULL) fclose(file);
  calls = (int)strlen("") + (pointer == NULL);
}
"""
TENSOR = {"name": "x", "shape": [1, 2], "dtype": "int8", "scale": None, "zero_point": None}
MODULE = {"executor": "aot", "entry": "f", "inputs": [TENSOR], "outputs": [], "memory": {"workspace_bytes": 0}}
DESCRIPTION = {"modules": {"m": MODULE}}


def built(path: Path, blob: bytes = GOOD, description: object = DESCRIPTION, version: int = 1) -> Path:
    text = json.dumps(description).encode()
    numbers = [", ".join(map(str, data)) for data in (blob, text)]
    source = SOURCE % (len(blob), *numbers, version)
    return compile_shared({"a.c": source.encode()}, path, ("-Wl,-z,lazy",))


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "mark"
    monkeypatch.setenv("MLFC_TEST_MARK", str(place))
    return place


def test_a_sound_library_is_loaded(tmp_path: Path, mark: Path) -> None:
    loaded = mlfc.load_module(built(tmp_path / "good.so"))
    assert [module.type_key for module in loaded.walk()] == ["library", "metadata_module"]
    assert mark.exists()


@pytest.mark.parametrize(
    ("damaged", "expected"),
    [
        ({"blob": GOOD[:-8]}, "the blob of 111 bytes is cut off: 103 are there"),
        ({"blob": classic(LIB, string(b"nobody's"), tree=rows((1,), ()))}, "kind 'nobody's' cannot be read"),
        ({"blob": classic(LIB, LIB, tree=rows((), ()))}, "twice"),
        ({"blob": classic(LIB, string(b"const_loader") + u64(0, 1, 0, 0), tree=rows((1,), ()))}, "const_loader"),
        ({"version": 7}, "mlfc_abi_version is 7"),
        ({"description": {"modules": {"m": {}}}}, "there is no executor"),
        ({"description": []}, "it has no modules"),
    ],
)
def test_no_code_runs_of_what_is_refused(damaged: dict[str, object], expected: str, tmp_path: Path, mark: Path) -> None:
    path = built(tmp_path / "damaged.so", **damaged)  # type: ignore[arg-type]  # what differs from the defaults
    for source in (path, path.read_bytes()):
        with pytest.raises(ArchiveError, match=expected):
            mlfc.load_module(source)
    assert not mark.exists()


class Damage:
    """A library whose tables are spoiled one number at a time."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.image = ElfImage(memoryview(data))

    def at(self, address: int) -> int:
        """Return the place in the file of an address."""
        (load,) = [load for load in self.image.loads if load.address <= address < load.address + load.nbytes]
        return load.offset + address - load.address

    def address(self, name: str) -> int:
        """Return where a symbol lies in memory."""
        found = self.image.find(name)
        assert found is not None
        return found[0]

    def table(self, tag: int) -> int:
        """Return the place in the file of what an entry of the dynamic table leads to."""
        return self.at(self.image.dynamic[tag])

    def write(self, place: int, form: str, value: int) -> None:
        struct.pack_into(f"<{form}", self.data, place, value)

    def entry(self, tag: int) -> int:
        """Return the place of an entry of the dynamic table."""
        (table,) = [segment for segment in self.image.segments if segment.kind == elf_image.DYNAMIC]
        places = range(table.offset, table.offset + table.nbytes, 16)
        return next(place for place in places if struct.unpack_from("<q", self.data, place)[0] == tag)

    def dynamic(self, tag: int, value: int) -> None:
        self.write(self.entry(tag) + 8, "Q", value)

    def forget(self, tag: int) -> None:
        """Make an entry one that means nothing."""
        self.write(self.entry(tag), "Q", 0x6000_0001)

    def segment(self, kind: int, field: int, value: int, number: int = 0) -> None:
        indices = [index for index, segment in enumerate(self.image.segments) if segment.kind == kind]
        self.write(64 + 56 * indices[number] + field, "Q", value)

    def symbol(self, name: str) -> int:
        """Return the place of a symbol's row."""
        image, table = self.image, self.at(self.image.dynamic[elf_image.SYMTAB])
        number = next(i for i, row in enumerate(image.symbols) if image.name(int(row["name"]), "") == name.encode())
        return table + 24 * number

    def move(self, name: str, address: int) -> None:
        """Let a symbol be elsewhere."""
        self.write(self.symbol(name) + 8, "Q", address)

    def buckets(self) -> int:
        """Return the place of the lists by which symbols are found."""
        _, _, words, _ = struct.unpack_from("<4I", self.data, self.table(GNU_HASH))
        return self.table(GNU_HASH) + 16 + 8 * int(words)

    def lock(self, later: int) -> None:
        """Let what is locked after loading start so many bytes later."""
        start = next(segment.address for segment in self.image.segments if segment.kind == elf_image.RELRO)
        self.segment(elf_image.RELRO, 16, start + later)

    def relocation(self, kind: int, table: int = 7) -> int:
        """Return the place of the last relocation of a kind."""
        start, size = self.at(self.image.dynamic[table]), {7: 8, 23: 2}[table]
        places = range(start, start + self.image.dynamic[size], 24)
        return [place for place in places if self.data[place + 8] == kind][-1]


RODATA, BLOB, HANDLE = "mlfc_description", "__tvm_dev_mblob", "__tvm_module_ctx"
X86_64 = 62
DAMAGES: dict[str, tuple[Callable[[Damage], object], str]] = {
    "what is called at first is data": (lambda d: d.dynamic(12, d.address(RODATA)), "no code"),
    "a list of what is called is elsewhere": (lambda d: d.dynamic(25, d.address(RODATA) & ~7), "no code"),
    "the length of the list is not there": (lambda d: d.forget(27), "lacks an entry"),
    "the list holds data": (lambda d: d.write(d.table(7) + 16, "Q", d.address(RODATA)), "no code"),
    "a relocation of code": (lambda d: d.write(d.relocation(8), "Q", d.image.dynamic[12]), "not of a variable"),
    "a relocation behind everything": (lambda d: d.write(d.relocation(8) + 16, "Q", 1 << 40), "of nothing in it"),
    "a relocation of no symbol": (lambda d: d.write(d.relocation(7, 23) + 12, "I", 1 << 30), "symbols is (not|cut)"),
    "a relocation that calls data": (lambda d: d.write(d.relocation(8) + 8, "Q", 37), "not in order|no code"),
    "relocations of another size": (lambda d: d.dynamic(9, 16), "another size"),
    "more relocations than there are": (lambda d: d.dynamic(8, 1 << 40), "cut off|another size"),
    "no table of functions": (lambda d: d.forget(23), "lacks an entry"),
    "no symbols": (lambda d: d.forget(elf_image.SYMTAB), "lacks an entry"),
    "symbols elsewhere": (lambda d: d.dynamic(elf_image.SYMTAB, 1 << 50), "table of symbols"),
    "names that do not end": (lambda d: d.dynamic(STRSZ, 5), "does not end"),
    "a library behind the names": (lambda d: d.dynamic(elf_image.NEEDED, 1 << 31), "not among its names"),
    "a table without buckets": (lambda d: d.write(d.table(GNU_HASH), "I", 0), "is broken"),
    "a filter of an odd size": (lambda d: d.write(d.table(GNU_HASH) + 8, "I", 3), "is broken"),
    "a bucket behind everything": (lambda d: d.write(d.buckets(), "I", 1 << 30), "does not end"),
    "no way to find symbols": (lambda d: d.forget(GNU_HASH), "no table by which"),
    "a version that there is not": (lambda d: d.write(d.table(0x6FFF_FFF0) + 2, "H", 99), "of a version"),
    "versions of no library": (lambda d: d.write(d.table(0x6FFF_FFFE) + 4, "I", 0), "does not need"),
    "versions without their table": (lambda d: d.forget(0x6FFF_FFFE), "table of versions"),
    "a function in data": (lambda d: d.move("twice", d.address(RODATA)), "symbol twice"),
    "a variable that is nowhere": (lambda d: d.move(RODATA, 1 << 45), f"symbol {RODATA}"),
    "a blob that is not there": (lambda d: d.move(BLOB, d.address(HANDLE)), "not in the file"),
    "a handle that cannot be written": (lambda d: d.move(HANDLE, d.address(RODATA)), "is no variable"),
    "a text that does not end": (lambda d: d.write(d.symbol(RODATA) + 16, "Q", 3), "does not end"),
    "segments over each other": (lambda d: d.segment(elf_image.LOAD, 16, 0, 1), "over each other"),
    "a segment that is larger in the file": (lambda d: d.segment(elf_image.LOAD, 40, 8, 0), "more bytes in the file"),
    "a segment larger than any memory": (lambda d: d.segment(elf_image.LOAD, 40, 1 << 60, 3), "larger than any memory"),
    "a segment that is not aligned": (lambda d: d.segment(elf_image.LOAD, 8, 0x10, 1), "as in memory"),
    "variables of a thread of a terabyte": (lambda d: d.segment(elf_image.TLS, 40, 1 << 40), "variables of a thread"),
    "other variables are locked": (lambda d: d.lock(4096), "no variables"),
    "no table at all": (lambda d: d.segment(elf_image.DYNAMIC, 32, 0), "cut off|does not end|not in the file|dynamic"),
    "a table that does not end": (lambda d: d.segment(elf_image.DYNAMIC, 40, 32), "does not end"),
}  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    if this_platform().arch != "x86_64":
        pytest.skip("the damages are those of libraries for x86-64")
    return built(tmp_path_factory.mktemp("sound") / "sound.so").read_bytes()


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_tables_never_reach_the_loader(name: str, sound: bytes, tmp_path: Path, mark: Path) -> None:
    spoil, expected = DAMAGES[name]
    damage = Damage(sound)
    spoil(damage)
    assert bytes(damage.data) != sound
    path = tmp_path / "damaged.so"
    path.write_bytes(damage.data)
    with pytest.raises(ArchiveError, match=expected) as caught:
        mlfc.load_module(path)
    assert str(caught.value).startswith(str(path))
    assert not mark.exists()


def test_libraries_of_other_makers_are_sound() -> None:
    """Those of this very process, but for what tests made: of the C library, Python's modules, LLVM."""
    import llvmlite.binding  # noqa: F401  (it is looked at)

    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    paths = {Path(line.split(maxsplit=5)[5]) for line in maps.splitlines() if ".so" in line and " /" in line}
    found = 0
    ours = (Path(tempfile.gettempdir()), cache_folder())
    for path in sorted(path for path in paths if path.is_file() and not any(map(path.is_relative_to, ours))):
        data = path.read_bytes()
        if data[16:18] == b"\3\0":
            image = ElfImage(memoryview(data))
            check_image(image, int.from_bytes(data[18:20], "little"))
            found += 1
    assert found >= 5


def test_whole_pages_may_be_locked(sound: bytes) -> None:
    """As lld and mold have it: behind the variables that are locked, the rest of their page is, too."""
    damage = Damage(sound)
    start = next(segment.address for segment in damage.image.segments if segment.kind == elf_image.RELRO)
    load = next(load for load in damage.image.loads if load.address == start)
    damage.segment(elf_image.RELRO, 40, load.memory + -load.end % 4096)
    check_image(ElfImage(memoryview(damage.data)), X86_64)
    damage.segment(elf_image.RELRO, 40, load.memory + -load.end % 4096 + 1)
    with pytest.raises(ValueError, match="no variables"):
        check_image(ElfImage(memoryview(damage.data)), X86_64)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"executor": "vm"}, "there is no executor 'vm'"),
        ({"entry": None}, "entry has no name"),
        ({"inputs": {}}, "its inputs are not described"),
        ({"inputs": [TENSOR, TENSOR]}, "have one name"),
        ({"inputs": [{**TENSOR, "shape": [1, -2]}]}, "its inputs are not described"),
        ({"inputs": [{**TENSOR, "shape": [1 << 40, 1 << 40]}]}, "its inputs are not described"),
        ({"outputs": [{**TENSOR, "dtype": "int9"}]}, "its outputs are not described"),
        ({"outputs": [{**TENSOR, "dtype": []}]}, "its outputs are not described"),
        ({"outputs": [{**TENSOR, "scale": "1"}]}, "its outputs are not described"),
        ({"memory": {"workspace_bytes": True}}, "its memory is not described"),
        ({"pools": [{}]}, "its pools are not described"),
        ({"operators": {}}, "its operators are not described"),
        ({"operators": [{"function": "f", "nodes": ["a"], "macs": -1}]}, "its operators are not described"),
        ({"operators": [{"function": "f", "nodes": [1], "macs": 1}]}, "its operators are not described"),
        ({"workspace_peers": [1]}, "that share its workspace"),
    ],
)
def test_a_description_is_checked(change: dict[str, object], expected: str) -> None:
    assert read_description(json.dumps(DESCRIPTION).encode(), "x.so") == DESCRIPTION["modules"]
    text = json.dumps({"modules": {"m": {**MODULE, **change}}}).encode()
    with pytest.raises(ArchiveError, match=f"^x.so: mlfc_description: module 'm': .*{expected}"):
        read_description(text, "x.so")

"""A file that is not a complete library for this machine is rejected before any of its code runs.

The digest detects damage inside (`test_library_digest`); the system's loader checks a library without one.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mlfc
from mlfc.errors import ArchiveError
from mlfc.objfile import elf as elf_image
from mlfc.objfile.elf import GNU_HASH, HASH, STRSZ, ElfImage
from mlfc.runtime.libraries.library_file import read_description
from mlfc.support.platforms import this_platform
from tests.hostile.corpus_blobs import LIB, classic, rows, string, u64
from tests.shared_library import compile_shared

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
MEMORY = {"workspace_bytes": 0, "workspace_lower_bound_bytes": 0, "constants_bytes": 0, "io_bytes": 2}
MODULE = {
    "executor": "aot", "entry": "f", "external_workspace": False, "inputs": [TENSOR], "outputs": [], "memory": MEMORY,
}  # fmt: skip
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
        ({"blob": GOOD[:-8]}, "the blob of 111 bytes is cut off after 103"),
        ({"blob": classic(LIB, string(b"nobody's"), tree=rows((1,), ()))}, "kind 'nobody's' cannot be read"),
        ({"blob": classic(LIB, LIB, tree=rows((), ()))}, "twice"),
        ({"blob": classic(LIB, string(b"const_loader") + u64(0, 1, 0, 0), tree=rows((1,), ()))}, "const_loader"),
        ({"version": 7}, "mlfc_abi_version is 7"),
        ({"description": {"modules": {"m": {}}}}, "the key 'entry' is missing"),
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
    """A library whose tables are corrupted one number at a time."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.image = ElfImage(memoryview(data))

    def at(self, address: int) -> int:
        """Return the file offset of an address."""
        (load,) = [load for load in self.image.loads if load.address <= address < load.address + load.nbytes]
        return load.offset + address - load.address

    def address(self, name: str) -> int:
        """Return the address of a symbol."""
        found = self.image.find(name)
        assert found is not None
        return found[0]

    def table(self, tag: int) -> int:
        """Return the file offset of the table that an entry of the dynamic table points to."""
        return self.at(self.image.dynamic[tag])

    def write(self, place: int, form: str, value: int) -> None:
        struct.pack_into(f"<{form}", self.data, place, value)

    def entry(self, tag: int) -> int:
        """Return the file offset of an entry of the dynamic table."""
        (table,) = [segment for segment in self.image.segments if segment.kind == elf_image.DYNAMIC]
        places = range(table.offset, table.offset + table.nbytes, 16)
        found = [place for place in places if struct.unpack_from("<q", self.data, place)[0] == tag]
        if not found:
            pytest.skip(f"ziglang's linker makes no entry {tag}; on Debian: apt-get install gcc")
        return found[0]

    def dynamic(self, tag: int, value: int) -> None:
        self.write(self.entry(tag) + 8, "Q", value)

    def forget(self, tag: int) -> None:
        """Replace the tag of an entry by a meaningless one."""
        self.write(self.entry(tag), "Q", 0x6000_0001)

    def forget_hashes(self) -> None:
        """Hide both symbol hash tables; linkers write one of them, or both."""
        for tag in {GNU_HASH, HASH} & {*self.image.dynamic}:
            self.forget(tag)

    def segment(self, kind: int, field: int, value: int, number: int = 0) -> None:
        indices = [index for index, segment in enumerate(self.image.segments) if segment.kind == kind]
        self.write(64 + 56 * indices[number] + field, "Q", value)

    def symbol(self, name: str) -> int:
        """Return the file offset of a symbol's row."""
        names = self.table(elf_image.STRTAB)
        wanted = self.data.index(b"\0" + name.encode() + b"\0", names) + 1 - names
        places = range(self.table(elf_image.SYMTAB), names, 24)
        return next(place for place in places if struct.unpack_from("<I", self.data, place)[0] == wanted)

    def move(self, name: str, address: int) -> None:
        """Change the address of a symbol."""
        self.write(self.symbol(name) + 8, "Q", address)

    def buckets(self) -> tuple[int, ...]:
        """Return the file offsets of the hash buckets."""
        count, _, words, _ = struct.unpack_from("<4I", self.data, self.table(GNU_HASH))
        start = self.table(GNU_HASH) + 16 + 8 * int(words)
        return tuple(range(start, start + 4 * int(count), 4))

    def all_buckets(self, number: int) -> None:
        for place in self.buckets():
            self.write(place, "I", number)

    def move_segment(self, number: int) -> None:
        load = self.image.loads[number]
        self.segment(elf_image.LOAD, 8, len(self.data) - load.nbytes + 1, number)


RODATA, BLOB = "mlfc_description", "__tvm_dev_mblob"
DAMAGES: dict[str, tuple[Callable[[Damage], object], str]] = {
    "no library": (lambda d: d.write(0, "I", 0), "neither an archive nor a library"),
    "another machine": (lambda d: d.write(18, "H", 183), "it is for AArch64 Linux; this machine is"),
    "half of it": (lambda d: d.data.__delitem__(slice(len(d.data) // 2, None)), "segment . is not in the file"),
    "the header alone": (lambda d: d.data.__delitem__(slice(64, None)), "its table of segments is not in the file"),
    "a segment that is not all there": (lambda d: d.move_segment(3), "segment . is not in the file"),
    "symbols elsewhere": (lambda d: d.dynamic(elf_image.SYMTAB, 1 << 50), "table of symbols is not in the file"),
    "names elsewhere": (lambda d: d.dynamic(STRSZ, 1 << 50), "text of its names is cut off"),
    "a table without buckets": (lambda d: d.write(d.table(GNU_HASH), "I", 0), "is broken"),
    "buckets behind everything": (lambda d: d.all_buckets(1 << 30), "is not in the file"),
    "no way to find symbols": (lambda d: d.forget_hashes(), "no hash table"),
    "a blob that is not there": (lambda d: d.move(BLOB, 1 << 45), "not in the file"),
    "a description that is nowhere": (lambda d: d.move(RODATA, 1 << 45), f"{RODATA} is not in the file"),
    "a text that does not end": (lambda d: d.write(d.symbol(RODATA) + 16, "Q", 3), "is not terminated"),
    "no table at all": (lambda d: d.segment(elf_image.DYNAMIC, 40, 0), "does not end"),
    "a table that does not end": (lambda d: d.segment(elf_image.DYNAMIC, 40, 32), "does not end"),
}  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    if this_platform().arch != "x86_64":
        pytest.skip("the damages are those of libraries for x86-64")
    return built(tmp_path_factory.mktemp("sound") / "sound.so").read_bytes()


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_not_whole_never_reaches_the_loader(name: str, sound: bytes, tmp_path: Path, mark: Path) -> None:
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


def test_symbols_of_libraries_of_other_makers_are_found(tmp_path: Path) -> None:
    """Look up symbols by either hash table, as the C library does."""
    source = "".join(f"int name_{index}(void) {{ return {index}; }}\n" for index in range(300)).encode()
    for style in ("gnu", "sysv", "both"):
        path = compile_shared({"a.c": source}, tmp_path / f"{style}.so", (f"-Wl,--hash-style={style}",))
        image = ElfImage(memoryview(path.read_bytes()))
        assert (GNU_HASH in image.dynamic) == (style != "sysv")
        addresses = {image.find(f"name_{index}") for index in range(300)}
        assert len(addresses) == 300
        assert None not in addresses
        assert image.find("name_300") is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"executor": "jit"}, ".executor: expected one of aot, graph, vm, got 'jit'"),
        ({"entry": None}, ": its entry has no name"),
        ({"inputs": {}}, ".inputs: expected a list, got an object"),
        ({"inputs": [TENSOR, TENSOR]}, ": two of its inputs or outputs have one name"),
        ({"inputs": [{**TENSOR, "shape": [1, -2]}]}, r".inputs\[0\].shape\[1\]: expected integer"),
        ({"inputs": [{**TENSOR, "shape": [1 << 40, 1]}]}, r".inputs\[0\].shape\[0\]: expected integer"),
        ({"inputs": [{**TENSOR, "shape": [1 << 30, 1 << 30]}]}, ": 'x' is too large"),
        ({"outputs": [{**TENSOR, "dtype": "int9"}]}, r".outputs\[0\].dtype: expected one of"),
        ({"outputs": [{**TENSOR, "dtype": []}]}, r".outputs\[0\].dtype: expected one of .*, got a list"),
        ({"outputs": [{**TENSOR, "scale": "1"}]}, r".outputs\[0\].scale: expected number"),
        ({"memory": {**MEMORY, "workspace_bytes": True}}, ".memory.workspace_bytes: expected integer"),
        ({"memory": {**MEMORY, "workspace_bytes": 1 << 50}}, ": its memory is too large"),
        ({"pools": [{}]}, r".pools\[0\]: the key 'name' is missing"),
        ({"operators": {}}, ".operators: expected a list"),
        ({"operators": [{"function": "f", "nodes": ["a"], "macs": -1}]}, r".operators\[0\].macs: expected integer"),
        ({"operators": [{"function": "f", "nodes": [1], "macs": 1}]}, r".operators\[0\].nodes\[0\]: expected string"),
        ({"workspace_peers": [1]}, r".workspace_peers\[0\]: expected string"),
    ],
)
def test_a_description_is_checked(change: dict[str, object], expected: str) -> None:
    known = read_description(json.dumps(DESCRIPTION).encode(), "x.so")
    assert {name: item.to_json() for name, item in known.items()} == {"m": {**MODULE, "workspace_peers": []}}
    text = json.dumps({"modules": {"m": {**MODULE, **change}}}).encode()
    with pytest.raises(ArchiveError, match=f"^x.so: mlfc_description: module 'm'{expected}"):
        read_description(text, "x.so")

"""Exported libraries carry a digest of everything that the system's loader trusts: damage never ends the process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from benchmarks.library_load import large_model
from mlfc.errors import ArchiveError
from mlfc.objfile.digest import MAX_RANGES, SYMBOL, check_digest, write_digest
from mlfc.objfile.elf import ElfImage
from mlfc.runtime.libraries.library_file import DESCRIPTION_SYMBOL
from tests.conftest import need
from tests.native.extracted import imported
from tests.native.foreign_libraries import without_c_library
from tests.shared_library import compile_shared

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="digests are those of ELF libraries"),
    pytest.mark.usefixtures("quick_builds"),
]
WATCHDOG_S = 600
WIDTH = 600  # of a matrix of 1.4 MB, which C includes as a binary file
KINDS = ("c aot", "c graph", "llvm aot")


@pytest.fixture(scope="module")
def small(quick_builds: None, models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("small")
    found = {}
    for kind in KINDS:
        target, executor = kind.split()
        factory = imported(models / "hello_world_int8.tflite", "hello", target=target, executor=executor)
        found[kind] = factory.export_library(folder / f"{target}_{executor}.so", abi=("classic",))
    return found


@pytest.fixture(scope="module")
def large(quick_builds: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("large")
    return {
        executor: large_model(executor, WIDTH, 2).export_library(folder / f"{executor}.so", abi=("classic",))
        for executor in ("aot", "graph")
    }


def image_of(data: bytes | bytearray) -> ElfImage:
    return ElfImage(memoryview(data))


def left_out(data: bytes) -> list[tuple[int, int]]:
    """Return the ranges that the digest of a library leaves out, read independently from the documented format."""
    address, _ = image_of(data).find(SYMBOL) or pytest.fail("there is no digest")
    record = bytes(image_of(data).content(address, 56 + 16 * MAX_RANGES, SYMBOL))
    assert record.startswith(b"mlfc digest\0\0\0\0\0\1\0\0\0")
    numbers = np.frombuffer(record[56:], "<u8").reshape(-1, 2).tolist()
    return [(start, start + size) for start, size in numbers[: int.from_bytes(record[20:24], "little")]]


def load_and_run(data: bytes) -> None:
    model = mlfc.load_module(data)
    model.run(*(np.ones(info.shape, info.dtype) for info in model.inputs))


def refused(sound: bytes, places: Iterable[int], folder: Path) -> set[int]:
    """Return the offsets at which a flipped bit is an error; elsewhere the library loads and runs.

    A child does it all, so that a signal fails the calling test.
    """
    report = folder / "report"
    child = os.fork()
    if child == 0:
        signal.alarm(WATCHDOG_S)
        try:
            with report.open("w", encoding="ascii", buffering=1) as file:
                for place in places:
                    file.write(f"{place} ")
                    damaged = bytearray(sound)
                    damaged[place] ^= 1 << place % 8
                    try:
                        load_and_run(bytes(damaged))
                        file.write("runs\n")
                    except ArchiveError:
                        file.write("refused\n")
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(4)
    status = os.waitpid(child, 0)[1]
    lines = report.read_text(encoding="ascii").splitlines()
    assert status == 0, f"the child ended with status {status} at byte {lines[-1]}"
    return {int(line.split()[0]) for line in lines if line.endswith("refused")}


@pytest.mark.parametrize("kind", KINDS)
def test_no_single_bit_ends_the_process(kind: str, small: dict[str, Path], tmp_path: Path) -> None:
    sound = small[kind].read_bytes()
    image = image_of(sound)
    # most offsets of headers and of what the loader reads, and a few of everything
    tables = [place for start, end in image.headers for place in range(start, end)]
    for load in image.loads:
        tables += range(load.offset, load.offset + min(load.nbytes, 64))
    picked = random.Random(7).sample(range(len(sound)), 400)
    places = sorted({*tables, *picked})
    found = refused(sound, places, tmp_path)
    placed = [(load.offset, load.offset + load.nbytes) for load in image.loads]
    of_sections = {*range(40, 48), *range(58, 64)}
    for place in places:
        is_hashed = any(start <= place < end for start, end in placed) and place not in of_sections
        assert is_hashed <= (place in found), f"byte {place} was taken"


@pytest.mark.parametrize("executor", ["aot", "graph"])
def test_constants_are_left_out_and_their_damage_does_no_harm(
    executor: str, large: dict[str, Path], tmp_path: Path
) -> None:
    sound = large[executor].read_bytes()
    ranges = left_out(sound)
    # kernels may read a matrix in two parts
    assert sum(end - start for start, end in ranges) >= 2 * 4 * WIDTH * WIDTH
    inside = [place for start, end in ranges for place in (start, start + 3, (start + end) // 2, end - 1)]
    edges = {place for start, end in ranges for place in (start - 1, end)}
    outside = [place for place in sorted(edges) if not any(start <= place < end for start, end in ranges)]
    assert outside
    assert refused(sound, [*inside, *outside], tmp_path) == set(outside)


def test_every_way_to_a_library_gives_it_a_digest(models: Path, tmp_path: Path) -> None:
    factory = imported(models / "hello_world_int8.tflite", "hello")
    pytest.importorskip("ziglang", reason="pip install ziglang")

    def link(file: str, files: list[str], options: list[str]) -> None:
        subprocess.run([need("gcc", "gcc"), "-shared", "-fPIC", "-o", file, *files, *options], check=True)

    ways: dict[str, dict[str, Any]] = {
        "clang": {"cc": need("clang", "clang")},
        "aarch64": {"target_triple": "aarch64-linux-gnu"},
        "a user's": {"fcompile": link},
    }
    for name, options in ways.items():
        with without_c_library():
            data = factory.export_library(tmp_path / f"{name}.so", **options).read_bytes()
        assert check_digest(image_of(data)), name
        code = next(load for load in image_of(data).loads if load.flags & 1)
        damaged = bytearray(data)
        damaged[code.offset + code.nbytes // 2] ^= 4
        with pytest.raises(ValueError, match="its own digest"):
            check_digest(image_of(damaged))


def test_a_stripped_library_is_sound(small: dict[str, Path], tmp_path: Path) -> None:
    stripped = tmp_path / "stripped.so"
    subprocess.run([need("strip", "binutils"), "-o", stripped, small["c aot"]], check=True)
    assert stripped.stat().st_size < small["c aot"].stat().st_size
    load_and_run(stripped.read_bytes())


def record_at(data: bytes) -> int:
    address, _ = image_of(data).find(SYMBOL) or (0, 0)
    return image_of(data).offset(address, SYMBOL)


@pytest.mark.parametrize(
    ("at", "value", "expected"),
    [
        (0, b"X", "its mlfc_digest is invalid"),
        (16, b"\2", "unknown kind of digest: 2"),
        (20, b"\xff", "its mlfc_digest is invalid"),
        (20, b"\1", "its own digest"),
        (24, bytes(32), "its own digest"),
        (56, b"\xff" * 16, "its own digest"),
    ],
)
def test_a_damaged_digest_is_an_error(at: int, value: bytes, expected: str, small: dict[str, Path]) -> None:
    data = bytearray(small["c aot"].read_bytes())
    start = record_at(data) + at
    data[start : start + len(value)] = value
    with pytest.raises(ArchiveError, match=f"bytes: the library is damaged or cut off: .*{expected}"):
        mlfc.load_module(bytes(data))


def test_a_library_without_a_digest_loads(small: dict[str, Path]) -> None:
    """Load libraries without a digest: from older versions, from TVM, and from other linkers."""
    data = bytearray(small["c aot"].read_bytes())
    start = record_at(data)
    data[start + 16 : start + 56] = bytes(40)
    assert not check_digest(image_of(data))
    load_and_run(bytes(data))
    unnamed = data.replace(f"\0{SYMBOL}\0".encode(), b"\0tvm_has_dig\0")
    with pytest.raises(ValueError, match=f"its {SYMBOL} is not among its symbols"):
        check_digest(image_of(unnamed))
    unmarked = unnamed.replace(b"mlfc digest\0", b"TVMs digest\0")
    assert not check_digest(image_of(unmarked))
    assert not write_digest(memoryview(unmarked), ())
    load_and_run(bytes(unmarked))


CHANGED = """
#include <string.h>
extern const int mlfc_abi_version;
const int mlfc_abi_version = 1;
char mlfc_description[] = "{text}";
__attribute__((constructor)) static void change(void) {{ memcpy(mlfc_description, "!!!", 3); }}
"""


def test_the_description_is_read_from_the_file(tmp_path: Path) -> None:
    """Ignore changes that the library's code makes to the description when it is loaded."""
    text = json.dumps({"modules": {}}).replace('"', '\\"')
    source = CHANGED.format(text=text).encode()
    assert DESCRIPTION_SYMBOL.encode() in source
    loaded = mlfc.load_module(compile_shared({"a.c": source}, tmp_path / "a.so"))
    assert loaded.description() == {}

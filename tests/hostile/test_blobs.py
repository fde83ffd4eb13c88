"""Every broken blob is rejected with one error that names the byte, in few steps and little memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hostile.corpus_blobs import BLOBS, JSON, LIB, P0, classic, factory, ffi, kernels, rows, string, u64
from tests.hostile.reading import Reader
from tests.hostile.test_corpus import MAX_CALLS, MAX_MEGABYTES

GOOD = {
    "library": ("ffi", ffi(LIB, tree=rows(())), "module"),
    "factory": ("classic", factory(JSON + u64(1, 1) + string(b"p0") + P0 + string(b"m")), "GraphExecutorFactory"),
    "kernels": (
        "classic",
        kernels(u64(1) + string(b"k") + string(b"") + u64(1) + b"\3\x40\1\0" + u64(1) + string(b"threadIdx.x")),
        "module",
    ),
    "constants": ("classic", classic(LIB, string(b"const_loader") + u64(0, 0, 0, 0), tree=rows((1,), ())), "module"),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_the_corpus_spoils_is_good(name: str, reader: Reader, tmp_path: Path) -> None:
    abi, data, root = GOOD[name]
    path = tmp_path / "good.blob"
    path.write_bytes(data)
    reading = reader.read(abi, path)
    assert (reading.error, reading.text) == (None, root)


@pytest.mark.parametrize("name", BLOBS)
def test_fault_is_found(name: str, reader: Reader, place: Path, tmp_path: Path) -> None:
    broken = BLOBS[name]
    path = tmp_path / f"{name}.blob"
    path.write_bytes(broken.build())
    before = sorted(place.iterdir())
    reading = reader.read(broken.abi, path)
    said = f"{reading.error}: {reading.text[:600]}"
    assert reading.error == "ArchiveError", said
    assert reading.text.startswith(path.name), said
    assert re.search(broken.expected, reading.text), said
    assert len(reading.text) < 1000, said
    assert reading.calls < MAX_CALLS, f"{reading.calls:,} calls, {said}"
    assert reading.megabytes < MAX_MEGABYTES, f"{reading.megabytes:.0f} MiB, {said}"
    assert list(tmp_path.iterdir()) == [path]
    assert sorted(place.iterdir()) == before

"""Contents written piece by piece equal the bytes that numpy writes at once."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mlfc.errors import ArchiveError
from mlfc.support import content, tar
from mlfc.support.params import load_params, params_content, save_params

ARRAYS = {
    "c_order": np.arange(12, dtype="<f4").reshape(3, 4),
    "turned": np.arange(12, dtype="<i2").reshape(3, 4).T,
    "every_second": np.arange(12, dtype="<f8")[::2],
    "big_endian": np.arange(5, dtype=">i4"),
    "scalar": np.array(2.5, "<f4"),
    "empty": np.zeros((0, 3), "<i8"),
    "bool": np.array([True, False, True]),
    "bfloat16": np.array([1.5, -2.0], ml_dtypes.bfloat16),
}


def little_endian(array: np.ndarray[Any, Any]) -> bytes:
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_its_elements_in_order(name: str) -> None:
    array = ARRAYS[name]
    held = content.ArrayContent(array)
    assert content.to_bytes(held) == content.to_bytes(held) == little_endian(array)
    assert content.nbytes_of(held) == len(little_endian(array))


@given(hnp.arrays(st.sampled_from(["<i2", ">f4", "<u1"]), hnp.array_shapes(max_dims=3)), st.permutations(range(3)))
@settings(max_examples=50, deadline=None)
def test_any_strides_give_row_major_bytes(array: np.ndarray[Any, Any], axes: list[int]) -> None:
    turned = array.transpose([axis for axis in axes if axis < array.ndim])
    assert content.to_bytes(content.ArrayContent(turned)) == little_endian(turned)


def test_pieces_of_a_large_turned_array_are_small_and_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "PIECE", 64)
    array = np.arange(300, dtype="<i4").reshape(20, 15).T
    pieces = list(content.chunks_of(content.ArrayContent(array)))
    assert max(map(len, pieces)) == 64
    assert b"".join(pieces) == array.tobytes()


def test_a_plain_array_is_not_copied() -> None:
    array = np.zeros(1 << 16, np.uint8)
    (piece,) = content.chunks_of(content.ArrayContent(array))
    array[7] = 9
    assert piece[7] == 9


def test_joined_parts_hash_and_measure_as_one() -> None:
    parts = (b"head", content.ArrayContent(np.arange(3, dtype=np.uint8)), memoryview(b"tail"))
    joined = content.Joined(parts)
    assert content.to_bytes(joined) == b"head\x00\x01\x02tail"
    assert content.nbytes_of(joined) == 11
    assert content.sha256_of(joined) == hashlib.sha256(b"head\x00\x01\x02tail").hexdigest()


def test_aligned_arrays_start_at_multiples() -> None:
    arrays = [np.array([1], np.uint8), np.array([2, 3], np.uint8), np.array([4], "<u4")]
    assert content.to_bytes(content.aligned_arrays(arrays, 4)) == b"\x01\0\0\0\x02\x03\0\0\x04\0\0\0"
    assert content.to_bytes(content.aligned_arrays([], 4)) == b""


def test_a_tar_of_contents_is_a_tar_of_bytes() -> None:
    array = np.arange(5000, dtype="<i4")
    streamed, at_once = io.BytesIO(), io.BytesIO()
    tar.write_tar(streamed, {"a/b.bin": content.ArrayContent(array), "c": b""}, 7)
    tar.write_tar(at_once, {"a/b.bin": array.tobytes(), "c": b""}, 7)
    assert streamed.getvalue() == at_once.getvalue()
    with tarfile.open(fileobj=io.BytesIO(streamed.getvalue())) as archive:
        assert archive.extractfile("./a/b.bin").read() == array.tobytes()  # type: ignore[union-attr]


def test_a_member_beyond_eight_gigabytes_is_written_and_read(tmp_path: Path) -> None:
    size = 9 << 30
    piece = bytes(4 << 20)

    class Zeros:
        nbytes = size

        def chunks(self) -> Iterator[bytes]:
            yield from (piece for _ in range(size // len(piece)))

    class Sparse(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(data) if len(data) < len(piece) else self.seek(len(data), 1)

    path = tmp_path / "large.tar"
    with Sparse(path, "w") as file:
        tar.write_tar(file, {"large": Zeros(), "next": b"text"}, 0)
    with tarfile.open(path) as archive:
        assert [(info.name, info.size) for info in archive][1:] == [("./large", size), ("./next", 4)]
    with tar.open_tar(path) as reader:
        assert reader.sizes == {"large": size, "next": 4}
        assert bytes(reader.view("next")) == b"text"
        assert reader.view("large").nbytes == size
        assert reader.view("large")[-1] == 0


def archive_of(params: dict[str, np.ndarray[Any, Any]], folder: Path) -> Path:
    path = folder / "a.tar"
    with path.open("wb") as file:
        tar.write_tar(file, {"p": params_content(params), "empty": b""}, 0)
    return path


def test_parameters_lie_in_the_map_of_the_archive(tmp_path: Path) -> None:
    params = {"even": np.arange(6, dtype="<f4").reshape(2, 3), "odds": np.arange(5, dtype="<i8")}
    with tar.open_tar(archive_of(params, tmp_path)) as reader:
        view = reader.view("p")
        assert reader.view("empty") == b""
        with pytest.raises(ArchiveError, match="has no q"):
            reader.view("q")
    assert view.readonly
    loaded = load_params(view)
    whole = np.frombuffer(view, np.uint8)
    for name, array in loaded.items():
        np.testing.assert_array_equal(array, params[name])
        assert np.shares_memory(array, whole)
        assert not array.flags.writeable


def test_arrays_at_odd_addresses_are_copied_for_the_kernels(tmp_path: Path) -> None:
    params = {"a": np.arange(3, dtype="<f4"), "b": np.array([True, False]), "c": np.arange(3, dtype=np.int8)}
    with tar.open_tar(archive_of(params, tmp_path)) as reader:
        view = reader.view("p")
    loaded = load_params(view)
    whole = np.frombuffer(view, np.uint8)
    assert [name for name, array in loaded.items() if np.shares_memory(array, whole)] == ["b", "c"]
    for name, array in loaded.items():
        assert array.flags.aligned
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, params[name])


def test_any_byte_but_zero_is_true() -> None:
    data = bytearray(save_params({"b": np.array([True, False])}))
    data[-2] = 7
    assert load_params(bytes(data))["b"].tolist() == [True, False]


def test_each_of_many_gets_its_own_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "PIECE", 64)
    items = [bytes([index]) * size for index, size in enumerate((0, 100, 10, 1000, 64, 65))]
    assert content.sha256_of_each(items) == [hashlib.sha256(item).hexdigest() for item in items]


def test_export_and_load_hold_large_weights_once(tmp_path: Path) -> None:
    params = {"weights": np.arange(8 << 20, dtype="<f4"), "scales": np.arange(4 << 20, dtype="<f4")}
    held = params["weights"].nbytes + params["scales"].nbytes
    tracemalloc.start()
    try:
        path = archive_of(params, tmp_path)
        content.sha256_of(params_content(params))
        assert tracemalloc.get_traced_memory()[1] < held // 8
        tracemalloc.reset_peak()
        with tar.open_tar(path) as reader:
            loaded = load_params(reader.view("p"))
        # 13 letters of names make the addresses of elements odd, so each array is copied once
        assert held <= tracemalloc.get_traced_memory()[1] < held * 9 // 8
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(loaded["weights"], params["weights"])


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the kernel does not tell what is in memory")
def test_what_was_copied_out_of_a_map_leaves_memory(tmp_path: Path) -> None:
    def resident() -> int:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Rss:")).split()[1]) << 10

    params = {"odd": np.ones(16 << 20, "<f4")}
    path = archive_of(params, tmp_path)
    before = resident()
    with tar.open_tar(path) as reader:
        loaded = load_params(reader.view("p"))
    assert resident() - before < params["odd"].nbytes * 3 // 2
    np.testing.assert_array_equal(loaded["odd"], params["odd"])

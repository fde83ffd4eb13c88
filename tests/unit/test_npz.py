"""Inputs from ``.npz`` files written by numpy, and from invalid ones."""

from __future__ import annotations

import io
import random
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlfc.errors import InputError, MlfcError
from mlfc.runtime import TensorInfo
from mlfc.runtime.tensor.npz import read_batches, read_npz, write_npz

INFOS = (TensorInfo("a", (2, 3), "int8"), TensorInfo("x/y", (), "float32"))
VALUES: dict[str, Any] = {"a": np.arange(6, dtype=np.int8).reshape(2, 3), "x/y": np.float32(1.5)}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_reads_what_numpy_wrote_by_name_and_by_position(tmp_path: Path, save: Any) -> None:
    for args, named in (((), VALUES), (tuple(VALUES.values()), {}), ((VALUES["a"],), {"x/y": VALUES["x/y"]})):
        save(tmp_path / "in.npz", *args, **named)
        found = read_npz(tmp_path / "in.npz", INFOS)
        assert list(found) == ["a", "x/y"]
        for name, array in found.items():
            np.testing.assert_array_equal(array, VALUES[name])
            assert array.shape == VALUES[name].shape


def test_reads_fortran_order(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", np.asfortranarray(VALUES["a"]), VALUES["x/y"])
    np.testing.assert_array_equal(read_npz(tmp_path / "in.npz", INFOS)["a"], VALUES["a"])


def test_numpy_reads_what_we_write_and_the_bytes_are_the_same_each_time(tmp_path: Path) -> None:
    values = {name: np.asarray(value) for name, value in VALUES.items()}
    write_npz(tmp_path / "1.npz", values)
    write_npz(tmp_path / "2.npz", values)
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "2.npz").read_bytes()
    with np.load(tmp_path / "1.npz") as loaded:
        assert set(loaded.files) == set(values)
        np.testing.assert_array_equal(loaded["a"], values["a"])


def test_all_faults_come_at_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", a=np.zeros((3, 2), np.int16), z=np.zeros(1))
    with pytest.raises(MlfcError) as caught:
        read_npz(tmp_path / "in.npz", INFOS)
    text = str(caught.value)
    for part in ("z: the model has no such input", "x/y: the input is missing", "dtype is int16", "shape is (3, 2)"):
        assert part in text


def test_objects_are_refused_without_unpickling(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", a=np.array([print], dtype=object))
    with pytest.raises(MlfcError, match="dtype is object"):
        read_npz(tmp_path / "in.npz", INFOS[:1])


def test_a_header_that_promises_too_much_is_refused_before_reading(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|i1", "fortran_order": False, "shape": (2**60,)})
    with zipfile.ZipFile(tmp_path / "in.npz", "w") as file:
        file.writestr("a.npy", header.getvalue())
    with pytest.raises(MlfcError, match=f"shape is \\({2**60},\\)"):
        read_npz(tmp_path / "in.npz", INFOS[:1])


def test_any_damage_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez_compressed(path, *VALUES.values())
    good, generator = path.read_bytes(), random.Random(3)
    refused = 0
    for _ in range(300):
        data = bytearray(good)
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        path.write_bytes(bytes(data[: generator.choice((len(data), generator.randrange(len(data))))]))
        try:
            read_npz(path, INFOS)
        except MlfcError:
            refused += 1
    assert refused > 100


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.npz: cannot be read"):
        read_npz(tmp_path / "none.npz", INFOS)


def _npz(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.npy", content)
    return path


def test_a_header_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    long = b"\x93NUMPY\x02\x00" + (64 << 20).to_bytes(4, "little") + b" " * (64 << 20)
    path = _npz(tmp_path / "in.npz", long)
    assert path.stat().st_size < 1 << 17
    tracemalloc.start()
    try:
        with pytest.raises(MlfcError, match="the header has more than 4,096 bytes"):
            read_npz(path, INFOS[:1])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["(" * 3000, "-" * 3000 + "1", "{'descr': '|i1',\n  'shape", "9" * 4000, "\0", "['"])
def test_headers_that_are_no_descriptions_are_refused(text: str, tmp_path: Path) -> None:
    header = text.encode()
    path = _npz(tmp_path / "in.npz", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(MlfcError, match="the array cannot be read"):
        read_npz(path, INFOS[:1])


def test_sets_of_inputs_expand_so_far_and_no_further(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|i1", "fortran_order": False, "shape": (20 << 20, 2, 3)})
    path = _npz(tmp_path / "in.npz", header.getvalue() + bytes(120 << 20))
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(MlfcError, match="its 125,829,120 bytes are more than 67,108,864"):
            read_batches(path, INFOS[:1])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()

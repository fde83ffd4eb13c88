"""Archives are reproducible to the byte, and tar(1) can read them."""

from __future__ import annotations

import gzip
import io
import lzma
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath

import pytest

from mlfc.errors import ArchiveError, OptionError
from mlfc.support import tar

MEMBERS = {"metadata.json": b"{}", "src/b.relay": b"text", "codegen/host/src/b_lib0.c": b"", "src/a.relay": b"x" * 1500}


def written(members: dict[str, bytes], mtime: int = 0) -> bytes:
    file = io.BytesIO()
    tar.write_tar(file, members, mtime)
    return file.getvalue()


def test_members_are_named_sorted_and_owned_as_the_format_says() -> None:
    with tarfile.open(fileobj=io.BytesIO(written(MEMBERS, 86400))) as archive:
        infos = archive.getmembers()
    assert [info.name for info in infos] == [
        ".",
        "./codegen",
        "./codegen/host",
        "./codegen/host/src",
        "./codegen/host/src/b_lib0.c",
        "./metadata.json",
        "./src",
        "./src/a.relay",
        "./src/b.relay",
    ]
    assert {(info.uid, info.gid, info.uname, info.gname, info.mtime) for info in infos} == {
        (0, 0, "root", "root", 86400)
    }
    assert {info.mode for info in infos if info.isdir()} == {0o755}
    assert {info.mode for info in infos if info.isfile()} == {0o644}


@pytest.mark.parametrize(
    "name", ["a/b-1.c", "./a/b-1.c", ".//a/b-1.c", "././a//b-1.c", "a/./b-1.c", "./.a", ".a/..b", "ä/+"]
)
def test_names_are_what_paths_make_of_them(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with tar.open_tar(path) as reader:
        assert list(reader.sizes) == [str(PurePosixPath(name))]


@pytest.mark.parametrize("name", ["../a", "a/../b", "./../a", "/a", ".//../a", "a:b", "./a:b"])
def test_names_that_lead_out_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(ArchiveError, match="leads out of the archive"), tar.open_tar(path):
        pass


def test_order_of_the_mapping_does_not_show() -> None:
    assert written(MEMBERS) == written(dict(reversed(MEMBERS.items())))


def test_tar_program_extracts_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(written(MEMBERS))
    subprocess.run(["tar", "xf", "a.tar"], cwd=tmp_path, check=True)
    assert {name: (tmp_path / name).read_bytes() for name in MEMBERS} == MEMBERS


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress])
def test_reads_plain_and_compressed(tmp_path: Path, compress: object) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(compress(written(MEMBERS)))  # type: ignore[operator]
    with tar.open_tar(path) as reader:
        assert {name: reader.read(name, 10_000) for name in reader.sizes} == MEMBERS
        with pytest.raises(ArchiveError, match="exceed the limit of 100"):
            reader.read("src/a.relay", 100)
        with pytest.raises(ArchiveError, match=r"no src/c\.relay"):
            reader.open("src/c.relay")


def test_a_time_comes_from_the_argument_the_environment_or_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert tar.source_date() == 0
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert tar.source_date() == 1_700_000_000
    assert tar.source_date(5) == 5
    for bad in ("yesterday", "-1", "", "9" * 5000, "253402300800"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", bad)
        with pytest.raises(OptionError, match="SOURCE_DATE_EPOCH"):
            tar.source_date()


def test_machine_code_is_called_what_it_is() -> None:
    with pytest.raises(ArchiveError, match="machine code, not an archive"), tar.open_tar(sys.executable):
        pass

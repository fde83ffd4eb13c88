"""Tar files, each with one fault; none may be read, and nothing may be written anywhere."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mlforge.errors import ArchiveError
from mlforge.support import tar

FAULTS: dict[str, tuple[Callable[[], bytes], str]] = {}


def fault(message: str) -> Callable[[Callable[[], bytes]], Callable[[], bytes]]:
    """Register a builder of a file under its name, with what the refusal must say."""

    def add(build: Callable[[], bytes]) -> Callable[[], bytes]:
        FAULTS[build.__name__] = (build, message)
        return build

    return add


def archive(*infos: tarfile.TarInfo) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as out:
        for info in infos:
            out.addfile(info, io.BytesIO(b"x" * info.size) if info.isreg() else None)
    return file.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 1) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size if kind == tarfile.REGTYPE else 0
    return info


def with_size_field(field: bytes) -> bytes:
    """Return an archive whose first header says another size, with a right checksum."""
    data = bytearray(archive(member("./a")))
    data[124:136] = field.ljust(12, b"\0")
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


@fault("leads out")
def absolute_path() -> bytes:
    return archive(member("/etc/cron.d/x"))


@fault("leads out")
def parent_path() -> bytes:
    return archive(member("./a/../../x"))


@fault("leads out")
def drive_path() -> bytes:
    return archive(member("C:/x"))


@fault("characters")
def backslash_path() -> bytes:
    return archive(member("..\\x"))


@fault("characters")
def line_break_in_name() -> bytes:
    return archive(member("a\nb"))


@fault("too long")
def very_long_name() -> bytes:
    return archive(member("a" * 10_000))


@fault("symbolic link")
def symlink_escape() -> bytes:
    return archive(member("./out", tarfile.SYMTYPE, "/tmp"), member("./out/x"))


@fault("hard link")
def hard_link_escape() -> bytes:
    return archive(member("./out", tarfile.LNKTYPE, "/etc/passwd"))


@fault("device")
def device_node() -> bytes:
    return archive(member("./null", tarfile.CHRTYPE))


@fault("pipe")
def named_pipe() -> bytes:
    return archive(member("./pipe", tarfile.FIFOTYPE))


@fault("twice")
def duplicate_name() -> bytes:
    return archive(member("./a"), member("a"))


@fault("both a file and a folder")
def file_under_a_file() -> bytes:
    return archive(member("./a"), member("./a/b"))


@fault("both a file and a folder")
def file_and_folder_of_one_name() -> bytes:
    return archive(member("./a", tarfile.DIRTYPE), member("./a"))


@fault("the archive ends before")
def size_beyond_the_end() -> bytes:
    return with_size_field(b"77777777777")


@fault("archive")
def size_of_many_exabytes() -> bytes:
    return with_size_field(b"\x80" + (2**62).to_bytes(11, "big"))


@fault("archive")
def negative_size() -> bytes:
    return with_size_field(b"\xff" * 12)


@fault("asks for")
def huge_extended_header() -> bytes:
    data = bytearray(with_size_field(b"77777777777"))
    data[156:157] = b"x"
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


@fault("members")
def too_many_members() -> bytes:
    return b"".join(archive(member(f"./{n}", size=0))[:512] for n in range(tar.MAX_MEMBERS + 1))


@fault("expand")
def gzip_bomb() -> bytes:
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1, mtime=0) as out:
        out.write(bytes(8 << 20))
    return file.getvalue()


@fault("archive")
def gzip_cut_off() -> bytes:
    return gzip.compress(archive(member("./a", size=5000)))[:-20]


@fault("archive")
def xz_damaged() -> bytes:
    data = bytearray(lzma.compress(archive(member("./a", size=5000))))
    data[len(data) // 2] ^= 0xFF
    return bytes(data)


@fault("archive")
def empty_file() -> bytes:
    return b""


@fault("archive")
def not_a_tar() -> bytes:
    return b"TFL3" * 500


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # so that the bomb can be a small one
    monkeypatch.setattr(tar, "MIN_EXPANDED", 1 << 20)
    build, message = FAULTS[name]
    path = tmp_path / "hostile.tar"
    path.write_bytes(build())
    with pytest.raises(ArchiveError, match=message) as caught, tar.open_tar(path):
        pass
    assert str(path) in str(caught.value)
    assert list(tmp_path.iterdir()) == [path]


def test_any_damage_is_read_or_refused(tmp_path: Path) -> None:
    good = archive(*(member(f"./folder/{n}", size=n * 100) for n in range(8)))
    generator = random.Random(1)
    path = tmp_path / "damaged.tar"
    refused = 0
    for _ in range(300):
        data = bytearray(good)
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        path.write_bytes(bytes(data[: generator.choice((len(data), generator.randrange(len(data))))]))
        try:
            with tar.open_tar(path) as reader:
                for name, size in reader.sizes.items():
                    assert len(reader.read(name, size)) == size
        except ArchiveError:
            refused += 1
    assert refused > 50

"""Faults of the container: names, member types, sizes, compression."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from pathlib import Path

import numpy as np

from tests.hostile.corpus import add_large, fault

BLOCK = tarfile.BLOCKSIZE
MILLION = 1_000_000


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


def summed(header: bytearray) -> bytes:
    """Return an archive with the checksum of its first header corrected."""
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:BLOCK])
    return bytes(header)


def with_size_field(field: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return an archive whose first header contains another size."""
    data = bytearray(archive(member("./a")))
    data[124:136] = field.ljust(12, b"\0")
    data[156:157] = kind
    return summed(data)


def with_pax_record(record: bytes) -> bytes:
    """Return an archive whose first member has an extended header with this content."""
    info = member("./PaxHeaders/a", size=len(record))
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as out:
        out.addfile(info, io.BytesIO(record))
        out.addfile(member("./a"), io.BytesIO(b"x"))
    data = bytearray(file.getvalue())
    data[156:157] = tarfile.XHDTYPE
    return summed(data)


@fault("leads out")
def tar_absolute_path() -> bytes:
    return archive(member("/etc/cron.d/x"))


@fault("leads out")
def tar_parent_path() -> bytes:
    return archive(member("./a/../../x"))


@fault("leads out")
def tar_drive_path() -> bytes:
    return archive(member("C:/x"))


@fault("characters")
def tar_backslash_path() -> bytes:
    return archive(member("..\\x"))


@fault("characters")
def tar_line_break_in_name() -> bytes:
    return archive(member("a\nb"))


@fault("characters")
def tar_terminal_escape_in_name() -> bytes:
    return archive(member("a\x1b[2Jb"))


@fault("too long")
def tar_very_long_name() -> bytes:
    return archive(member("a" * 10_000))


@fault("too long")
def tar_very_deep_folders() -> bytes:
    return archive(member("a/" * 5_000 + "a"))


@fault("symbolic link")
def tar_symlink_escape() -> bytes:
    return archive(member("./out", tarfile.SYMTYPE, "/tmp"), member("./out/x"))


@fault("hard link")
def tar_hard_link_escape() -> bytes:
    return archive(member("./out", tarfile.LNKTYPE, "/etc/passwd"))


@fault("device")
def tar_character_device() -> bytes:
    return archive(member("./null", tarfile.CHRTYPE))


@fault("device")
def tar_block_device() -> bytes:
    return archive(member("./sda", tarfile.BLKTYPE))


@fault("pipe")
def tar_named_pipe() -> bytes:
    return archive(member("./pipe", tarfile.FIFOTYPE))


@fault("twice")
def tar_duplicate_name() -> bytes:
    return archive(member("./a"), member("a"))


@fault("but for case")
def tar_case_clash() -> bytes:
    return archive(member("./src/Model.relay"), member("./src/model.relay"))


@fault("but for case")
def tar_case_clash_of_a_folder() -> bytes:
    return archive(member("./SRC/a"), member("./src/b"))


@fault("but for case")
def tar_two_spellings_of_one_letter() -> bytes:
    return archive(member("./caf\u00e9"), member("./cafe\u0301"))


@fault("both a file and a folder")
def tar_file_under_a_file() -> bytes:
    return archive(member("./a"), member("./a/b"))


@fault("both a file and a folder")
def tar_file_and_folder_of_one_name() -> bytes:
    return archive(member("./a", tarfile.DIRTYPE), member("./a"))


@fault("the archive is shorter")
def tar_size_beyond_the_end() -> bytes:
    return with_size_field(b"77777777777")


@fault("the archive is shorter")
def tar_size_of_one_terabyte() -> bytes:
    return with_size_field(b"\x80" + (1 << 40).to_bytes(11, "big"))


@fault("archive")
def tar_size_of_many_exabytes() -> bytes:
    return with_size_field(b"\x80" + (2**62).to_bytes(11, "big"))


@fault("archive")
def tar_size_of_88_bits() -> bytes:
    return with_size_field(b"\x80" + b"\xff" * 11)


@fault("archive")
def tar_negative_size() -> bytes:
    return with_size_field(b"\xff" * 12)


@fault("archive")
def tar_size_that_is_no_number() -> bytes:
    return with_size_field(b"99999999999")


@fault("requests")
def tar_huge_extended_header() -> bytes:
    return with_size_field(b"77777777777", tarfile.XHDTYPE)


@fault("requests")
def tar_huge_long_name() -> bytes:
    return with_size_field(b"77777777777", tarfile.GNUTYPE_LONGNAME)


@fault("archive")
def tar_extended_header_with_a_lying_length() -> bytes:
    return with_pax_record(b"99999999999999999999 path=a\n")


@fault("archive")
def tar_extended_header_with_a_negative_size() -> bytes:
    return with_pax_record(b"12 size=-99\n")


@fault("the archive is shorter|archive")
def tar_extended_header_with_a_huge_size() -> bytes:
    return with_pax_record(b"29 size=99999999999999999999\n")


@fault("sparse|archive")
def tar_sparse_by_extended_header() -> bytes:
    return with_pax_record(b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n30 GNU.sparse.realsize=9999999\n")


@fault("sparse|archive")
def tar_sparse_of_old_gnu() -> bytes:
    return with_size_field(b"00000000001", tarfile.GNUTYPE_SPARSE)


@fault("archive")
def tar_many_extended_headers() -> bytes:
    return with_size_field(b"00000001000", tarfile.XHDTYPE)[:BLOCK] * 20_000


def headers(count: int) -> bytes:
    """Return the headers of `count` empty files with different names."""
    blocks = np.tile(np.frombuffer(archive(member("./0000000", size=0))[:BLOCK], np.uint8), (count, 1))
    digits = np.arange(count)[:, None] // 10 ** np.arange(6, -1, -1) % 10
    blocks[:, 2:9] = digits + ord("0")
    blocks[:, 148:156] = ord(" ")
    total = blocks.sum(1, dtype=np.int64)
    blocks[:, 148:154] = total[:, None] // 8 ** np.arange(5, -1, -1) % 8 + ord("0")
    blocks[:, 154] = 0
    return blocks.tobytes()


def tar_million_members(path: Path) -> None:
    """Write a million headers; the first ones are repeated, as readers stop before they see a duplicate."""
    part = gzip.compress(headers(40_000), 1, mtime=0)
    path.write_bytes(part * (MILLION // 40_000))


add_large("tar_million_members", "more than 8,000 members", tar_million_members)


@fault("more than 8,000 members")
def tar_more_members_than_allowed() -> bytes:
    return headers(20_001)


def tar_sparse_terabyte(path: Path) -> None:
    """Write a sparse file with a member of one terabyte."""
    with path.open("wb") as file:
        file.write(with_size_field(b"\x80" + (1 << 40).to_bytes(11, "big"))[:BLOCK])
        file.truncate((1 << 40) + 3 * BLOCK)


add_large("tar_terabyte_of_holes", "more than", tar_sparse_terabyte)


def tar_xz_bomb(path: Path) -> None:
    """Write concatenated xz streams of zeros, compressed ten-thousandfold."""
    head = with_size_field(b"\x80" + (1 << 40).to_bytes(11, "big"))[:BLOCK]
    path.write_bytes(lzma.compress(head) + lzma.compress(bytes(64 << 20), preset=0) * 64)


def tar_gzip_bomb(path: Path) -> None:
    """Write concatenated gzip members of zeros, compressed thousandfold."""
    head = with_size_field(b"\x80" + (1 << 40).to_bytes(11, "big"))[:BLOCK]
    path.write_bytes(gzip.compress(head) + gzip.compress(bytes(16 << 20), 6, mtime=0) * 256)


add_large("tar_xz_bomb", "expand", tar_xz_bomb)
add_large("tar_gzip_bomb", "expand", tar_gzip_bomb)


@fault("archive")
def tar_gzip_of_gzip() -> bytes:
    return gzip.compress(gzip.compress(archive(member("./metadata.json")), mtime=0), mtime=0)


@fault("archive")
def tar_gzip_cut_off() -> bytes:
    return gzip.compress(archive(member("./a", size=5000)), mtime=0)[:-20]


@fault("archive")
def tar_xz_damaged() -> bytes:
    data = bytearray(lzma.compress(archive(member("./a", size=5000))))
    data[len(data) // 2] ^= 0xFF
    return bytes(data)


@fault("archive")
def tar_cut_off_in_a_header() -> bytes:
    return archive(member("./a", size=5000))[: BLOCK - 1]


@fault("the archive is shorter")
def tar_cut_off_in_a_file() -> bytes:
    return archive(member("./a", size=5000))[: BLOCK + 1000]


@fault("archive")
def tar_empty_file() -> bytes:
    return b""


@fault("archive")
def tar_that_is_a_model() -> bytes:
    return b"TFL3" * 500


@fault("no metadata.json|metadata.json: the file is missing")
def tar_without_metadata() -> bytes:
    return archive(member("./a"))

"""Reading static libraries (``.a``): the archives of Unix's ar(1), whose form all systems share. Nothing is trusted."""

from __future__ import annotations

from collections.abc import Iterator

MARK = b"!<arch>\n"
"""What static libraries start with."""

_HEADER = 60
_END = slice(58, 60)
_SIZE = slice(48, 58)
_NAME = slice(0, 16)
# the tables of symbols and of long names of GNU, BSD and Microsoft
_TABLES = ("/", "//", "/SYM64/", "__.SYMDEF", "__.SYMDEF SORTED")
_BSD_NAME = "#1/"


def members(data: memoryview) -> Iterator[memoryview]:
    """Yield the files of a static library, without those that are tables of its own.

    Raises
    ------
    ValueError
        If a header is none, or a file does not lie within the data.
    """
    at = len(MARK)
    while at < len(data):
        header = bytes(data[at : at + _HEADER])
        size = header[_SIZE].strip()
        if header[_END] != b"`\n" or not size.isdigit():
            raise ValueError(f"no header of a file at byte {at}")
        start, end = at + _HEADER, at + _HEADER + int(size)
        if end > len(data):
            raise ValueError(f"the file at byte {at} is cut off")
        at = end + end % 2
        name = header[_NAME].decode("latin-1").rstrip()
        if name.startswith(_BSD_NAME):  # the name is the first bytes of the file
            length = name.removeprefix(_BSD_NAME)
            if not length.isdigit() or int(length) > end - start:
                raise ValueError(f"the file at byte {start - _HEADER} has a name that is cut off")
            name = bytes(data[start : start + int(length)]).rstrip(b"\0").decode("latin-1")
            start += int(length)
        if name not in _TABLES:
            yield data[start:end]

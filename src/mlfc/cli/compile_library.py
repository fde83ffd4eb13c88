"""Libraries that ``mlfc compile`` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlfc.errors import OptionError

if TYPE_CHECKING:
    from mlfc.archive.write.options import ExportOptions
    from mlfc.factory import Factory

_SUFFIXES = {"a": ".a", "tar": ".tar"}


def library_suffix(triple: str | None) -> str:
    """Return the suffix of shared libraries for a machine, default this one."""
    from mlfc.support.platforms import parse_platform

    return ".so" if triple is None else parse_platform(triple).suffix


def write_library(
    factories: Sequence[Factory], place: Path, emit: str, options: ExportOptions, linking: Mapping[str, Any]
) -> None:
    """Write a library of modules and, where C can call them by structures of pointers, the header beside it.

    Parameters
    ----------
    factories : sequence of Factory
    place : path
    emit : str
        ``so``, ``a`` or ``tar``.
    options : ExportOptions
        Say what the modules share.
    linking : mapping of str to value
        Options of `export_library`.
    """
    from mlfc.factory import library_root
    from mlfc.library.export import export_library
    from mlfc.support.atomic import write_bytes

    wanted = _SUFFIXES.get(emit)
    if (wanted is None and place.suffix in (*_SUFFIXES.values(), ".o")) or (wanted and place.suffix != wanted):
        raise OptionError(
            f"expected a file name for --emit {emit}, got '{place.name}'",
            place="-o",
            next_step=f"Name it {place.stem}{wanted or '.so'}",
        )
    root = library_root(
        factories, share_workspace=bool(options.share_workspace), share_weights=bool(options.share_weights)
    )
    export_library(root, place, **linking)
    header = b"\n".join(_headers(factories))
    if header:
        write_bytes(place.with_suffix(".h"), header)


def _headers(factories: Sequence[Factory]) -> list[bytes]:
    from mlfc.support.content import to_bytes

    return [
        to_bytes(factory.code.files[f"include/{factory.code.header_name}"])
        for factory in factories
        if factory.code.header_name is not None
    ]

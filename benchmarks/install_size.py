"""Sizes of ``pip install mlfc``, of each extra and of ``mlfc-runtime``, from the packages installed here."""

from __future__ import annotations

import runpy
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rich.table import Table

import mlfc

MLFC = "mlfc"
RUNTIME = "mlfc-runtime"
_RUNTIME_BUILD = Path(__file__).parents[1] / "release" / "runtime" / "hatch_build.py"
LIMIT = 300_000_000
"""Maximum bytes of the packages of an installation without extras."""
_BYTECODE = ".pyc"
_FOR_US = ("dev", "bench")


def packages(extra: str = "") -> frozenset[str]:
    """Return the installed packages that mlfc or one of its extras requires, directly or indirectly."""
    found = _closure(_required(MLFC, {extra} if extra else set(), only_extras=bool(extra)))
    return found if extra else found | {MLFC}


def _closure(wanted: Iterable[Requirement]) -> frozenset[str]:
    found: set[tuple[str, frozenset[str]]] = set()
    left = list(wanted)
    while left:
        requirement = left.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key not in found:
            found.add(key)
            left += _required(requirement.name, requirement.extras)
    return frozenset(name for name, _ in found)


def _required(name: str, extras: Iterable[str], *, only_extras: bool = False) -> list[Requirement]:
    try:
        lines = distribution(name).requires or ()
    except PackageNotFoundError:
        return []
    chosen = []
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        is_plain = marker is None or marker.evaluate({"extra": ""})
        is_asked = marker is not None and any(marker.evaluate({"extra": extra}) for extra in extras)
        if (is_asked and not is_plain) if only_extras else (is_plain or is_asked):
            chosen.append(requirement)
    return chosen


def size_of(package: str) -> int | None:
    """Return the bytes of a package's files, without cached bytecode; None if it is not installed."""
    if package == MLFC:  # its files may be those of a checkout
        return _bytes_of(path for path in Path(mlfc.__path__[0]).rglob("*"))
    if package == RUNTIME:
        build = runpy.run_path(str(_RUNTIME_BUILD))
        roots = (build["source"]() / name for name in build["FILES"])
        return _bytes_of(path for root in roots for path in (root, *root.rglob("*")))
    try:
        files = distribution(package).files or ()
    except PackageNotFoundError:
        return None
    return _bytes_of(Path(str(file.locate())) for file in files)


def _bytes_of(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.suffix != _BYTECODE and path.is_file())


def table() -> Table:
    """Return the megabytes of the installation without extras, and those that each extra adds."""
    made = Table("installed", "packages", "MB", "largest", title="What an installation takes")
    usual = packages()
    _add(made, MLFC, usual)
    for extra in distribution(MLFC).metadata.get_all("Provides-Extra") or ():
        if extra not in _FOR_US:
            _add(made, f"{MLFC}\\[{extra}]", packages(extra) - usual, sign="+")
    _add(made, RUNTIME, frozenset({RUNTIME, "numpy"}))
    return made


def _add(made: Table, title: str, names: frozenset[str], sign: str = "") -> None:
    sizes = {name: size_of(name) for name in sorted(names)}
    known = {name: size for name, size in sizes.items() if size is not None}
    largest = sorted(known, key=lambda name: -known[name])[:2]
    shown = ", ".join(f"{name} {known[name] / 1e6:.0f}" for name in largest)
    missing = "" if len(known) == len(sizes) else f" without {', '.join(sorted(sizes.keys() - known.keys()))}"
    made.add_row(title, f"{sign}{len(known)}", f"{sign}{sum(known.values()) / 1e6:.0f}{missing}", shown)

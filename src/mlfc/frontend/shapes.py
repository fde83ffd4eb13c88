"""Input shapes as users specify them: static sizes, and dynamic dimensions with a name and bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from mlfc.errors import OptionError
from mlfc.frontend.dynamic import identifier
from mlfc.support import dims
from mlfc.support.dims import LARGEST, Extent, Symbol
from mlfc.target.target import parse_target

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPEN = re.compile(rf"(?P<name>{_NAME.pattern})(:(?P<low>[0-9]{{1,10}})?\.\.(?P<high>[0-9]{{1,10}})?)?")
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")
_MAX_DIMENSIONS = 32
_FORM = "NAME=1,3,224,224"


def Dim(name: str, low: int = 1, high: int | None = None) -> dims.Dim:  # noqa: N802  (torch.export.Dim)
    """Return a dynamic input dimension for `shapes`.

    Parameters
    ----------
    name : str
        Dimensions of the same name have equal sizes.
    low, high : int
        Inclusive bounds, checked at run time. Default: 1, and no upper bound. With an upper bound, the memory that the
        model needs is known at compile time.

    Returns
    -------
    mlfc.support.dims.Dim
        A symbolic dimension size, which supports arithmetic: ``2 * Dim("n")``.

    Raises
    ------
    OptionError
        For a name that is not an identifier, or invalid bounds.

    Examples
    --------
    >>> batch = Dim("batch", 1, 32)
    >>> shapes = {"image": (batch, 3, 224, 224), "mask": (2 * batch,)}
    >>> shapes
    {'image': (batch, 3, 224, 224), 'mask': (2 * batch,)}
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OptionError(
            f"expected a name of letters, digits and underscores, got {name!r}",
            place="shapes",
            next_step='Write Dim("batch")',
        )
    most = LARGEST if high is None else high
    numbers = all(isinstance(bound, int) and not isinstance(bound, bool) for bound in (low, most))
    if not numbers or not 0 <= low <= most <= LARGEST or most < 1:
        raise OptionError(
            f"expected bounds such as 1..32 of the dimension '{name}', got {low}..{'' if high is None else high}",
            place="shapes",
            next_step=f"Give the least extent, then the largest, at most {LARGEST}",
        )
    return Symbol(name, low, most).dim


def parse_shapes(texts: Sequence[str] | None) -> dict[str, tuple[Any, ...]]:
    """Return shapes by input name from texts such as ``input=1,3,224,224`` and ``ids=batch:1..32,length``.

    A dimension is an integer, a `Dim`, or None for ``?``: dynamic, with the model's own name for it. Raises OptionError
    for texts of any other form.
    """
    shapes: dict[str, tuple[Any, ...]] = {}
    bounded = _bounded(texts or ())
    for text in texts or ():
        # names of inputs may contain "=", lists of sizes cannot
        name, equals, extents = text.rpartition("=")
        parts = [part.strip() for part in extents.split(",")] if extents else []
        is_list = all(part == "?" or _NUMBER.fullmatch(part) or _OPEN.fullmatch(part) for part in parts)
        if not name or not equals or not is_list:
            raise OptionError(
                f"expected {_FORM}, got '{text}'",
                place="--shape",
                next_step=f"Write {_FORM}, and for an open dimension a name, with bounds or without: "
                "NAME=batch:1..32,3,224,224",
            )
        if len(parts) > _MAX_DIMENSIONS:
            raise OptionError(f"{len(parts)} dimensions are too many", place="--shape")
        if name in shapes:
            raise OptionError(f"the shape of '{name}' is specified twice", place="--shape")
        shapes[name] = tuple(_extent(part, bounded) for part in parts)
    return shapes


def given_extent(value: Any) -> Extent:
    """Convert a dimension of `shapes`, a number, symbol or (name, low, high); raise OptionError for other types."""
    if isinstance(value, Symbol):
        return value.dim
    if isinstance(value, (tuple, list)) and len(value) == 3 and isinstance(value[0], str):
        return Symbol(identifier(value[0]), int(value[1]), int(value[2])).dim
    if isinstance(value, dims.Dim):
        return value
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    step = "Write a number, or a name with its range: --shape x=batch:1..32,3,224,224"
    raise OptionError(f"expected an extent or a range of extents, got {value!r}", place="shapes", next_step=step)


def check_bounds(shapes: Mapping[str, Sequence[Any]]) -> None:
    """Raise OptionError if two dimensions of the same name have different bounds."""
    known: dict[str, Symbol] = {}
    for symbol in dims.symbols_of(extent for shape in shapes.values() for extent in shape):
        other = known.setdefault(symbol.name, symbol)
        if other != symbol:
            raise OptionError(
                f"expected one pair of bounds for the dimension '{symbol.name}', got {_range(other)} and "
                f"{_range(symbol)}",
                place="shapes",
                next_step="Give dimensions of one name the same bounds, or two names",
            )


def _range(symbol: Symbol) -> str:
    return f"{symbol.low}..{'' if symbol.high == LARGEST else symbol.high}"


def _bounded(texts: Sequence[str]) -> dict[str, dims.Dim]:
    """Return the dimensions with explicit bounds by name."""
    found: dict[str, dims.Dim] = {}
    parts = [part.strip() for text in texts for part in text.rpartition("=")[2].split(",")]
    for part in parts:
        match = _OPEN.fullmatch(part)
        if match is None or ":" not in part:
            continue
        name, low, high = match.group("name", "low", "high")
        if low is None and high is None:
            cause = f"expected bounds such as 1..32, got '{part}'"
            raise OptionError(cause, place="--shape", next_step=f"Write {name}:1..32")
        try:
            dim = Dim(name, int(low or 1), None if high is None else int(high))
            check_bounds({"": (found.setdefault(name, dim), dim)})
        except OptionError as error:
            error.place = "--shape"
            raise
    return found


def _extent(part: str, bounded: Mapping[str, dims.Dim]) -> int | dims.Dim | None:
    if part == "?":
        return None
    match = _OPEN.fullmatch(part)
    if match is None:
        return int(part)
    name = match["name"]
    return bounded[name] if name in bounded else Dim(name)


def leaves_to_run(executor: str | None, target: str, shapes: Mapping[str, Sequence[Any]] | None = None) -> bool:
    """Return whether a model is imported as dynamic: dimensions, branches and loops may depend on runtime values.

    This is the case for the virtual machine. Without an explicit executor it is the default, except for
    microcontrollers, where it requires dynamic dimensions in `shapes`.
    """
    if executor is not None:
        return executor == "vm"
    chosen = parse_target(target)
    return has_open_extents(shapes or {}) or not chosen.features.is_microcontroller


def has_open_extents(shapes: Mapping[str, Sequence[Any]]) -> bool:
    """Return whether any dimension in `shapes` is dynamic."""
    return any(not isinstance(extent, Integral) for shape in shapes.values() for extent in shape)

"""Option classes, documented once, whose fields public functions accept as keywords."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import field, fields
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from mlfc.errors import OptionError, unknown

Keywords = ParamSpec("Keywords")
First = TypeVar("First")
Options = TypeVar("Options")
Result = TypeVar("Result")
_WIDTH = 112
_AFTER = "\n\nReturns\n"


def option(default: Any, doc: str) -> Any:
    """Declare a field of an options class with its documentation, which commands and functions show."""
    return field(default=default, metadata={"doc": doc})


def doc_of(options: type[Any], name: str) -> str:
    """Return the documentation of an option without markup, as commands show it."""
    found = next(item for item in fields(options) if item.name == name)
    return str(found.metadata["doc"]).replace("`", "")


def option_names(options: type[Any]) -> tuple[str, ...]:
    """Return the names of the options of a class."""
    return tuple(item.name for item in fields(options) if item.init)


def keywords_of(options: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the named options of an object as keyword arguments."""
    return {name: getattr(options, name) for name in names}


def check_names(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise OptionError for the first given option that a function does not have."""
    names = list(known)
    for name in given:
        if name not in names:
            raise OptionError(unknown("option", name, names, where=f" of {function}"))


def with_keywords(
    kind: Callable[Keywords, Options],
) -> Callable[[Callable[[First, Options], Result]], Callable[Concatenate[First, Keywords], Result]]:
    """Decorate a function of an argument and an options object to accept the options as keywords.

    Its signature and its docstring, before the section Returns, list the options.
    """
    own = list(inspect.signature(kind).parameters.values())

    def decorated(function: Callable[[First, Options], Result]) -> Callable[Concatenate[First, Keywords], Result]:
        first = next(iter(inspect.signature(function).parameters.values()))
        signature = inspect.Signature([first, *own])

        @wraps(function)
        def called(*arguments: Any, **given: Any) -> Result:
            check_names(function.__name__, given, signature.parameters)
            bound = signature.bind(*arguments, **given).arguments
            value = bound.pop(first.name)
            return function(value, kind(**bound))  # type: ignore[call-arg]  # bound by its own signature

        called.__signature__ = signature  # type: ignore[attr-defined]  # help and editors read it
        called.__doc__ = _documented(function.__doc__, kind)
        return called

    return decorated


def _documented(doc: str | None, kind: Any) -> str | None:
    if doc is None:  # python -OO
        return None
    start, returns, rest = inspect.cleandoc(doc).partition(_AFTER)
    known = {item.name: item for item in fields(kind)}
    entries = [
        f"{name} : {known[name].type}\n{textwrap.indent(textwrap.fill(known[name].metadata['doc'], _WIDTH), '    ')}"
        for name in inspect.signature(kind).parameters
    ]
    return "\n".join([start, *entries]) + returns + rest

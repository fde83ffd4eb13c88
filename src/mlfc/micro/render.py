"""Texts of projects, filled in from the files under ``micro/templates``."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from mlfc.codegen.writer import c_string, comment_text


def render(path: str, **values: Any) -> bytes:
    """Return a template's text with values in it.

    `path`: under ``micro/templates``: ``zephyr/CMakeLists.txt``. The file's name ends in ``.jinja`` there.
    `values`: what the template names; one that is missing is an error. For texts of a model's, the filter ``comment``
        makes them safe inside a comment of C, and ``c_string`` makes a literal of C.
    """
    return _environment().get_template(f"{path}.jinja").render(**values).encode()


@cache
def _environment() -> Environment:
    environment = Environment(  # noqa: S701  (C and build files, no HTML)
        loader=PackageLoader("mlfc.micro", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(comment=comment_text, c_string=c_string)
    return environment

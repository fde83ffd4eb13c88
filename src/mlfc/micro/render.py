"""Texts of projects, filled in from the files under ``micro/templates``."""

from __future__ import annotations

from typing import Any

from mlfc.archive.templates import environment


def render(path: str, **values: Any) -> bytes:
    """Return a template's text with values in it.

    `path`: under ``micro/templates``: ``zephyr/CMakeLists.txt``. The file's name ends in ``.jinja`` there.
    `values`: what the template names; one that is missing is an error. For texts of a model's, the filter ``comment``
        makes them safe inside a comment of C, and ``c_string`` makes a literal of C.
    """
    return environment("mlfc.micro").get_template(f"{path}.jinja").render(**values).encode()

"""Rendering of project files from the templates under ``micro/templates``."""

from __future__ import annotations

from typing import Any

from mlfc.codegen.templates import environment


def render(path: str, **values: Any) -> bytes:
    """Render a template with values.

    `path`: under ``micro/templates``: ``zephyr/CMakeLists.txt``. The file there has the suffix ``.jinja``.
    `values`: variables of the template; a missing one is an error. For strings from a model, the filter ``comment``
        makes them safe inside a C comment, and ``c_string`` creates a C literal.
    """
    return environment("mlfc.micro").get_template(f"{path}.jinja").render(**values).encode()

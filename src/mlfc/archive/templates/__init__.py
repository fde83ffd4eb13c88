"""Files of an archive beside the model's code: build files, a demo that checks the model, and a description."""

from __future__ import annotations

from importlib import resources
from typing import Any

from mlfc.codegen.templates import environment


def text_of(name: str) -> str:
    """Return the content of a file in this folder."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def render(name: str, **values: Any) -> str:
    """Return the template ``<name>.jinja`` rendered with these values."""
    return environment("mlfc.archive").get_template(f"{name}.jinja").render(**values)

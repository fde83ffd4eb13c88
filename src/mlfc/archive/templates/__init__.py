"""Files of an archive beside the model's code: build files, a demo that checks the model, and a description."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from mlfc.codegen.constants import section
from mlfc.codegen.writer import c_string, comment_text
from mlfc.support.text import shortened

if TYPE_CHECKING:
    from jinja2 import Environment


def text_of(name: str) -> str:
    """Return the content of a file in this folder."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def render(name: str, **values: Any) -> str:
    """Return the template ``<name>.jinja`` rendered with these values."""
    return environment("mlfc.archive").get_template(f"{name}.jinja").render(**values)


@cache
def environment(package: str) -> Environment:
    """Return the Jinja environment for the folder ``templates`` of a package."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(  # noqa: S701  (C, Markdown and build files, not HTML)
        loader=PackageLoader(package, "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        comment=comment_text, c_string=c_string, grouped="{:,}".format, plain=_plain, section=section,
        each=lambda items, pattern: [pattern % item for item in items], shortened=shortened,
    )  # fmt: skip
    return environment


def _plain(name: str) -> str:
    """Return a name of any characters as text without Markdown syntax."""
    shown = "".join(char if char.isprintable() else "?" for char in name[:200])
    return "".join(f"\\{char}" if char in "\\`*_{}[]<>()#+-!|~&" else char for char in shown)

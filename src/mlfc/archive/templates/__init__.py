"""What an archive carries beside the model's own code: how to build it, a demo that checks it, a description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template


class _Template(Template):
    # dollars and at signs are words of make and CMake, single percent signs of printf
    delimiter = "%%"


def text_of(name: str) -> str:
    """Return a template as it is."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def filled(name: str, values: Mapping[str, str]) -> str:
    """Return a template with every ``%%{key}`` replaced; lines that end up empty at its places stay."""
    return _Template(text_of(name)).substitute(values)


def listed(items: Sequence[str], indent: str) -> str:
    """Return one item a line."""
    return "\n".join(indent + item for item in items)

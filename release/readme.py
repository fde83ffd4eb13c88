"""The text of README.md for package indexes, which contain neither the project's other files nor its pictures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"^!\[[^]]*\]\((?!https?:)[^)]*\)\n\n", re.MULTILINE)
_LINK = re.compile(r"\[([^]]+)\]\((?!https?:)[^)\s]+\)")
_LINKS_ALONE = re.compile(r"^## More\n.*?(?=^mlfc is under)", re.MULTILINE | re.DOTALL)
_CHECKOUT = re.compile(r"^    pip install \. +# in a checkout$", re.MULTILINE)


class ReadmeHook(MetadataHookInterface):
    """Hook that sets the field ``readme`` of the metadata."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field to README.md without links to files of the project."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_index(text)}


def for_index(text: str) -> str:
    """Return the page without links to files and without their list at the end; other links stay."""
    text = _LINKS_ALONE.sub("", _PICTURE.sub("", text))
    return _CHECKOUT.sub("    pip install mlfc", _LINK.sub(r"\1", text))

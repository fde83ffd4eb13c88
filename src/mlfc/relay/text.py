"""Relay's text form: a module becomes text, and text a module.

`to_text` and `from_text` are inverse to each other: the text of what was read is the text that was read,
up to comments, white space, infix operators and `let`, which are printed as TVM prints them. With `spans` the text
gives back the very module: names, spans and facts about the model stand in comments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from mlfc.relay.ir import Constant, IRModule
from mlfc.relay.text_metadata import SECTION, metadata_text
from mlfc.relay.text_parser import parse
from mlfc.relay.text_printer import Printer, parameter_names
from mlfc.relay.text_source import VERSION, Source, facts_text

__all__ = ["VERSION", "from_text", "parameter_names", "section_text", "text_and_constants", "to_text"]


def to_text(module: IRModule, metadata: bool = True, *, version: bool = True, spans: bool = False) -> str:
    """Return a module as Relay text.

    `metadata`: end with the section that holds the tensor constants, if there are any. Without it the text of a
    module with tensor constants only shows where they are used.
    `version`: start with the version line, without which the text does not parse.
    `spans`: write comments with original names, spans, output names, quantization and source; see `text_source`.
    Scalars have as many digits as it takes to read the same value again. Names that are not Relay
    identifiers are changed; `parameter_names` tells how.
    """
    text, constants = text_and_constants(module, version=version, spans=spans)
    return text + section_text(constants) if metadata else text


def text_and_constants(
    module: IRModule, *, version: bool = True, spans: bool = False
) -> tuple[str, tuple[Constant, ...]]:
    """Return the text without a metadata section, and the constants that it refers to by their index."""
    printer = Printer(spans)
    head = f'#[version = "{VERSION}"]\n' if version else ""
    text = f"{head}{facts_text(module) if spans else ''}{printer.module(module)}"
    return text, tuple(printer.constants)


def section_text(constants: Sequence[Constant]) -> str:
    """Return the metadata section that holds these constants; nothing where there are none."""
    return f"\n{SECTION}\n{metadata_text(constants)}\n" if constants else ""


def from_text(text: str, file: str = "<text>", *, constants: Sequence[npt.NDArray[Any]] | None = None) -> IRModule:
    """Return the module that Relay text describes.

    `text`: not trusted: nesting, lengths and indices are checked.
    `constants`: what ``meta[relay.Constant][i]`` stands for in a text without a metadata section.
    Raises TextError, with file, line and column, the line itself with a caret, and what was expected.
    """
    return parse(Source(text, file), constants or ())

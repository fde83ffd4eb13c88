"""Relay's text form: a module becomes text, and text a module.

`to_text` and `from_text` are inverse to each other: the text of what was read is the text that was read,
up to comments, white space, infix operators and `let`, which are printed as TVM prints them.
"""

from __future__ import annotations

from mlforge.relay.ir import IRModule
from mlforge.relay.text_metadata import SECTION, metadata_text
from mlforge.relay.text_parser import parse
from mlforge.relay.text_printer import Printer, parameter_names
from mlforge.relay.text_source import VERSION, Source

__all__ = ["VERSION", "from_text", "parameter_names", "to_text"]


def to_text(module: IRModule, metadata: bool = True, *, version: bool = True, spans: bool = False) -> str:
    """Return a module as Relay text.

    Parameters
    ----------
    module : IRModule
    metadata : bool
        End with the section that holds the tensor constants, if there are any. Without it the text of a module with
        tensor constants only shows where they are used.
    version : bool
        Start with the version line, without which the text does not parse.
    spans : bool
        Write comments that name the original nodes.

    Returns
    -------
    str
        Scalars have as many digits as it takes to read the same value again. Names that are not Relay
        identifiers are changed; `parameter_names` tells how.
    """
    printer = Printer(spans)
    parts = [f'#[version = "{VERSION}"]\n'] if version else []
    parts.append(printer.module(module))
    if metadata and printer.constants:
        parts.append(f"\n{SECTION}\n{metadata_text(printer.constants)}\n")
    return "".join(parts)


def from_text(text: str, file: str = "<text>") -> IRModule:
    """Return the module that Relay text describes.

    Parameters
    ----------
    text : str
        Not trusted: nesting, lengths and indices are checked.
    file : str
        Its name, for messages.

    Raises
    ------
    TextError
        With file, line and column, the line itself with a caret, and what was expected.
    """
    return parse(Source(text, file))

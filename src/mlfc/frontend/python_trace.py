"""Source lines of ONNX nodes, from the stack traces that PyTorch's exporters store in node metadata."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import onnx

from mlfc.errors import MlfcError
from mlfc.support.text import printable, shortened

TRACE = "pkg.torch.onnx.stack_trace"
"""Metadata key of an ONNX node under which PyTorch's exporter stores the stack trace."""
_FRAME = re.compile(r'File "([^"\n]{1,4000})", line (\d{1,9})')
_SEPARATOR = re.compile(r"[/\\]")
_MOST_SCANNED = 1 << 16
# frames of PyTorch itself, which lie between a user's module and its operators
_OWN = re.compile(r"(?:site|dist)-packages[/\\]torch[/\\]|[/\\]torch[/\\](?:nn|_\w+)[/\\]|^<")


def line_in_trace(trace: str) -> str | None:
    r"""Return the innermost line of the user's program in a stack trace. The text is untrusted.

    Examples
    --------
    >>> line_in_trace('File "/home/me/net.py", line 7, in forward\\n    return self.block(x)')
    'net.py, line 7'
    """
    return innermost_line(_FRAME.findall(trace[:_MOST_SCANNED]))


def innermost_line(frames: Iterable[tuple[str, object]]) -> str | None:
    """Return the last frame, a pair of file and line, that is not part of PyTorch."""
    found = None
    for file, line in frames:
        if not _OWN.search(file):
            found = f"{shortened(printable(_SEPARATOR.split(file)[-1]))}, line {line}"
    return found


@contextmanager
def located(proto: onnx.NodeProto) -> Iterator[None]:
    """Add the source line of a node to errors raised inside, if its exporter stored a stack trace."""
    try:
        yield
    except MlfcError as error:
        trace = next((item.value for item in proto.metadata_props if item.key == TRACE), "")
        line = line_in_trace(trace) if isinstance(trace, str) else None
        if line is not None and error.place is not None and not error.place.endswith(")"):
            error.place = f"{error.place} ({line})"
        raise

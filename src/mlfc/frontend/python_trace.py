"""The line of a Python program that made a node: PyTorch's exporters note the calls that led to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import onnx

from mlfc.errors import MlfcError
from mlfc.support.text import printable, shortened

TRACE = "pkg.torch.onnx.stack_trace"
"""The key of the metadata of an ONNX node in which PyTorch's exporter notes the calls."""
_FRAME = re.compile(r'File "([^"\n]{1,4000})", line (\d{1,9})')
_SEPARATOR = re.compile(r"[/\\]")
_MOST_SCANNED = 1 << 16
# layers of PyTorch itself are between a module and its operators
_OWN = re.compile(r"(?:site|dist)-packages[/\\]torch[/\\]|[/\\]torch[/\\](?:nn|_\w+)[/\\]|^<")


def line_in_trace(trace: str) -> str | None:
    r"""Return the innermost line of the user's program in the text of a stack trace, which may be anything.

    Examples
    --------
    >>> line_in_trace('File "/home/me/net.py", line 7, in forward\\n    return self.block(x)')
    'net.py, line 7'
    """
    return innermost_line(_FRAME.findall(trace[:_MOST_SCANNED]))


def innermost_line(frames: Iterable[tuple[str, object]]) -> str | None:
    """Return the last of the frames, pairs of a file and a line, that is not PyTorch's own."""
    found = None
    for file, line in frames:
        if not _OWN.search(file):
            found = f"{shortened(printable(_SEPARATOR.split(file)[-1]))}, line {line}"
    return found


@contextmanager
def located(proto: onnx.NodeProto) -> Iterator[None]:
    """Add to errors the line of the program that made the node, if its exporter noted it; PyTorch's does."""
    try:
        yield
    except MlfcError as error:
        trace = next((item.value for item in proto.metadata_props if item.key == TRACE), "")
        line = line_in_trace(trace) if isinstance(trace, str) else None
        if line is not None and error.place is not None and not error.place.endswith(")"):
            error.place = f"{error.place} ({line})"
        raise

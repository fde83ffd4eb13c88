"""Standard streams that are closed: nothing else is written to by mistake."""

from __future__ import annotations

import os
import sys

from mlforge.errors import OutputError


def prepare_streams() -> None:
    """Make the standard streams fit for output; raise OutputError if standard output is closed."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # the next file that is opened would take the place, and get what is meant for a person
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        raise OutputError("is closed", place="standard output", next_step="Lead it to a file, or to /dev/null")

"""Standard streams that are closed or full: what is meant for them goes nowhere else, and the error names them."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from mlfc.errors import OutputError

_SIGPIPE = 13  # Windows has no signal of this name


def prepare_streams() -> None:
    """Make the standard streams fit for output; raise OutputError if standard output is closed.

    Later writes to standard output raise OutputError where they fail. If its reader went away, as head does, the
    program ends without a word, with the status that the signal for it would give.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # the next file that is opened would take the place, and get what is meant for a person
            os.open(os.devnull, os.O_RDWR)
    output = sys.stdout
    if output is None:
        raise OutputError("is closed", place="standard output", next_step="Redirect it to a file or to /dev/null")
    is_redirected = output is not sys.__stdout__  # by a program that calls this one
    if not is_redirected:
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_StandardOutput(1, "wb", closefd=False)),
            encoding=output.encoding, errors=output.errors, line_buffering=output.isatty(),
        )  # fmt: skip


def _discard_output() -> None:
    """Drop what standard output has not taken, so that flushing it at exit does not fail once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


class _StandardOutput(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _discard_output()
            sys.exit(128 + _SIGPIPE)
        except OSError as error:
            _discard_output()
            reason = f"cannot be written: {error.strerror or error}"
            raise OutputError(reason, place="standard output", next_step="Redirect it to a file with room") from error

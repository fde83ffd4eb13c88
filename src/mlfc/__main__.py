"""``mlfc`` and ``python -m mlfc``: the command line, from the moment on at which nothing is imported yet."""

import os
import signal
from types import FrameType


def run() -> None:
    """Run the program and leave with its exit status."""
    # to import the program takes a second, in which there is nothing to leave in order
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from mlfc.cli.main import run as run_commands

    run_commands()


def _leave(signum: int, _frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + signum)


if __name__ == "__main__":
    run()

"""Entry point of ``mlfc`` and ``python -m mlfc``, which starts before anything else is imported."""

import gc
import os
import signal
from types import FrameType


def run() -> None:
    """Run the program and exit with its status."""
    # a compiler's objects live long: scanning them at the default rate takes a tenth of the time
    gc.set_threshold(50_000, 20, 50)
    # importing the program takes a second, during which an interrupt needs no cleanup
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from mlfc.cli.main import run as run_commands

    run_commands()


def _leave(signum: int, _frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + signum)


if __name__ == "__main__":
    run()

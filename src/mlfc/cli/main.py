"""The program ``mlfc``."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

import typer

import mlfc
from mlfc.cli import (
    archives,
    budget,
    cache,
    check,
    compile_models,
    diff,
    examples,
    fit,
    inspect,
    listings,
    project,
    publish,
    quantize,
    report,
    run_model,
    tune,
    verify,
)
from mlfc.cli.options import GroupedCommand, with_options
from mlfc.errors import InternalError, LimitError, MlfcError, OutputError
from mlfc.support.atomic import temporary_error
from mlfc.support.text import printable, shortened

app = typer.Typer(
    name="mlfc",
    help="Compile trained ONNX and TFLite models to portable C in Model Library Format archives, and run them.",
    epilog="Exit status: 0 success, 1 a comparison or budget failed, 2 an invalid input or option.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
COMMANDS = (
    ("check", check.check, check.EXAMPLES),
    ("compile", compile_models.compile_models, compile_models.EXAMPLES),
    ("run", run_model.run_model, run_model.EXAMPLES),
    ("verify", verify.verify, verify.EXAMPLES),
    ("tune", tune.tune, tune.EXAMPLES),
    ("quantize", quantize.quantize, quantize.EXAMPLES),
    ("fit", fit.fit, fit.EXAMPLES),
    ("report", report.report, report.EXAMPLES),
    ("inspect", inspect.inspect, inspect.EXAMPLES),
    ("diff", diff.diff, diff.EXAMPLES),
    ("budget", budget.budget, budget.EXAMPLES),
    ("validate", archives.validate, archives.VALIDATE_EXAMPLES),
    ("migrate", archives.migrate, archives.MIGRATE_EXAMPLES),
    *publish.COMMANDS,
    ("examples", examples.examples, examples.EXAMPLES),
    ("operators", listings.operators, listings.OPERATORS_EXAMPLES),
    ("targets", listings.targets, listings.TARGETS_EXAMPLES),
    ("devices", listings.devices, listings.DEVICES_EXAMPLES),
    ("boards", listings.boards, listings.BOARDS_EXAMPLES),
)
GROUPS = (
    ("cache", "Show and clean the cache of built libraries.", cache.COMMANDS),
    (
        "project",
        "Create, build, flash and run firmware projects. They implement microTVM's Project API.",
        project.COMMANDS,
    ),
)
_TRACEBACK = "MLFC_TRACEBACK"
_SIGPIPE = 13  # Windows does not define this signal


def _add(to: typer.Typer, commands: Iterable[tuple[str, Callable[..., None], tuple[str, ...]]]) -> None:
    for name, function, lines in commands:
        # the backspace makes the help printer keep the lines apart
        epilog = "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))
        to.command(name, cls=GroupedCommand, epilog=epilog)(with_options(function))


_add(app, COMMANDS)
for _name, _help, _commands in GROUPS:
    _group = typer.Typer(name=_name, help=_help, no_args_is_help=True, rich_markup_mode=None)
    _add(_group, _commands)
    app.add_typer(_group)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mlfc {mlfc.__version__}")
        raise typer.Exit


def _show_cmake_folder(wanted: bool) -> None:
    if wanted:
        typer.echo(Path(mlfc.__file__).parent / "cmake")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
    cmake_dir: bool = typer.Option(
        False, "--cmake-dir", callback=_show_cmake_folder, is_eager=True, help="Show where CMake finds mlfc."
    ),
) -> None:
    """Options of the program itself; typer uses the help text of the app."""


def _terminate(signum: int, _frame: FrameType | None) -> None:
    # unwinds through the finally blocks, which remove temporary files and end child processes
    sys.exit(128 + signum)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    signal.signal(signum, signal.SIG_DFL)  # a second interrupt ends the process at once
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    _terminate(signum, frame)


def run() -> None:
    """Run the program and exit with its status."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        # nohup ignores the signal, which must be preserved
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _terminate)
    show = partial(typer.echo, err=True)
    warnings.showwarning = cast("Any", lambda message, *_, **__: show(f"warning: {printable(str(message))}"))
    try:
        prepare_streams()
        app()
    except MlfcError as error:
        _fail(error, error)
    except OSError as error:  # an invalid file name, a full disk: a failure of the machine, not a bug
        if error.filename is None:  # files named by users are reported by their writers
            _fail(temporary_error(error), error)
        _fail(OutputError(str(error.strerror or error), place=shortened(str(error.filename), 100)), error)
    except MemoryError as error:
        _fail(LimitError("out of memory"), error)
    except Exception as error:  # only our own errors are expected here: any other is a bug
        bug = InternalError(f"{type(error).__name__}: {error}. Set {_TRACEBACK}=1 to see where")
        _fail(bug, error)


def _fail(shown: MlfcError, error: BaseException) -> None:
    """Print an error, with its code at the end of the first line, and exit."""
    if os.environ.get(_TRACEBACK):
        raise error
    first, newline, rest = printable(str(shown)).partition("\n")
    typer.echo(f"error: {first} [{shown.code}]{newline}{rest}", err=True)
    sys.exit(shown.exit_status)


def prepare_streams() -> None:
    """Prepare the standard streams for output; raise OutputError if standard output is closed.

    Later writes to standard output raise OutputError on failure. If its reader has exited, as head does, the program
    ends silently with the status of the corresponding signal.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # the next file to be opened would get this number, and the output meant for users
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
    """Discard buffered standard output, so that flushing it at exit does not fail again."""
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

"""The commands of a project: make, CMake, a flash tool, an emulator."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .protocol import StepError

_PLACE = re.compile(r"\{([a-z_]+)(?::([^{}]*))?\}")
_LAST_LINES = 15
_LONGEST_LINE = 4096
# variables set by a make that runs this program are not meant for its subprocesses
_FROM_MAKE = frozenset({"MAKEFLAGS", "MAKELEVEL", "MFLAGS"})


def arguments_of(command: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    """Return a command's arguments, with the options' values in them.

    ``{option}`` is replaced by its value, ``{option:text}`` by the text if the option is given. Arguments that name an
    option without a value, or become empty, are dropped.
    """
    found = (_filled(argument, options) for argument in command["arguments"])
    return [argument for argument in found if argument]


def environment_of(command: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment that a command is started in."""
    environment = own_environment()
    for key, text in command.get("environment", {}).items():
        value = _filled(text, options)
        if value:
            environment[key] = value
    return environment


def own_environment() -> dict[str, str]:
    """Return the environment variables of this process that are passed to its subprocesses."""
    return {key: value for key, value in os.environ.items() if key not in _FROM_MAKE}


def _filled(text: str, options: Mapping[str, Any]) -> str | None:
    lacking = []

    def value(match: re.Match[str]) -> str:
        given = options.get(match.group(1))
        is_given = given is not None and given is not False and given != ""
        if match.group(2) is not None:
            return match.group(2) if is_given else ""
        lacking.append(not is_given)
        return str(given)

    filled = _PLACE.sub(value, text)
    return None if any(lacking) else filled


def program_of(command: Mapping[str, Any], arguments: Sequence[str], folder: Path) -> str:
    """Return the path of a command's program; raise StepError with installation instructions if it is missing."""
    if not arguments:
        raise StepError("the project names no program for this step: it was changed, or an option is missing")
    program = arguments[0]
    if "/" in program:  # of the project itself
        found = shutil.which(str(folder / program))
        if found is None:
            raise StepError(f"{program} does not exist. {command.get('install') or 'Build the project first'}")
        return found
    found = shutil.which(program, path=environment_of(command, {}).get("PATH"))
    if found is None:
        raise StepError(f"{program} is not on the PATH. {command['install']}")
    return found


def run_step(what: str, commands: Sequence[Mapping[str, Any]], folder: Path, options: Mapping[str, Any]) -> None:
    """Run the commands of a step in order; raise StepError with the last lines of one that fails.

    Their output goes to standard output if the option ``verbose`` is set.
    """
    calls = []
    for command in commands:
        arguments = arguments_of(command, options)
        for program, install in command.get("needs", {}).items():
            if shutil.which(program) is None:
                raise StepError(f"{program} is not on the PATH. {install}")
        calls.append(([program_of(command, arguments, folder), *arguments[1:]], environment_of(command, options)))
    for arguments, environment in calls:
        _run(what, arguments, environment, folder, verbose=bool(options.get("verbose")))


def end_process(process: subprocess.Popen[bytes], grace: float) -> None:
    """Terminate a running program, with some seconds to terminate its own subprocesses, as make does."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _run(what: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, *, verbose: bool) -> None:
    said: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        process = subprocess.Popen(
            arguments, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except OSError as error:
        raise StepError(f"{arguments[0]} does not start: {error}") from None
    try:
        assert process.stdout is not None
        for piece in iter(partial(process.stdout.readline, _LONGEST_LINE), b""):
            line = piece.decode("utf-8", "replace").rstrip()
            if line:
                said.append(line)
            if verbose:
                print(line, flush=True)  # noqa: T201  # standard output is for the tools
        status = process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if status != 0:
        name = Path(arguments[0]).name
        lines = "".join(f"\n  {line}" for line in said)
        raise StepError(f"{what} failed: {name} ended with status {status}{':' if lines else ''}{lines}")

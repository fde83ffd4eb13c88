"""Options of projects: those common to all templates, and parsing and checks of values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlfc.errors import OptionError, nearest
from mlfc.micro.project.template import ProjectOption, ProjectTemplate
from mlfc.micro.project_server.option_values import check_names, refused_value, typed_value

GENERATE, BUILD, FLASH, OPEN = "generate_project", "build", "flash", "open_transport"
_EVERY_STEP = (BUILD, FLASH, OPEN)
# values end up in build files and commands: exclude characters that are special in make, CMake or a shell
_TEXT = re.compile(r"[A-Za-z0-9_@%+=:,./\\ ~-]{0,1000}")


def template_options(template: ProjectTemplate, boards: Iterable[str]) -> tuple[ProjectOption, ...]:
    """Return all options of a template; its own override the common ones."""
    needs_board = (GENERATE,) if template.default_board is None else ()
    common = (
        ProjectOption("project_type", "Function of the firmware", choices=template.project_types, required=(GENERATE,)),
        ProjectOption(
            "board",
            "Name of a board, or the path of a .toml file that describes one",
            default=template.default_board,
            choices=tuple(boards),
            required=needs_board,
            optional=() if needs_board else (GENERATE,),
        ),
        ProjectOption("module", "Module of the archive, if it has several", optional=(GENERATE,)),
        ProjectOption("verbose", "Show the output of tools", "bool", default=False, optional=_EVERY_STEP),
        ProjectOption("port", "Serial port of the board; default: found by its USB IDs", optional=(FLASH, OPEN)),
        ProjectOption(
            "serial_number", "Serial number of the board's USB device, if several are connected", optional=(FLASH, OPEN)
        ),
    )
    own = {option.name for option in template.options}
    return (*(option for option in common if option.name not in own), *template.options)


def parse_options(texts: Sequence[str]) -> dict[str, str]:
    """Parse options from strings like ``cflags=-Os``."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise OptionError(f"Invalid option format: {text}. Please use OPTION=VALUE.")
        options[name] = value
    return options


def checked_options(
    options: Sequence[ProjectOption], given: Mapping[str, Any], method: str
) -> dict[str, str | int | bool | None]:
    """Return the value of every option: given, or its default.

    `given`: strings, or values of the option's type; None means not given.
    `method`: the step whose required options must be given.

    Raises OptionError for an option that is unknown, missing, or not of its type or choices.
    """
    try:
        check_names(given, [option.name for option in options])
    except ValueError as error:
        raise OptionError(str(error)) from None
    values: dict[str, str | int | bool | None] = {}
    for option in options:
        value = given.get(option.name)
        if value is None and option.default is None and method in option.required:
            raise OptionError(
                f"Option '{option.name}' is required but was not specified. "
                "Use --list-options to see all required options."
            )
        values[option.name] = option.default if value is None else _checked(option, value)
    return values


def _checked(option: ProjectOption, value: Any) -> str | int | bool:
    try:
        typed = typed_value(option.name, option.type, value)
        if not isinstance(typed, str):
            return typed
        if not _TEXT.fullmatch(typed):
            raise refused_value(option.name, value, "it has characters that are special to make or CMake")
    except ValueError as error:
        raise OptionError(str(error)) from None
    # a file path refers to a user-defined board
    is_file = option.name == "board" and typed.endswith(".toml")
    if option.choices is not None and typed not in option.choices and not is_file:
        near = nearest(typed, option.choices)
        raise OptionError(
            f"Choice '{typed[:100]}' for option '{option.name}' is invalid. "
            f"Available choices are: {', '.join(option.choices)}",
            next_step=f"Nearest: {', '.join(near)}" if near else None,
        )
    return typed

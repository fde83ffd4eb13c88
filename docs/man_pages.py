"""The manual pages of the commands, from their help texts; ``docs/generate.py`` writes them.

They have no date, so the same program always produces the same pages.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from command_parameters import parameters
from typer.models import ArgumentInfo

import mlfc
from mlfc.cli.main import COMMANDS, GROUPS, app

_ENVIRONMENT = {
    "CC": "The C compiler, with its options, of libraries and objects.",
    "MLFC_CACHE_LIMIT": "What the folder of earlier builds may take, such as 2G: see mlfc-cache(1).",
    "MLFC_CPU": "The level of processors that a library of a target with -mcpu=auto takes, instead of the best, and"
    " that mlfc-run(1) compiles models for.",
    "MLFC_KEY_PASSWORD": "The password of a private key: see mlfc-sign(1).",
    "MLFC_TRACEBACK": "If set, errors show where they were raised.",
    "SOURCE_DATE_EPOCH": "Seconds since 1970, the time of all that is written. Default: 0.",
    "TVM_NUM_THREADS": "Threads of libraries that were made with --parallel. Default: the cores there are.",
}
_LETTERS = str.maketrans(
    {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti", '"': "\\(dq"}
)
_WIDTH = 72
_SEE_ALSO = (".SH SEE ALSO", ".BR mlfc (1)")


def man_pages() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    pages = {"mlfc.1": _program()}
    for name, function, examples in COMMANDS:
        pages[f"mlfc-{name}.1"] = _command((name,), function, examples)
    for group, help_text, commands in GROUPS:
        pages[f"mlfc-{group}.1"] = _group(group, help_text, commands)
    return pages


def _program() -> str:
    lines = [_title("MLFC"), ".SH NAME", f"mlfc \\- {_name_line(str(app.info.help))}"]
    lines += [".SH SYNOPSIS", ".B mlfc", ".I COMMAND", ".RI [ ARGUMENTS ]"]
    lines += [".SH DESCRIPTION", _prose(str(app.info.help)), ".PP", "Each command has a page of its own."]
    lines += [".SH COMMANDS"]
    for name, function, _ in COMMANDS:
        lines += [".TP", f".BR mlfc\\-{_text(name)} (1)", _prose(_summary(function))]
    for group, help_text, _ in GROUPS:
        lines += [".TP", f".BR mlfc\\-{group} (1)", _prose(help_text)]
    lines += [".SH OPTIONS"]
    for flags, text in (
        ("--version", "Show the version."),
        ("--cmake-dir", "Show where CMake finds mlfc: -Dmlfc_DIR=$(mlfc --cmake-dir)."),
        ("--install-completion", "Install completion for the current shell."),
        ("--show-completion", "Show completion for the current shell, to copy it or customize the installation."),
        ("-h, --help", "Show the options, of a command too."),
    ):
        lines += [".TP", _flags(flags), _prose(text)]
    return _page([*lines, *_status(), *_environment()])


def _group(group: str, help_text: str, commands: Sequence[tuple[str, Callable[..., Any], tuple[str, ...]]]) -> str:
    lines = [_title(f"MLFC-{group.upper()}"), ".SH NAME", f"mlfc\\-{group} \\- {_name_line(help_text)}", ".SH SYNOPSIS"]
    for number, (name, function, _) in enumerate(commands):
        lines += [*[".br"] * bool(number), *_synopsis((group, name), function)]
    lines += [".SH DESCRIPTION", _prose(help_text), ".SH COMMANDS"]
    for name, function, examples in commands:
        lines += [f".SS mlfc {group} {_text(name)}", *_description(function), *_options(function)]
        lines += [".PP", "Examples:", *_listing(examples)]
    return _page([*lines, *_status(), *_SEE_ALSO])


def _command(words: Sequence[str], function: Callable[..., Any], examples: tuple[str, ...]) -> str:
    name = "-".join(("mlfc", *words))
    lines = [_title(name.upper()), ".SH NAME", f"{_text(name)} \\- {_name_line(_summary(function))}"]
    lines += [".SH SYNOPSIS", *_synopsis(words, function), ".SH DESCRIPTION", *_description(function)]
    lines += [".SH OPTIONS", *_options(function)] if list(parameters(function)) else []
    lines += [".SH EXAMPLES", *_listing(examples, first=False)]
    return _page([*lines, *_status(), *_SEE_ALSO])


def _title(name: str) -> str:
    return f'.TH {_text(name)} 1 "" "mlfc {mlfc.__version__}" "mlfc"'


def _page(lines: Sequence[str]) -> str:
    made = '.\\" made by docs/generate.py: change the program, not this page'
    return "\n".join([made, *lines, ""])


def _summary(function: Callable[..., Any]) -> str:
    return inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def _name_line(text: str) -> str:
    """Return the line of section NAME for manual indexes, without a capital and a full stop."""
    text = text.rstrip(".")
    return _text(text[0].lower() + text[1:] if text[1:2].islower() else text)


def _description(function: Callable[..., Any]) -> Iterator[str]:
    for number, paragraph in enumerate(inspect.cleandoc(function.__doc__ or "").split("\n\n")):
        yield from [".PP"] * bool(number)
        yield _prose(paragraph.replace("\n", " "))


def _synopsis(words: Sequence[str], function: Callable[..., Any]) -> list[str]:
    rows = list(parameters(function))
    named = [spelled for spelled, info, _ in rows if isinstance(info, ArgumentInfo)]
    options = [".RI [ OPTIONS ]"] if len(named) < len(rows) else []
    return [f".B mlfc {_text(' '.join(words))}", *map(_italic, named), *options]


def _options(function: Callable[..., Any]) -> Iterator[str]:
    """Yield arguments and options with their help; options are below the same headings as in the help."""
    by_panel: dict[str, list[str]] = {"": []}
    for spelled, info, default in parameters(function):
        text = (info.help or "").rstrip()
        shown = f"{text} [default: {default.strip('`')}]" if default else text
        first = _italic(spelled) if isinstance(info, ArgumentInfo) else _flags(spelled)
        by_panel.setdefault(getattr(info, "rich_help_panel", None) or "", []).extend([".TP", first, _prose(shown)])
    for panel, lines in by_panel.items():
        yield from [".PP", _text(f"{panel} options:")] * bool(panel)
        yield from lines


def _italic(text: str) -> str:
    return f".I {_quoted(text)}"


def _flags(text: str) -> str:
    """Return options in bold and their values in italics: ``--output, -o PATH``."""
    flags, _, value = text.partition(" ") if ", -" not in text else _cut(text)
    return f".BI {_quoted(flags + ' ' * bool(value))} {_quoted(value)}".rstrip() if value else f".B {_quoted(flags)}"


def _cut(text: str) -> tuple[str, str, str]:
    first, _, rest = text.partition(", ")
    second, space, value = rest.partition(" ")
    return f"{first}, {second}", space, value


def _quoted(text: str) -> str:
    return f'"{_text(text)}"' if " " in text else _text(text)


def _listing(lines: Sequence[str], *, first: bool = True) -> list[str]:
    return [*[".PP"] * first, ".nf", ".RS 4", *map(_text, lines), ".RE", ".fi"]


def _status() -> list[str]:
    text = str(app.info.epilog).removeprefix("Exit status: ").removesuffix(".")
    lines = [".SH EXIT STATUS"]
    for part in text.split(", "):
        number, _, meaning = part.partition(" ")
        lines += [".TP", f".B {number}", _prose(f"{meaning[0].upper()}{meaning[1:]}.")]
    return lines


def _environment() -> list[str]:
    lines = [".SH ENVIRONMENT"]
    for name, text in _ENVIRONMENT.items():
        lines += [".TP", f".B {_text(name)}", _prose(text)]
    return lines


def _text(text: str) -> str:
    """Return plain text on one line for roff, with requests and escapes disabled."""
    made = text.translate(_LETTERS)
    return f"\\&{made}" if made.startswith(".") else made


def _prose(text: str) -> str:
    """Return plain text for roff, in lines of a width for editing."""
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(map(_text, lines))

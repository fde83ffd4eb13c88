"""Generate reference pages from the program: ``python docs/generate.py``.

A test compares the committed pages with this output, so they cannot become stale.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from typer.models import ArgumentInfo, OptionInfo

import mlfc.ops
import mlfc.schema
from mlfc.cli.main import COMMANDS, GROUPS, app
from mlfc.micro.board.board import Board, MemoryRegion, boards
from mlfc.relay.op import OPERATORS, REQUIRED, Attr, Operator, Trait
from mlfc.support.module_info import DEFINITIONS, ArchiveInfo, ModuleInfo
from mlfc.support.records import Record, Says, definitions, described

sys.path.insert(0, str(Path(__file__).parent))
from command_parameters import parameters
from gallery_page import gallery_pages
from man_pages import man_pages
from model_operators import common_texts, onnx_page, tflite_page

REFERENCE = Path(__file__).parent / "reference"
MAN = Path(__file__).parent / "man"
SCHEMA = Path(mlfc.schema.__file__).parent / "metadata-7.json"
_MADE = "<!-- made by docs/generate.py: change the program, not this page -->"


def pages() -> dict[Path, str]:
    """Return the text of every page by its file."""
    return {
        REFERENCE / "cli.md": cli_page(),
        REFERENCE / "operators.md": operators_page(),
        REFERENCE / "boards.md": boards_page(),
        REFERENCE / "onnx.md": onnx_page(_MADE),
        REFERENCE / "tflite.md": tflite_page(_MADE),
        REFERENCE / "archive.md": archive_page(),
        SCHEMA: metadata_schema(),
        **gallery_pages(_MADE),
        **{MAN / name: text for name, text in man_pages().items()},
    }


def archive_page() -> str:
    """Return the page of archives, with the tables of the ``mlfc`` objects as declared by the records."""
    text = (REFERENCE / "archive.md").read_text(encoding="utf-8")
    for record in (ArchiveInfo, ModuleInfo):
        start, end = f"<!-- {record.__name__}, made by docs/generate.py -->", "<!-- end -->"
        before, _, rest = text.partition(start)
        after = rest.partition(end)[2]
        lines = [start, "", "| key | value | reason |", "|---|---|---|"]
        lines += [f"| `{key}` | {_meaning(says, inner)} | {says.why} |" for key, says, inner in described(record)]
        text = "\n".join([before + lines[0], *lines[1:], "", end]) + after
    return text


def _meaning(says: Says, record: type[Record] | None) -> str:
    """Return the description of a field, and of the fields of its record."""
    if record is None:
        return says.says
    parts = (
        f"`{key}` ({text})" if (text := _meaning(inside, inner)) else f"`{key}`"
        for key, inside, inner in described(record)
    )
    return f"{says.says}: {', '.join(parts)}" if says.says else ", ".join(parts)


def metadata_schema() -> str:
    """Return the JSON Schema of metadata, with the ``mlfc`` objects as declared by the records."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    schema["$defs"] |= definitions(DEFINITIONS)
    return json.dumps(schema, indent=2) + "\n"


def cli_page() -> str:
    """Return the page of the commands, from the functions and annotations that define them."""
    lines = [_MADE, "", "# Command line", "", str(app.info.help), "", str(app.info.epilog), ""]
    lines += [
        "An error is one message on standard error, without a traceback: what, where, why and what to do",
        "next. [errors.md](errors.md) lists the codes. Progress goes to standard error, and only to a",
        "terminal. `python -m mlfc` is the same as `mlfc`. `MLFC_TRACEBACK=1` shows where an error was",
        "raised. `man mlfc` and `man mlfc-compile` show the same, where the program is installed, and",
        "`mlfc --install-completion` installs completion for your shell.",
        "",
    ]
    commands = [*COMMANDS, *((f"{group} {name}", *rest) for group, _, inner in GROUPS for name, *rest in inner)]
    options = [row for _, function, _ in commands for row in parameters(function) if isinstance(row[1], OptionInfo)]
    common = [row for row, count in Counter(map(_option_row, options)).items() if count >= _COMMANDS_IN_COMMON]
    names = Counter(row.split("`")[1] for row in common)
    shared = [row for row in common if names[row.split("`")[1]] == 1]
    lines += ["These options have the same meaning in several commands, which only name them:", ""]
    lines += [*_TABLE, *shared, ""]
    for name, function, examples in commands:
        lines += _command(name, function, examples, shared)
    return "\n".join(lines)


_TABLE = ("| | default | |", "|---|---|---|")
_COMMANDS_IN_COMMON = 2


def _option_row(row: tuple[str, Any, str]) -> str:
    spelled, info, default = row
    return f"| `{_in_table(spelled)}` | {default} | {_cell(info.help or '')} |"


def _command(name: str, function: Callable[..., Any], examples: tuple[str, ...], shared: Collection[str]) -> list[str]:
    rows = list(parameters(function))
    words = [spelled for spelled, info, _ in rows if isinstance(info, ArgumentInfo)]
    usage = " ".join(["mlfc", name, *words, "[OPTIONS]" if len(words) < len(rows) else ""]).rstrip()
    lines = [f"## {name}", "", _wrapped(function.__doc__), "", f"    {usage}", ""]
    own = [text for row in rows if (text := _option_row(row)) not in shared]
    lines += [*_TABLE, *own, ""] if own else []
    named = ", ".join(f"`{row[0].split()[0].rstrip(',')}`" for row in rows if _option_row(row) in shared)
    lines += [textwrap.fill(f"Also {named}.", 100, break_on_hyphens=False), ""] if named else []
    return [*lines, "Examples:", "", *(f"    {line}" for line in examples), ""]


def _wrapped(doc: str | None) -> str:
    """Return the paragraphs of a docstring in lines of at most 100 columns."""
    paragraphs = inspect.cleandoc(doc or "").split("\n\n")
    return "\n\n".join(textwrap.fill(text, 100, break_on_hyphens=False) for text in paragraphs)


def operators_page() -> str:
    """Return the page of the operators, from the registry."""
    letters = common_texts(OPERATORS.get(name).contract for name in OPERATORS)
    lines = [_MADE, "", "# Operators", ""]
    lines += [
        "The operators of the graph IR, under Relay's names; `mlfc operators` prints them. The contract",
        "states the accuracy of the results on every target; it is empty where results are exact. The",
        "operators of models are in [onnx.md](onnx.md) and [tflite.md](tflite.md); `mlfc check MODEL` lists",
        "all that cannot be compiled.",
        "",
        f"{len(OPERATORS)} operators; a row of `1d`, `2d` and `3d` has the defaults of `2d`. Attributes without a",
        "default are required. TVM 0.14 lacks those marked * (of `qnn.softmax`, its uint8 form): [Relay",
        "text](archive.md) has an equivalent in TVM's operators, and the operator or attribute in a comment,",
        "which mlfc reads. Text with operators marked † needs mlfc; `mlfc inspect` names them.",
        "",
        "Contracts of many operators:",
        "",
        "| | contract |",
        "|---|---|",
        *(f"| [{letter}] | {_cell(contract)} |" for contract, letter in letters.items()),
        "",
        "| operator | computes | attributes | contract |",
        "|---|---|---|---|",
    ]
    for name in OPERATORS:
        forms = {f"{n}d": form for n in "123" if (form := name.replace("2d", f"{n}d")) in OPERATORS and "2d" in name}
        if re.search("[13]d", name) and re.sub("[13]d", "2d", name) in OPERATORS:
            continue  # in the row of 2d
        item = OPERATORS.get(name)
        shown = f"`{next(iter(forms.values()), name)}`" + "".join(f", `{form}`" for form in [*forms][1:])
        attributes = ", ".join(map(_attribute, item.attrs))
        contract = f"[{letters[item.contract]}]" if item.contract in letters else _cell(item.contract)
        contract = "" if contract == "exact" else contract
        lines.append(f"| {shown}{_mark(item)} | {_cell(item.doc)} | {attributes} | {contract} |")
    return "\n".join([*lines, ""])


def _mark(item: Operator) -> str:
    """Return the mark of an operator that TVM lacks."""
    if item.in_tvm is not None:
        return " *"
    return " †" if Trait.NOT_IN_TVM in item.traits else ""


def _attribute(attr: Attr) -> str:
    own = " *" if attr.in_tvm is not None else ""
    return f"`{attr.name}`{own}" if attr.default is REQUIRED else f"`{attr.name}={attr.default!r}`{own}"


def boards_page() -> str:
    """Return the page of the boards, from their files."""
    lines = [_MADE, "", "# Boards", ""]
    lines += [
        "The built-in boards; `mlfc boards` lists them, `mlfc boards NAME` shows one in full. You can",
        "[add your own](../how-to/add-a-board.md) as a file. The first region holds the start-up code;",
        "sections without a region go to those marked *.",
        "",
        "**What is tested.** Firmware for boards with an emulator runs there. For the other boards that mlfc",
        "starts by itself (bare metal), start-up code and linker script are built; for the rest, projects",
        "are generated and the code of models is compiled, except for the ESP32-S3. No physical board has",
        "been tested. `mlfc boards NAME` shows addresses and the sources of the numbers. The target is",
        "`c -mcpu=` with the core.",
        "",
        "| board | | chip | core | MHz | regions, KiB | bare metal | runs under | flash tool | names elsewhere |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for board in (boards().get(name) for name in boards()):
        cells = (
            f"`{board.name}`",
            re.split(r",| with ", board.description)[0],
            board.chip,
            " ".join((board.core, *board.features)),
            f"{board.fastest_clock_hz / 1e6:g}" if board.fastest_clock_hz else "",
            ", ".join(_region(item, board) for item in board.memories),
            "yes" if board.bare_metal else "no",
            "itself" if board.arch == "host" else board.emulator.program if board.emulator else "",
            f"`{board.flash_tool.command[0]}`" if board.flash_tool else "",
            ", ".join(f"{system}: `{name}`" for system, name in board.vendor.items()),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _region(region: MemoryRegion, board: Board) -> str:
    mark = " *" if region in (board.flash, board.ram) else ""
    return f"{region.name}{mark} {region.nbytes // 1024:,}"


def _in_table(code: str) -> str:
    """Return code with escaped bars, which would end a table cell."""
    return code.replace("|", "\\|")


def _cell(text: str) -> str:
    """Return plain text for a table cell, with all markup escaped."""
    return "".join(f"\\{char}" if char in "|*_<`" else char for char in text)


if __name__ == "__main__":
    for path, content in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")

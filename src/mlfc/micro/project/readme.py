"""README.md of a project: what it is, and the commands for it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from mlfc.micro.board.board import Board
from mlfc.micro.project.render import render
from mlfc.micro.project.template import ProjectTemplate
from mlfc.micro.project_server.steps import arguments_of

WHAT_TYPES_DO = {
    "standalone": "runs the model once",
    "selftest": "checks the archive's test vectors",
    "host_driven": "runs what a host calls over a serial line",
}
"""The firmware of each type of project, as the end of a sentence."""


def readme(template: ProjectTemplate, board: Board, document: Mapping[str, Any]) -> bytes:
    """Return the text; `document` is what ``project.json`` says."""
    steps: Mapping[str, Sequence[Mapping[str, Any]]] = document["steps"]
    return render(
        "project/README.md",
        module=document["module"],
        does=WHAT_TYPES_DO[document["project_type"]],
        template=template,
        board=board,
        firmware=document["firmware"],
        reads_files=template.is_bare_metal and document["project_type"] == "standalone" and board.arch != "avr",
        needs_debugger=(
            template.is_bare_metal
            and document["project_type"] != "host_driven"
            and board.emulator is None
            and board.arch != "host"
        ),
        commands={
            name: [shlex.join(arguments_of(command, document["options"])) for command in commands]
            for name, commands in steps.items()
        },
    )

"""Run a page of docs/tutorial as a reader does: write its files, then run its commands in order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tests.unit.test_cli import succeeded

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "tutorial"
_MARK = "end of commands"
_BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    """The commands of a block, their output, and the output that the page shows, if any."""

    commands: str
    printed: str
    expected: str | None


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Return language, file name (or an empty string) and text of every block of a page."""
    return _BLOCK.findall((PAGES / page).read_text(encoding="utf-8"))


def run_page(page: str, checkout: Path, folder: str) -> list[Step]:
    """Run all commands of a page.

    Parameters
    ----------
    page : str
    checkout : Path
        An empty folder that serves as the root of a checkout.
    folder : str
        The folder within it to which the page's commands change, and which receives its files.
    """
    (checkout / "examples").symlink_to(ROOT / "examples")
    (checkout / folder).mkdir(parents=True, exist_ok=True)
    commands: list[str] = []
    expected: dict[int, str] = {}
    for language, file, text in blocks(page):
        if file:
            (checkout / folder / file).write_text(text)
        elif language == "sh":
            commands.append(text)
        else:
            assert language == "text", f"a block of {language} that nothing runs"
            expected[len(commands) - 1] = text
    place, steps = checkout, []
    for index, text in enumerate(commands):
        printed = ""
        for is_ours, lines in groupby(text.splitlines(), lambda line: line.startswith("mlfc ")):
            if is_ours:
                # in this process, which has already imported mlfc and shares builds with other tests
                printed += "".join(succeeded(*shlex.split(line)[1:], cwd=place) for line in lines)
            else:
                said, place = _run_in_shell("\n".join(lines), place)
                printed += said
        steps.append(Step(text, printed, expected.get(index)))
    return steps


def _run_in_shell(script: str, folder: Path) -> tuple[str, Path]:
    """Return the output of commands, and the final working directory of their shell."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-e", "-c", f"{script}\necho '{_MARK}'\npwd"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}\n{done.stderr}"
    printed, _, place = done.stdout.partition(f"{_MARK}\n")
    return printed, Path(place.rstrip("\n"))

"""Running a page of docs/tutorial as a reader does: its files are written, its commands run one after the other."""

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
    """The commands of a block, what they printed, and what the page says that they print, if it does."""

    commands: str
    printed: str
    expected: str | None


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Return language, file name (or nothing) and text of every block of a page."""
    return _BLOCK.findall((PAGES / page).read_text(encoding="utf-8"))


def run_page(page: str, checkout: Path, folder: str) -> list[Step]:
    """Run all commands of a page.

    Parameters
    ----------
    page : str
    checkout : Path
        What stands for the root of a checkout: an empty folder.
    folder : str
        Where in it the page's commands change to, and its files belong.
    """
    (checkout / "examples").symlink_to(ROOT / "examples")
    (checkout / folder).mkdir(parents=True)
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
                # in this process, which has imported mlfc, and shares what it builds with other tests
                printed += "".join(succeeded(*shlex.split(line)[1:], cwd=place) for line in lines)
            else:
                said, place = _run_in_shell("\n".join(lines), place)
                printed += said
        steps.append(Step(text, printed, expected.get(index)))
    return steps


def _run_in_shell(script: str, folder: Path) -> tuple[str, Path]:
    """Return what commands print, and the folder that they leave their shell in."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-e", "-c", f"{script}\necho '{_MARK}'\npwd"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}\n{done.stderr}"
    printed, _, place = done.stdout.partition(f"{_MARK}\n")
    return printed, Path(place.rstrip("\n"))

"""Running a page of docs/tutorial as a reader does: its files are written, its commands run in one shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "tutorial"
_MARK = "end of block"
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
    # one shell for all, as a reader has
    script = "".join(f"{text}\necho '{_MARK}'\n" for text in commands)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-e", "-c", script], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}\n{done.stderr}"
    printed = done.stdout.split(f"{_MARK}\n")
    assert len(printed) == len(commands) + 1
    return [Step(text, printed[index], expected.get(index)) for index, text in enumerate(commands)]

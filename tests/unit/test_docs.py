"""Pages that the program knows best say what it says; links lead somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def test_generated_pages_are_up_to_date() -> None:
    made: dict[Path, str] = runpy.run_path(str(DOCS / "generate.py"))["pages"]()
    assert {path.name for path in made} == {"cli.md", "operators.md"}
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, "run: python docs/generate.py"


def test_the_page_of_commands_has_all_that_help_shows(tmp_path: Path) -> None:
    from tests.unit.test_cli import succeeded

    sections = re.split(r"^## ", (DOCS / "reference" / "cli.md").read_text(), flags=re.MULTILINE)[1:]
    for section in sections:
        name = section.split("\n", 1)[0]
        shown = set(re.findall(r"--[a-z][a-z-]+", succeeded(name, "--help", cwd=tmp_path)))
        assert shown - {"--help"} <= set(re.findall(r"--[a-z][a-z-]+", section)), name
        assert f"  {name} " in succeeded("--help", cwd=tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=[path.name for path in PAGES])
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"`[^`]*`", "", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#\s]+)", prose):
        if "://" not in target:
            assert (page.parent / target).exists(), target

"""MkDocs hooks that make a site of these pages, which are written for a checkout.

README.md is its first page. Files outside of docs/ to which pages link become pages as well, so that every link works:
Markdown unchanged, sources as code. No page loads anything from another host.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
_CODE = r"^(?P<fence>`{3,}).*?^(?P=fence)$|(?P<tick>`+)[^`]+(?P=tick)"
_CODE_OR_LINK = re.compile(rf"{_CODE}|\]\((?P<target>[^)\s]+)\)", re.MULTILINE | re.DOTALL)
_NAMED_FENCE = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
_CODE_IN_ROW = re.compile(r"`[^`\n]*\\\|[^`\n]*`")
_LANGUAGES = {".py": "python", ".h": "c", ".c": "c", ".mjs": "js", ".html": "html"}
_ELSEWHERE = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//|<link\b[^>]*\bhref=\"?(?:https?:)?//"
)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add README.md, the root's files in ``nav``, and the files outside of docs/ to which pages link."""
    pages = [DOCS / file.src_uri for file in files.documentation_pages()]
    todo = [*pages, *(path for path in sorted(ROOT.glob("*.md")))]
    known = set(pages)
    while todo:
        path = todo.pop()
        if path not in known:
            known.add(path)
            files.append(_added(path, config))
        if path.suffix == ".md":
            todo += [found for found in _linked(path) if found not in known and not found.is_relative_to(DOCS)]
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Return a page for Python-Markdown: links within the site, titles of code as options."""
    path = _ORIGINS.get(page.file.src_uri, DOCS / page.file.src_uri)
    if path.suffix != ".md":
        return markdown

    def link(target: str) -> str:
        file, mark, anchor = target.partition("#")
        if "://" in target or not file:
            return target
        aim = Path(os.path.normpath(path.parent / file))
        if not aim.is_file():
            message = f"{path.relative_to(ROOT)}: expected a link to a file, got {target}"
            raise PluginError(message)
        return posixpath.relpath(_place(aim), posixpath.dirname(page.file.src_uri) or ".") + mark + anchor

    text = _with_links(markdown, link)
    text = _NAMED_FENCE.sub(r'```\1 title="\2"', text)
    # GitHub ends a cell at every bar without a backslash, Python-Markdown at none inside code
    return _CODE_IN_ROW.sub(lambda found: found[0].replace("\\|", "|"), text)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Raise an error if a page of the site loads anything from another host."""
    for path in Path(config.site_dir).rglob("*.html"):
        if found := _ELSEWHERE.search(path.read_text(encoding="utf-8")):
            message = f"{path}: expected only files of the site, got {found[0]}"
            raise PluginError(message)


_ORIGINS: dict[str, Path] = {}
"""The source files of pages outside of docs/."""


def _added(path: Path, config: MkDocsConfig) -> File:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        name = path.relative_to(ROOT).as_posix()
        text = f"# {path.name}\n\n`{name}`\n\n````{_LANGUAGES.get(path.suffix, 'text')}\n{text}````\n"
    uri = _place(path)
    _ORIGINS[uri] = path
    level = InclusionLevel.INCLUDED if path.parent == ROOT else InclusionLevel.NOT_IN_NAV
    return File.generated(config, uri, content=text, inclusion=level)


def _place(path: Path) -> str:
    """Return the location of a file of the checkout in the site, in MkDocs' form."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    if path.parent == ROOT:
        return "index.md" if path.name == "README.md" else f"project/{path.name.lower()}"
    name = f"source/{path.relative_to(ROOT).as_posix()}"
    return name if path.suffix == ".md" else f"{name}.md"


def _linked(path: Path) -> Iterator[Path]:
    """Yield the files that a page links to."""
    for found in _CODE_OR_LINK.finditer(path.read_text(encoding="utf-8")):
        file = (found["target"] or "").partition("#")[0]
        aim = Path(os.path.normpath(path.parent / file))
        if file and "://" not in file and aim.is_file():
            yield aim


def _with_links(markdown: str, link: Callable[[str], str]) -> str:
    return _CODE_OR_LINK.sub(lambda found: f"]({link(found['target'])})" if found["target"] else found[0], markdown)

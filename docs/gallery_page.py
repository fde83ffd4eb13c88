"""The gallery: the introduction of each example's README, and a picture of the example's output.

``docs/generate.py`` writes it; a test runs the examples and compares their output with the READMEs.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"
NAMES = (
    "keyword_spotting",
    "person_detection",
    "anomaly_detection",
    "gesture",
    "digits_board",
    "object_detector",
    "language_model",
    "browser",
)
_OUTPUT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WIDTH, _HEIGHT, _PAD = 8, 18, 14  # of a letter, of a line, on all sides


def gallery_pages(made: str) -> dict[Path, str]:
    """Return the page and its pictures by file; `made` is the page's first line."""
    lines = [
        made,
        "",
        "# Gallery",
        "",
        "Eight examples, each a folder with a script, a small model and the script that trained it. They run",
        "in a checkout, after `pip install .`, in seconds. Two run firmware on an emulated board, for which",
        "they need the Arm compiler and QEMU.",
        "",
    ]
    pages: dict[Path, str] = {}
    for name in NAMES:
        text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
        title, first = re.match(r"# ([^\n]*)\n\n(.*?)\n\n", text, re.DOTALL).groups()  # type: ignore[union-attr]
        pages[DOCS / "gallery" / f"{name}.svg"] = picture(printed(name))
        first = first.replace("](../../docs/", "](")
        lines += [f"## {title}", "", first, "", f"![What it prints](gallery/{name}.svg)", ""]
        lines += [f"    python examples/{name}/run.py", "", f"[More](../examples/{name}/README.md)", ""]
    return {DOCS / "gallery.md": "\n".join(lines), **pages}


def printed(name: str) -> str:
    """Return the output of an example, from its README."""
    found = _OUTPUT.search((EXAMPLES / name / "README.md").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def picture(text: str) -> str:
    """Return text as a picture of a terminal, in which columns are aligned with any font."""
    lines = text.rstrip("\n").split("\n")
    width = max(map(len, lines)) * _WIDTH + 2 * _PAD
    height = len(lines) * _HEIGHT + 2 * _PAD
    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<rect width="{width}" height="{height}" rx="8" fill="#1e2129"/>',
        '<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13" fill="#d7dae0">',
    ]
    for number, line in enumerate(lines):
        if line.strip():
            made.append(
                f'<text x="{_PAD}" y="{_PAD + number * _HEIGHT + 13}" textLength="{len(line) * _WIDTH}"'
                f' lengthAdjust="spacingAndGlyphs" xml:space="preserve">{escape(line)}</text>'
            )
    return "\n".join([*made, "</g>", "</svg>", ""])

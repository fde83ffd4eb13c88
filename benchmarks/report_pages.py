"""Rendering time of report pages with large graphs in headless Chromium, from the start of the page."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from mlfc.archive.describe.graph_picture import graph_picture
from mlfc.archive.describe.pages import filled_page, script

SIZES = (100, 1_000, 10_000)
_RUNS = 5
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
          "--enable-logging=stderr", "--v=0", "--dump-dom", "--window-size=1400,900")  # fmt: skip
# the second frame starts after the first one, which shows the picture, was drawn
_CLOCK = """<script>
const first = performance.now(), graph = document.querySelector(".graph").drawing;
requestAnimationFrame(() => requestAnimationFrame(() => {
  const shown = performance.now();
  graph.whole();
  requestAnimationFrame(() => console.log(`drawn ${first} ${shown} ${performance.now() - shown}`));
}));
</script></body>"""
_DRAWN = re.compile(r"drawn ([0-9.]+) ([0-9.]+) ([0-9.]+)")


def table() -> Table:
    """Return the median milliseconds to write and draw graphs of residual blocks."""
    made = Table(
        "calls", "page kB", "places ms", "script ms", "on screen ms", "whole graph ms", title="pages of graphs"
    )
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    for count in SIZES:
        start = time.perf_counter()
        picture = graph_picture("m", blocks(count), {})
        spent = (time.perf_counter() - start) * 1e3
        page = filled_page("report_page.html", title="graph", body=str(picture), graph=script("graph.js"))
        drawn = _drawn(browser, page) if browser else None
        times = [f"{value:.0f}" for value in drawn] if drawn else ["-"] * 3
        made.add_row(f"{count:,}", f"{len(page) / 1e3:,.0f}", f"{spent:.0f}", *times)
    return made


def blocks(count: int) -> dict[str, Any]:
    """Return the result of `describe` for a module of `count` calls: blocks of eight with branches and residuals."""
    operators = [
        {
            "function": f"tvmgen_m_fused_nn_conv2d_nn_relu_{index % 50}",
            "nodes": [f"block{index // 8}/conv{index % 8}/Conv2D", f"block{index // 8}/relu{index % 8}"],
            "macs": index * 7_919 % 100_000, "bytes": 5, "live_bytes": 3, "workspace_bytes": 0,
            "types": ["float32[1,8,8,4]"] * 2, "reads": _reads(index), "outputs": [0] if index == count - 1 else [],
        }
        for index in range(count)
    ]  # fmt: skip
    tensor = {"shape": [1, 8, 8, 4], "dtype": "float32"}
    return {
        "operators": operators,
        "inputs": [{**tensor, "name": "x"}],
        "outputs": [{**tensor, "name": "y"}],
        "states": [],
    }


def _reads(index: int) -> list[int]:
    place = index % 8
    if index == 0:
        return [-1]
    if place == 7:
        return [index - 1, index - 3, index - 5, index - 7]
    return [index - place] if place in (2, 4, 6) else [index - 1]


def _drawn(browser: str, page: str) -> list[float]:
    """Return the milliseconds until the script has run, until the picture shows, and to show the whole graph."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(page.replace("</body>", _CLOCK))
        for run in range(_RUNS):
            own = f"--user-data-dir={folder}/{run}"
            log = subprocess.run(
                [browser, *_FLAGS, own, path.as_uri()], capture_output=True, text=True, check=True
            ).stderr
            match = _DRAWN.search(log)
            if match:
                found.append([float(value) for value in match.groups()])
    return [statistics.median(column) for column in zip(*found, strict=True)]

"""The drawing of a graph: positions of nodes, and the page's script, run in Node with a stand-in for a browser."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from mlfc.archive.describe.graph_picture import GraphLayout, SourceNode, contract_of, graph_picture, layered
from mlfc.relay.op import kernel_operators

HOSTILE = '</script><img src=x onerror="alert(1)">\N{RIGHT-TO-LEFT OVERRIDE}${x}'
SCRIPT = Path(str(files("mlfc.archive.describe"))) / "graph.js"
DOM = Path(__file__).resolve().parents[1] / "page_dom.js"


def _checked(reads: list[list[int]]) -> GraphLayout:
    """Return the positions of a graph's nodes, after checking that nothing overlaps."""
    places = layered(reads)
    taken: set[tuple[int, int]] = set()
    for node, given in enumerate(reads):
        at = (places.layers[node], places.columns[node])
        assert at not in taken
        taken.add(at)
        assert all(places.layers[source] < places.layers[node] for source in given if source < node)
    for node, lane in enumerate(places.lanes):
        last = max((places.layers[reader] for reader, given in enumerate(reads) if node in given), default=0)
        assert (lane is not None) == (last > places.layers[node] + 1)
        for layer in range(places.layers[node] + 1, last if lane is not None else 0):
            assert (layer, lane) not in taken, "a lane goes through a node or along another lane"
            taken.add((layer, lane or 0))
    return places


def test_a_chain_is_a_column() -> None:
    places = _checked([[], [0], [1], [2]])
    assert (places.layers, places.columns) == ((0, 1, 2, 3), (0, 0, 0, 0))
    assert places.lanes == (None,) * 4


def test_a_residual_goes_around_its_block_and_the_main_line_stays_straight() -> None:
    places = _checked([[], [0], [1], [2, 0], [3]])
    assert set(places.columns) == {0}
    assert places.lanes[0] == 1


def test_the_longest_branch_goes_on() -> None:
    places = _checked([[], [0], [0], [2], [3, 1]])
    assert [places.columns[node] for node in (0, 2, 3, 4)] == [0] * 4
    assert places.columns[1] == 1


def test_what_reads_nothing_is_right_above_its_reader() -> None:
    assert _checked([[], [0], [1], [], [2, 3]]).layers[3] == 2


def test_loops_have_no_influence() -> None:
    assert _checked([[], [0, 2], [1]]) == _checked([[], [0], [1]])


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_have_no_two_things_at_one_place(seed: int) -> None:
    rng = random.Random(seed)
    reads = [sorted(rng.sample(range(node), min(node, rng.randrange(4)))) for node in range(200)]
    assert layered(reads) == _checked(reads)


def test_many_nodes_side_by_side() -> None:
    places = layered([[] for _ in range(10_000)] + [list(range(10_000))])
    assert sorted(places.columns[:-1]) == list(range(10_000))


def _module(count: int, name: str = "block") -> dict[str, Any]:
    """Return the description of a module with residual blocks of three calls, as `describe` returns it."""
    tensor = {"shape": [1, 8], "dtype": "float32"}
    operators = [
        {
            "function": f"tvmgen_m_fused_nn_dense_nn_relu_{index % 7}",
            "nodes": [f"{name}{index}/dense", f"{name}{index}/relu"],
            "macs": index + 1, "bytes": 5, "live_bytes": 3, "workspace_bytes": 0, "types": ["float32[1,8]"] * 2,
            "reads": [index - 1, index - 3] if index % 3 == 2 and index > 3 else [index - 1],
            "outputs": [0] if index == count - 1 else [],
        }
        for index in range(count)
    ]  # fmt: skip
    ends = {"inputs": [{**tensor, "name": "x"}], "outputs": [{**tensor, "name": "y"}], "states": []}
    return {"operators": operators, **ends}


def _data(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def _drawn(
    module: Mapping[str, Any], tmp_path: Path, steps: str, sources: Mapping[str, SourceNode] | None = None
) -> Any:
    """Run steps in Node on the drawing of a module; see `page_dom.js`."""
    html = graph_picture("m", module, sources or {})
    assert html is not None
    (tmp_path / "data.json").write_text(json.dumps(_data(html)))
    command = ["node", str(DOM), str(SCRIPT), str(tmp_path / "data.json"), steps]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_ten_thousand_nodes_take_few_elements(tmp_path: Path) -> None:
    """Create only visible elements, and draw all nodes as one outline if names are not legible."""
    steps = """
      const counts = [made(), svg.children.length];
      press("0");
      counts.push(made(), svg.children.length, svg.children[2].attributes.d.split("z").length);
      press("f");
      press("1");
      for (let step = 0; step < 20; step += 1) graph.move(0, 400);
      return [...counts, made(), svg.all.length];
    """
    started, shown, whole, outlines, all_calls, moved, at_once = _drawn(_module(10_000), tmp_path, steps)
    assert started < 200
    assert 3 < shown < 30
    assert whole - started < 10
    assert outlines <= 6
    assert all_calls == 10_000 + 1
    assert moved - whole < 4_000
    assert at_once < 400


def test_a_click_shows_facts_source_nodes_and_the_c(tmp_path: Path) -> None:
    sources = {"block1/relu": SourceNode(("nn.relu",), "float32[1,8]", ("block1/dense",))}
    steps = """
      const c = element("details", {}, element("pre"));
      c.children[0].textContent = "void f(void) {}";
      byId["m.tvmgen_m_fused_nn_dense_nn_relu_1"] = c;
      const node = svg.querySelectorAll("g")[2];
      const [, x, y] = /translate\\((.*) (.*)\\)/.exec(node.attributes.transform).map(Number);
      const [clientX, clientY] = [(x - graph.left + 40) * graph.scale, (y - graph.top + 10) * graph.scale];
      svg.dispatch("pointerdown", { clientX, clientY, pointerId: 1 });
      svg.dispatch("pointerup", { clientX, clientY });
      const text = pane.textContent;
      const link = pane.querySelectorAll("button")[0];
      link.dispatch("click", {});
      return [pane.hidden, text, graph.selected];
    """
    hidden, text, selected = _drawn(_module(6), tmp_path, steps, sources)
    assert not hidden
    assert text.startswith("Call 1: dense, relu")
    assert all(part in text for part in ("MACs2", "Reads call 0", "Read by call 2", "block1/relu: relu float32[1,8]"))
    assert "void f(void) {}" in text
    assert selected == 1, "the link to call 0, whose node is behind the input's"


def test_keys_go_from_node_to_node_and_are_told(tmp_path: Path) -> None:
    steps = """
      const told = [];
      const speaks = () => told.push(document.querySelectorAll("p")[0].textContent);
      press("ArrowDown"); speaks();
      press("ArrowDown"); speaks();
      press("ArrowDown"); speaks();
      press("ArrowUp");
      const before = graph.height;
      press(" ");
      const rows = svg.querySelectorAll("path").filter((path) => path.attributes.class === "inner").length;
      const grown = graph.height - before;
      press(" ");
      press("Enter");
      return [told, grown, rows, graph.height === before, pane.hidden];
    """
    sources = {"block0/relu": SourceNode(("nn.relu",), "float32[1,8]", ("block0/dense",))}
    told, grown, rows, folded, hidden = _drawn(_module(4), tmp_path, steps, sources)
    assert [text.partition(",")[0] for text in told] == ["input", "call 0", "call 1"]
    assert told[1].endswith("reads 1, read by 1")
    assert grown > 60
    assert rows == 1
    assert folded
    assert not hidden


def test_hostile_names_are_text(tmp_path: Path) -> None:
    module = _module(3, name=f"{HOSTILE}{'n' * 10_000}")
    html = graph_picture("m", module, {})
    assert html is not None
    assert html.count("</script>") == 1
    assert "<img" not in html
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in html
    assert len(html) < 20_000, "long names are shortened"
    shown = _drawn(module, tmp_path, "return svg.textContent")
    assert "<img" not in html
    assert "</script><im" in shown
    assert "innerHTML" not in SCRIPT.read_text()


def test_loops_and_missing_ends_are_drawn(tmp_path: Path) -> None:
    module = _module(4)
    module["operators"][1]["reads"] = [0, 2, 99, -7]
    module["operators"][3]["outputs"] = []
    assert _drawn(module, tmp_path, "press('0'); return graph.nodes.length") == 6


def test_what_the_run_decides_has_the_models_name() -> None:
    module = _module(1)
    module["operators"][0] |= {"types": ["float32[n0,8]", "float32[n0,8]"]}
    sources = {"block0/relu": SourceNode(("nn.relu",), "float32[batch,8]", ())}
    html = graph_picture("m", module, sources)
    assert html is not None
    assert _data(html)["nodes"][1]["type"] == "float32[batch,8]"
    html = graph_picture("m", module, {})
    assert html is not None
    assert _data(html)["nodes"][1]["type"] == "float32[?,8]"


def test_functions_name_their_operators() -> None:
    known = kernel_operators("tvmgen_m_fused_qnn_conv2d_nn_bias_add_qnn_requantize_nn_max_pool2d_12")
    assert known == ("qnn.conv2d", "nn.bias_add", "qnn.requantize", "nn.max_pool2d")
    assert contract_of(known, integers=True) == "bit-exact to the named rounding rule"
    rounded = contract_of(known[:3], integers=False)
    assert rounded == "nn.bias_add: correctly rounded; qnn.requantize: bit-exact to the named rounding rule"
    assert contract_of(("nn.bias_add", "nn.relu"), integers=True) == "exact"
    assert contract_of((), integers=True) is None


def test_headings_sort_by_a_click_and_by_keys() -> None:
    """Sort numerically, largest first; a second click or key press reverses the order."""
    stand_in = """
      const rows = ["10", "9", "-1"].map((value) => ({ cells: [{ dataset: { value } }] }));
      const body = { rows, append(...sorted) { this.rows = sorted; } };
      const [listeners, attributes] = [{}, {}];
      const head = {
        addEventListener: (kind, listener) => { listeners[kind] = listener; },
        click: () => listeners.click(),
        classList: { contains: () => false },
        getAttribute: (name) => attributes[name],
        removeAttribute: (name) => { delete attributes[name]; },
        setAttribute: (name, value) => { attributes[name] = value; },
      };
      const table = { querySelectorAll: () => [head], querySelector: () => body };
      const document = { querySelectorAll: () => [table] };
    """
    steps = """
      const shown = () => body.rows.map((row) => row.cells[0].dataset.value).join();
      const told = [head.tabIndex];
      for (const key of ["Enter", "x", " "]) {
        listeners.keydown({ key, preventDefault() {} });
        told.push(shown(), attributes["aria-sort"]);
      }
      console.log(JSON.stringify(told));
    """
    sorting = (SCRIPT.parent / "sorting.js").read_text()
    command = ["node", "-e", f"{stand_in}{sorting}{steps}"]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    down, up = ["10,9,-1", "descending"], ["-1,9,10", "ascending"]
    assert json.loads(found.stdout) == [0, *down, *down, *up]

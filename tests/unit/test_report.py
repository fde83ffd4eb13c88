"""The page of a model or an archive shows the numbers of `inspect`, for any names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlfc
from mlfc.archive.describe import report_page as pages
from mlfc.archive.describe.graph_picture import kernel_sources
from mlfc.archive.describe.measured import NOTHING
from mlfc.archive.describe.report_page import MOST_ROWS, OperatorTable
from mlfc.archive.read.opening import open_archive
from tests.report_html import Page

HOSTILE = '</style><script>alert("1")</script>&amp;\'"${x}'


def _page(archive: Path, budget: Any = None, title: str = "a model") -> tuple[str, Page]:
    with open_archive(archive) as opened:
        text = pages.report_page(opened, title, budget)
    page = Page(text)
    assert page.open == []
    return text, page


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an archive of a convolution and a product whose names are HTML."""
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.standard_normal((4, 3, 3, 3), np.float32), f"w{HOSTILE}")
    nodes = [
        helper.make_node("Conv", [f"x{HOSTILE}", f"w{HOSTILE}"], ["y"], name=f"first{HOSTILE}"),
        helper.make_node("Softmax", ["y"], [f"z{HOSTILE}"], name=f"second{HOSTILE}"),
    ]
    given = [helper.make_tensor_value_info(f"x{HOSTILE}", TensorProto.FLOAT, (1, 3, 8, 8))]
    result = [helper.make_tensor_value_info(f"z{HOSTILE}", TensorProto.FLOAT, (1, 4, 6, 6))]
    model = helper.make_model(
        helper.make_graph(nodes, "g", given, result, [weights]), opset_imports=[helper.make_opsetid("", 18)]
    )
    path = tmp_path_factory.mktemp("report") / "model.tar"
    module, params = mlfc.import_model(model)
    mlfc.export_model_library_format(mlfc.build(module, "c", params), path)
    return path


def test_hostile_names_are_text(archive: Path) -> None:
    text, page = _page(archive, title=HOSTILE)
    assert page.scripts == 1
    assert HOSTILE not in text
    words = "".join(page.words)
    assert all(f"{name}{HOSTILE}" in words for name in ("x", "z", "first"))
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "").partition("<h2>Constants")[0]


def test_the_numbers_are_those_of_inspect(archive: Path) -> None:
    text, page = _page(archive)
    (module,) = mlfc.inspect(archive)["modules"].values()
    words = set(page.words)
    for size in (module["memory"]["workspace_bytes"], module["peak"]["live_bytes"]):
        assert any(f"{size:,}" in word for word in words)
    for operator in module["operators"]:
        assert {f"{operator['macs']:,}", f"{operator['live_bytes']:,}", operator["function"]} <= words
    assert text == _page(archive)[0]


def test_each_function_shows_its_c(archive: Path) -> None:
    _, page = _page(archive)
    (name,) = mlfc.inspect(archive)["modules"]
    functions = {operator["function"] for operator in mlfc.inspect(archive)["modules"][name]["operators"]}
    assert {f"#{name}.{function}" for function in functions} == {item for item in page.targets if ".call" not in item}
    assert {f"{name}.{function}" for function in functions} == {item for item in page.ids if ".call" not in item}
    assert {item.removeprefix("#") for item in page.targets} <= set(page.ids)
    with open_archive(archive) as opened:
        sources = kernel_sources(opened, name, functions)
    for function, source in sources.items():
        assert f" {function}(" in source
        assert source.count("{") == source.count("}")
        assert source.startswith("/*"), "the comment that names the nodes comes along"
    assert "first" in "".join(sources.values())


def test_boards_are_coloured_by_whether_they_are_enough(archive: Path) -> None:
    known = {"chip": None, "options": "", "stack_bytes": 100, "ram_bytes": 10, "flash_bytes": 20}
    budget = {
        "boards": [
            {**known, "board": "a", "fits": True, "problem": None, "ram_percent": 5.0, "flash_percent": 6.0},
            {
                **known,
                "board": "b",
                "fits": False,
                "problem": "ram exceeds",
                "ram_percent": 500.0,
                "flash_percent": 1.0,
            },
            {**known, "board": "c", "fits": None, "problem": HOSTILE, "ram_percent": None, "flash_percent": None},
        ],
        "advice": [{"text": "quantize", "ram_bytes": 5000, "flash_bytes": None}],
    }
    text, page = _page(archive, budget)
    assert [text.count(f'<td class="name {kind} short"') for kind in ("good", "bad", "unsure")] == [1, 1, 1]
    assert {"a", "b", "c", "ram exceeds"} <= set(page.words)
    assert HOSTILE in "".join(page.words)
    assert "quantize: saves about 5,000 bytes of RAM" in page.words
    assert text.index("<h2>Memory") < text.index("<h2>Operators") < text.index("<h2>Boards")
    assert "<th>chip" not in text, "columns without texts are omitted"


@pytest.mark.parametrize("name", ["kws_aot_c", "kws_graph_c", "multi"])
def test_archives_of_tvm_say_less(name: str, shared: Path) -> None:
    """Leave cells of missing data empty."""
    text, page = _page(shared / "fixtures" / "tvm-0.14" / f"{name}.tar.xz")
    assert "None" not in page.words
    assert text.count("<h2>Memory") == len(mlfc.inspect(shared / "fixtures" / "tvm-0.14" / f"{name}.tar.xz")["modules"])


def test_open_dimensions_have_their_names(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("batch", 8))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    module, params = mlfc.import_model(model, dynamic=True)
    mlfc.export_model_library_format(mlfc.build(module, "c", params, executor="vm"), tmp_path / "open.tar")
    _, page = _page(tmp_path / "open.tar")
    assert page.words.count("(batch, 8)") == 2
    assert "vm" in page.words


def test_large_models_have_bounded_tables() -> None:
    operator = {"nodes": ["n"], "macs": 5, "bytes": 6, "live_bytes": 7, "workspace_bytes": 0}
    operator |= {"tensors": None, "types": None, "reads": None, "outputs": None}
    operators = [{**operator, "function": f"f{index}"} for index in range(10_000)]
    page = Page("\n".join(OperatorTable("m", operators, [], {}, {}, NOTHING).html()))
    assert page.rows == MOST_ROWS + 1
    assert any("2,000 of 10,000" in word for word in page.words)

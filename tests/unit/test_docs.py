"""Generated pages are up to date, examples in pages run, and links are valid."""

from __future__ import annotations

import re
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import typer
from onnx import helper

import mlfc
from mlfc.archive.read import layout
from mlfc.archive.read.schema import load_schema
from mlfc.cli.main import app
from mlfc.frontend.onnx import table
from mlfc.frontend.onnx.importer import import_onnx
from mlfc.frontend.tflite.importer import CONVERTERS
from mlfc.frontend.tflite.importer import OPERATORS as VARIABLES
from mlfc.publish.documents import ARTIFACTS, CONFIG
from mlfc.runtime.libraries.library_file import ABI_VERSION
from mlfc.target.tuning_log import FORM
from tests.unit.test_cli import succeeded

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


assert import_onnx  # the import fills the table


def test_generated_pages_are_up_to_date() -> None:
    made: dict[Path, str] = runpy.run_path(str(DOCS / "generate.py"))["pages"]()
    assert {path.name for path in made if path.suffix not in (".1", ".svg")} == {
        "archive.md", "boards.md", "cli.md", "gallery.md", "metadata-7.json", "onnx.md", "operators.md", "tflite.md",
    }  # fmt: skip
    for suffix, folder in ((".1", "man"), (".svg", "gallery")):
        assert {path for path in made if path.suffix == suffix} == {*(DOCS / folder).iterdir()}
    for path, text in made.items():
        if path.name == "onnx.md" and onnx.defs.onnx_opset_version() < table.NEWEST_OPSET:
            continue  # an older onnx lacks some of the operators
        assert path.read_text(encoding="utf-8") == text, "run: python docs/generate.py"


@pytest.mark.parametrize("page", ["onnx.md", "tflite.md"])
def test_operators_of_models_are_listed_once(page: str) -> None:
    """Compare with the importers' tables: supported operators as measured or listed below, others with advice."""
    text = (DOCS / "reference" / page).read_text(encoding="utf-8")
    supported, _, refused = text.partition("## Not supported")
    if page == "onnx.md":
        sections = re.split(r"^## ", supported, flags=re.MULTILINE)[1:]
        expected = {"ai.onnx": {*table.supported(), "If", "Loop"}}
        expected |= {domain: {*table.supported(domain)} for domain in (table.ML, table.MICROSOFT)}
    else:
        sections, expected = [f"all\n{supported}"], {"all": {*CONVERTERS, *VARIABLES}}
    assert [section.split("\n", 1)[0] for section in sections] == [*expected]
    for section, operators in zip(sections, expected.values(), strict=True):
        rows = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
        below = re.findall(r"`([^`]+)`", " ".join(section.partition("Imported, too")[2].split()))
        assert sorted([*rows, *below]) == sorted(operators)
    left = re.findall(r"`([A-Za-z_0-9.]+)`", refused.partition("## Compared")[0])
    assert {"MaxRoiPool", "ai.onnx.ml.CastMap"} <= {*left} if page == "onnx.md" else {"CALL", "HASHTABLE"} <= {*left}
    assert not {*left} & {*expected["ai.onnx" if page == "onnx.md" else "all"]}


def test_the_page_of_commands_has_all_that_help_shows(tmp_path: Path) -> None:
    sections = re.split(r"^## ", (DOCS / "reference" / "cli.md").read_text(), flags=re.MULTILINE)[1:]
    for section in sections:
        name = section.split("\n", 1)[0]
        words = name.split()
        shown = set(re.findall(r"--[a-z][a-z-]+", succeeded(*words, "--help", cwd=tmp_path)))
        assert shown - {"--help"} <= set(re.findall(r"--[a-z][a-z-]+", section)), name
        assert f"  {words[-1]} " in succeeded(*words[:-1], "--help", cwd=tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=[path.name for path in PAGES])
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"`[^`]*`", "", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#\s]+)", prose):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=[path.name for path in PAGES])
def test_files_that_pages_name_exist(page: Path) -> None:
    root = DOCS.parent
    named = set(re.findall(r"`([a-z0-9_/]+/[a-z0-9_]+\.py)`", page.read_text(encoding="utf-8")))
    if page.name in ("architecture.md", "kernels.md", "operators.md"):  # other pages also name files of other projects
        named |= set(re.findall(r"`([a-z0-9_]+\.py)`", page.read_text(encoding="utf-8")))
    files = {
        f"/{path.relative_to(root)}"
        for folder in ("src", "tests", "docs", "release")
        for path in (root / folder).rglob("*.py")
    }
    assert not {name for name in named if not any(file.endswith(f"/{name}") for file in files)}


def schema_keys(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for item in schema.values():
            yield from schema_keys(item)


def test_the_page_of_archives_has_every_key_that_is_written() -> None:
    named = set(re.findall(r"[a-z_0-9]+", (DOCS / "reference" / "archive.md").read_text()))
    assert set(schema_keys(load_schema("metadata-7"))) <= named


def test_the_python_of_the_notebooks_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model.onnx", "other.onnx"):
        shutil.copy(DOCS.parent / "examples" / "digits" / "digits.onnx", name)
    asked: list[Any] = []
    monkeypatch.setattr(mlfc, "quantize", lambda *given, **options: asked.append((given, options)))
    image = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
    names: dict[str, Any] = {"image": image, "samples": [{"image": image}]}
    page = (DOCS / "how-to" / "notebooks.md").read_text()
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.M):
        exec(block, names)
    assert asked == [(("model.onnx", names["samples"], "model_int8.onnx"), {"progress": True})]
    for name, found in names["scores"].items():
        np.testing.assert_array_equal(found, names["model"].run(image)[name])


def test_the_python_of_the_python_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    data = helper.make_tensor_value_info("input", 1, ["N", 3, "H", "W"])
    result = helper.make_tensor_value_info("output", 1, ["N", 3, 1, 1])
    node = helper.make_node("GlobalAveragePool", ["input"], ["output"])
    graph = helper.make_graph([node], "page", [data], [result])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), "model.onnx")
    image = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
    mean, frame = image.mean((2, 3), keepdims=True), np.ones_like(image)
    names: dict[str, Any] = {
        "image": image,
        "scores": np.zeros((1, 3, 1, 1), np.float32),
        "camera": SimpleNamespace(read=lambda: frame),
    }
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / "reference" / "python.md").read_text(), re.DOTALL | re.M)
    for block in blocks:
        # the loader would return a library of the same relative name that another test loaded in this process
        exec(block.replace('"./', f'"{tmp_path}/'), names)
    assert names["problems"] == []  # dynamic dimensions are not problems, even if the next line does not set them
    np.testing.assert_allclose(names["outputs"]["output"], mean, rtol=1e-5)
    np.testing.assert_allclose(names["scores"], 1, rtol=1e-6)


@pytest.mark.parametrize(("page", "least"), [("coming-from.md", 12), ("from-tvm.md", 12)])
def test_commands_for_users_of_other_tools_exist(page: str, least: int) -> None:
    """Check that every command and option on the page exists."""
    root = typer.main.get_command(app)
    text = (DOCS / "how-to" / page).read_text()
    commands = [found.split() for found in re.findall(r"`mlfc (?!\.)([a-z][^`]*)`", text.replace("\n", " "))]
    assert len(commands) > least
    for words in commands:
        command: Any = root
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert command is not root, words
        known = {option for item in command.params for option in (*item.opts, *item.secondary_opts)}
        named = {word for word in words if re.fullmatch(r"--[a-z-]+|-o", word)}
        assert named <= known, words


def test_the_page_of_compatibility_states_the_versions_of_the_code() -> None:
    text = (DOCS / "reference" / "compatibility.md").read_text()
    rows = dict(re.findall(r"^\| ([a-z ]+?) (?:\(|\[|of|in).*? \| ([^|]+) \|", text, re.MULTILINE))
    versions = {"archive": layout.VERSION, "artifact": 1, "tuning log": FORM}
    assert {name: rows[name] for name in versions} == {name: str(number) for name, number in versions.items()}
    assert f"| shared library | {ABI_VERSION} |" in text
    assert all("v1" in media_type for media_type in (*ARTIFACTS.values(), CONFIG))
    assert ("nothing is deprecated" in text) is not any(
        "DeprecationWarning" in path.read_text() for path in (DOCS.parent / "src").rglob("*.py")
    )

"""The gallery's examples print what their READMEs show; their models are small and come from their own scripts."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.conftest import need
from tests.native.foreign_libraries import without_c_library

pytestmark = pytest.mark.usefixtures("quick_builds")
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
GALLERY = runpy.run_path(str(ROOT / "docs" / "gallery_page.py"))
LIMIT = 200_000


def run(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """Run an example in this process, in which the slow imports are done."""
    folder = EXAMPLES / name
    monkeypatch.setattr(sys, "argv", [str(folder / "run.py"), *map(str, arguments)])
    monkeypatch.syspath_prepend(str(folder))
    before = {*sys.modules}
    try:
        runpy.run_path(str(folder / "run.py"), run_name="__main__")
    finally:
        for module in {*sys.modules} - before:
            if Path(getattr(sys.modules[module], "__file__", None) or "/").is_relative_to(EXAMPLES):
                del sys.modules[module]  # another example may have a module with this name


@pytest.mark.parametrize(
    "name", ["keyword_spotting", "person_detection", "anomaly_detection", "gesture", "object_detector"]
)
def test_an_example_prints_what_its_page_says(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(name, monkeypatch)
    assert capsys.readouterr().out == GALLERY["printed"](name)


def test_digits_are_read_on_a_board(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    need("arm-none-eabi-gcc", "gcc-arm-none-eabi")
    need("qemu-system-arm", "qemu-system-arm")
    run("digits_board", monkeypatch)
    assert capsys.readouterr().out == GALLERY["printed"]("digits_board")


def test_a_language_model_writes_on_a_board(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need("arm-none-eabi-gcc", "gcc-arm-none-eabi")
    need("qemu-system-arm", "qemu-system-arm")
    head, first, *others = GALLERY["printed"]("language_model").splitlines()
    run("language_model", monkeypatch, "--prompt", "the cat ")
    assert capsys.readouterr().out.splitlines() == [head, first]
    run("language_model", monkeypatch, "--here", "--prompt", "the old ", "--prompt", "the sun ")
    assert capsys.readouterr().out.splitlines()[1:] == others
    with pytest.raises(SystemExit, match="expected 8 letters, got 'cat'"):
        run("language_model", monkeypatch, "--prompt", "cat")


def test_a_page_reads_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ziglang", reason="pip install ziglang")
    need("node", "nodejs")
    with without_c_library():
        run("browser", monkeypatch, tmp_path / "digits.html")
    assert capsys.readouterr().out == GALLERY["printed"]("browser")
    page = (tmp_path / "digits.html").read_text()
    assert not re.search(r"(?:src|href)=|https?://|@[A-Z]+@", page)  # the page needs no other file


def test_a_picture_of_another_form_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "picture.pgm"
    path.write_bytes(b"P6 48 48 255\n")
    with pytest.raises(SystemExit, match="expected a binary PGM file of 48 x 48 pixels"):
        run("person_detection", monkeypatch, path)


def test_models_are_small_and_have_a_script() -> None:
    models = [*EXAMPLES.glob("*/model.onnx")]
    assert {path.parent.name for path in models} <= {*GALLERY["NAMES"]}
    assert sum(path.stat().st_size for path in models) < LIMIT
    assert all(path.with_name("make_model.py").is_file() for path in models)
    for name in GALLERY["NAMES"]:
        text = (EXAMPLES / name / "README.md").read_text()
        assert f"python examples/{name}/run.py" in text

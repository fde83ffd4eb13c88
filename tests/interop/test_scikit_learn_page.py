"""The Python and the commands of the page on scikit-learn, run in order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import mlfc
from tests.unit.test_cli import succeeded

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "scikit-learn.md"
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.usefixtures("quick_builds")
def test_the_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for language, text in BLOCKS:
        if language == "python":
            exec(text, names)
            continue
        for line in text.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "mlfc"
            succeeded(*arguments, cwd=tmp_path)
    assert mlfc.validate(tmp_path / "iris.tar") is not None
    forest, x = names["forest"], names["x"]
    row = np.asarray(x)[70:71].astype(np.float32)
    found = mlfc.compile(tmp_path / "iris.onnx", "llvm").model.run({"x": row})
    np.testing.assert_allclose(found["probabilities"], forest.predict_proba(row), atol=1e-6)  # type: ignore[attr-defined]

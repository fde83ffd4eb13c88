"""The commands and the Python of the page on deploying a library, run in order."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from tests.unit.test_cli import mlfc as run_mlfc
from tests.unit.test_cli import succeeded

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "deploy-a-library.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.usefixtures("quick_builds")
def test_the_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tvm_ffi", reason="pip install 'mlfc[ffi]'")
    shutil.copy(ROOT / "examples" / "digits" / "digits.onnx", tmp_path)
    monkeypatch.chdir(tmp_path)
    held_out = np.load(ROOT / "examples" / "digits" / "held_out.npz")
    names: dict[str, Any] = {"image": held_out["images"][7].reshape(1, 1, 8, 8)}
    results = []
    for language, text in BLOCKS:
        if language == "python":
            exec(text, names)
            if "probabilities" in names:
                results.append(np.array(names.pop("probabilities")))
        else:
            for line in text.splitlines():
                program, *arguments = shlex.split(line)
                assert program == "mlfc"
                if "opencl" in arguments and "compile" in arguments:  # the page says that tvm-ffi cannot call it
                    done = run_mlfc(*arguments, cwd=tmp_path)
                    assert (done.returncode, "that tvm-ffi can call" in done.stderr) == (0, True), done.stderr
                else:
                    succeeded(*arguments, cwd=tmp_path)
    # by the graph executor, and by tvm-ffi
    assert [result.argmax() for result in results] == [held_out["labels"][7]] * 2
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)
    assert names["loaded"].type_key == names["from_memory"].type_key == "GraphExecutorFactory"
    assert mlfc.load_module(tmp_path / "digits.so").type_key == "AotExecutorFactory"

"""``mlfc budget``, on the command line and as a pre-commit hook."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from typer.testing import CliRunner

import mlfc
from mlfc.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits" / "digits_int8.tflite"


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["budget", *map(str, arguments)])
    return result.exit_code, result.output


def test_models_and_archives_have_the_same_budget(tmp_path: Path) -> None:
    archive = tmp_path / "digits.tar"
    mlfc.compile(DIGITS).export(archive)
    memory = mlfc.inspect(archive)["modules"]["digits_int8"]["memory"]
    flash = memory["constants_bytes"]
    status, text = run(DIGITS, archive, "--ram", "64k", "--flash", flash, "--json")
    found = json.loads(text)
    ram = found[str(archive)]["ram_bytes"][0]
    assert ram == memory["workspace_bytes"] + memory["io_bytes"]
    expected = {"ram_bytes": [ram, 65536], "constants_bytes": [flash, flash], "exceeds": False}
    assert (status, found) == (0, {str(DIGITS): expected, str(archive): expected})
    status, text = run(DIGITS, archive, "--ram", ram - 1)
    assert status == 1
    for path in (DIGITS, archive):
        assert f"{path}: RAM: {ram:,} bytes exceed the budget of {ram - 1:,} by 1\n" in text


def test_a_budget_is_required(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mlfc", "budget", DIGITS], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    message = "error: expected a budget, got none. Add --ram BYTES, --flash BYTES or both\n"
    assert (done.returncode, done.stderr) == (2, message)


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Return a git repository with the installable sources of mlfc, as users name it in their configuration."""
    folder = tmp_path / "mlfc"
    for name in ("src/mlfc", "release", "docs/man"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (".pre-commit-hooks.yaml", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "a release")
    git(folder, "tag", "v0.1.0")
    return folder


def test_a_commit_with_a_model_beyond_its_budget_fails(
    published: Path, tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the real pre-commit create the hook's environment; only mlfc's requirements come from this one."""
    pytest.importorskip("pre_commit", reason="pip install pre-commit")
    for name, value in {
        "PRE_COMMIT_HOME": str(tmp_path / "kept"), "PYTHONPATH": sysconfig.get_path("purelib"),
        "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1", "PIP_NO_COMPILE": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    work = tmp_path / "work"
    work.mkdir()
    git(work, "init", "-q")
    hook = {"id": "mlfc-budget", "args": ["--ram", "2k", "--flash", "16k"]}
    configuration = {"repos": [{"repo": str(published), "rev": "v0.1.0", "hooks": [hook]}]}
    (work / ".pre-commit-config.yaml").write_text(json.dumps(configuration))  # JSON is YAML, too
    subprocess.run([sys.executable, "-m", "pre_commit", "install"], cwd=work, check=True, capture_output=True)
    shutil.copy(DIGITS, work / "model.tflite")
    git(work, "add", ".")
    git(work, "commit", "-qm", "a model within its budget")
    shutil.copy(models / "ad01_int8.tflite", work / "model.tflite")
    git(work, "add", ".")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        git(work, "commit", "-qm", "a model beyond it")
    text = refused.value.stdout.decode() + refused.value.stderr.decode()
    assert "mlfc budget" in text
    assert "exit code: 1" in text
    assert "model.tflite: constants: " in text
    assert "bytes exceed the budget of 16,384 by " in text
    (work / "notes.txt").write_text("no model")
    git(work, "reset", "-q")
    git(work, "add", "notes.txt")
    git(work, "commit", "-qm", "no model is asked for anything")

"""``mlfc budget``, on the command line and as a pre-commit hook."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import onnx
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
        assert [str(path), "RAM", f"{ram:,}", f"{ram - 1:,}", "1"] in [line.split() for line in text.splitlines()]


def test_a_budget_is_required(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mlfc", "budget", DIGITS], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    message = "error: expected a budget, got none. Add --ram BYTES, --flash BYTES, --max-growth or --board [MLF121]\n"
    assert (done.returncode, done.stderr) == (2, message)


def test_growth_counts_from_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "-q")
    net = onnx.load(DIGITS.with_name("digits.onnx"))
    onnx.save(net, "net.onnx", save_as_external_data=True, location="net.onnx.data", size_threshold=0)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "before")
    shutil.copy(DIGITS, "small.tflite")
    status, text = run("net.onnx", "small.tflite", "--max-growth", "ram=0", "flash=2.5%", "--json")
    found = json.loads(text)
    assert (status, found["small.tflite"]) == (0, {"exceeds": False})
    assert all(sizes[0] <= sizes[1] for sizes in (found["net.onnx"]["ram_bytes"], found["net.onnx"]["constants_bytes"]))
    shutil.copy(DIGITS, "net.onnx")
    git(tmp_path, "commit", "-qam", "smaller")
    onnx.save(net, "net.onnx")
    ram = found["net.onnx"]["ram_bytes"][0]
    status, text = run("net.onnx", "--max-growth", f"ram={ram}", "--max-growth", "flash=1k")
    assert (status, "constants" in text, "before" in text) == (1, True, True)
    for asked, message in {
        ("--base", "v9"): "--base: unknown commit 'v9' of the repository of net.onnx",
        ("--max-growth", "rom=1%"): "--max-growth: expected ram=2%, flash=4k or the like, got 'rom=1%'",
    }.items():
        failed = CliRunner().invoke(app, ["budget", "net.onnx", "--max-growth", "ram=1", *asked])
        assert message in str(failed.exception)


def test_a_board_limits_memory_with_code_and_stack() -> None:
    status, text = run(DIGITS, "--board", "mps2-an386", "--flash", "20k", "--json")
    found = json.loads(text)[str(DIGITS)]
    if "warning" in text:  # without its compiler, constants and arrays alone
        pytest.skip("arm-none-eabi-gcc is not on the PATH; on Debian: apt-get install gcc-arm-none-eabi")
    assert (status, found["flash"][1], found["exceeds"]) == (0, 20480, False)
    assert found["flash"][0] > 4064 + 1000
    status, text = run(DIGITS, "--board", "mps2-an386", "--flash", found["flash"][0] - 1)
    assert status == 1
    assert "bytes on mps2-an386, with code and stack" in text


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Return a git repository with the installable sources of mlfc, as users name it in their configuration."""
    folder = tmp_path / "mlfc"
    for name in ("src/mlfc", "release", "docs/man", "examples/digits"):
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
    hook = {"id": "mlfc-budget", "args": ["--ram", "2k", "--max-growth", "flash=16k"]}
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
    assert re.search(r"model\.tflite +constants +6,848 +271,936 +23,232 +[1-9]", text)
    (work / "notes.txt").write_text("no model")
    git(work, "reset", "-q")
    git(work, "add", "notes.txt")
    git(work, "commit", "-qm", "no model is asked for anything")

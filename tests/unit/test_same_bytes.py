"""The same models produce the same archive in another clone, on another day, with other hashes and time zones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import WATCHDOG

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits"
_EXPORT = """
import sys, time
day, root, models, out = float(sys.argv[1]), *sys.argv[2:]
if day:
    # another day for whoever asks, whatever the machine's clock says
    real = time.gmtime, time.localtime
    time.time = lambda: day
    time.time_ns = lambda: int(day * 10**9)
    time.gmtime, time.localtime = (lambda f: lambda seconds=None: f(day if seconds is None else seconds))(real[0]), \\
        (lambda f: lambda seconds=None: f(day if seconds is None else seconds))(real[1])
import mlfc
import onnx
assert mlfc.__file__.startswith(root), mlfc.__file__
factories = []
for name, file, executor in (("a", "digits_int8.tflite", "aot"), ("b", "digits.onnx", "graph")):
    module, params = mlfc.import_model(f"{models}/{file}")
    factories.append(mlfc.build(module, params=params, module_name=name, executor=executor))
model = onnx.load(f"{models}/digits.onnx")
for tensor in (*model.graph.input, *model.graph.output):
    tensor.type.tensor_type.shape.dim[0].dim_param = "batch"
module, params = mlfc.import_model(model, dynamic=True, shapes={"image": (("batch", 1, 8), 1, 8, 8)})
assert module.main.params[0].type.shape[0] != 1
factories.append(mlfc.build(module, params=params, module_name="c", executor="vm"))
mlfc.export_model_library_format(factories, out)
"""


def exported(root: Path, folder: Path, *, day: float = 0, **environment: str) -> bytes:
    """Return the archive written by a separate process, with mlfc from the clone at `root`."""
    folder.mkdir(parents=True)
    kept = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
    models = shutil.copytree(DIGITS, folder / "models", ignore=shutil.ignore_patterns("*.py", "*.npz"))
    command = [sys.executable, "-c", _EXPORT, str(day), str(root), str(models), str(folder / "out.tar")]
    subprocess.run(
        command, cwd=folder, check=True, env={**kept, "PYTHONPATH": str(root / "src"), **environment}, timeout=WATCHDOG
    )
    return (folder / "out.tar").read_bytes()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return exported(ROOT, tmp_path_factory.mktemp("here") / "work", PYTHONHASHSEED="1")


def test_another_clone_day_and_place_give_the_same_bytes(here: bytes, tmp_path: Path) -> None:
    clone = tmp_path / "some where" / "else"
    shutil.copytree(ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("__pycache__"))
    settings = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONHASHSEED": "4242", "PYTHONDONTWRITEBYTECODE": "1"}
    # without assertions at no extra cost, since Python compiles the whole clone anyway
    assert exported(clone, tmp_path / "work", day=2_000_000_000, PYTHONOPTIMIZE="1", **settings) == here


def test_the_epoch_of_the_environment_changes_them(here: bytes, tmp_path: Path) -> None:
    # otherwise the tests above would compare bytes that never depend on time
    assert exported(ROOT, tmp_path / "work", SOURCE_DATE_EPOCH="1700000000") != here

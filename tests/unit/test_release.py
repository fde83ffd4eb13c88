"""The packages of a release: `mlfc-runtime` needs no other file of mlfc, and index pages have no dead links."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from benchmarks.install_size import RUNTIME, size_of
from mlfc.errors import InstallationError, required_for

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
IMAGE = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
# only numpy and Python's standard library may be imported
ALONE = """
import sys
from importlib.abc import MetaPathFinder

class Others(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {"numpy", "mlfc", *sys.stdlib_module_names}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Others())
import numpy as np
import mlfc
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that contains only the files of the package."""
    folder = tmp_path_factory.mktemp("runtime")
    build = hook("runtime/hatch_build.py")
    for name in build["FILES"]:
        source, target = build["source"]() / name, folder / "mlfc" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return folder


def hook(name: str) -> dict[str, Any]:
    pytest.importorskip("hatchling", reason="pip install hatchling")
    return runpy.run_path(str(ROOT / "release" / name))


def run(package: Path, script: str, *arguments: object) -> str:
    environment = {"PYTHONPATH": str(package), "PATH": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", ALONE + script, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_libraries_run_with_numpy_alone(package: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", IMAGE)
    files = {}
    for executor in ("aot", "graph", "vm"):
        model = mlfc.compile(DIGITS, executor=executor)
        files[tmp_path / f"{executor}.so"] = model.run(IMAGE)["probabilities"]
        model.export_library(tmp_path / f"{executor}.so")
    script = """
image = np.load(sys.argv[1])
for name in sys.argv[2:]:
    scores = mlfc.load(name).run(image)["probabilities"].tobytes()
    print(scores.hex())
    session = mlfc.InferenceSession(name, mlfc.SessionOptions(), providers=mlfc.get_available_providers()[-1:])
    assert session.run(None, {"image": image.tolist()})[0].tobytes() == scores
    with open(name, "rb") as file:
        assert mlfc.load_module(file.read()).type_key
"""
    expected = [scores.tobytes().hex() for scores in files.values()]
    assert run(package, script, tmp_path / "image.npy", *files).split() == expected


def test_what_needs_the_compiler_says_so(package: Path, tmp_path: Path) -> None:
    mlfc.compile(DIGITS).export(tmp_path / "model.tar")
    script = """
names = {name for name in mlfc.__all__}
for name in sorted(names):
    try:
        getattr(mlfc, name)
        print(name)
    except mlfc.errors.InstallationError as error:
        text = "requires mlfc's compiler, got an installation that only runs models. "
        text += "Run in a checkout of mlfc: pip install ."
        assert str(error) in (f"mlfc.{name} {text}", f"mlfc.archive.{name} {text}"), error
[getattr(mlfc.runtime, name) for name in mlfc.runtime.__all__]
for load in (mlfc.load, mlfc.load_module, mlfc.InferenceSession):
    try:
        load(sys.argv[1])
    except mlfc.errors.InstallationError as error:
        assert error.place == sys.argv[1] and "requires mlfc's compiler" in error.cause
    else:
        raise AssertionError(load)
try:
    mlfc.InferenceSession(sys.argv[2])
except mlfc.errors.InstallationError as error:
    assert "compiling a model requires mlfc's compiler" in str(error), error
else:
    raise AssertionError("compiled")
"""
    there = set(run(package, script, tmp_path / "model.tar", DIGITS).split())
    devices = {"cpu", "cuda", "device", "opencl"}
    params = {"load_param_dict", "save_param_dict"}
    threads = {"get_num_threads", "set_num_threads"}
    sessions = {"InferenceSession", "SessionOptions", "get_available_providers"}
    assert there == {"errors", "runtime", "load", "load_module", *threads, *params, *devices, *sessions}


def test_types_that_numpy_lacks_need_their_package(package: Path) -> None:
    script = """
from mlfc.runtime.executors.vm.native import NUMPY_DTYPES, number_of
from mlfc.support.dtypes import to_numpy
assert number_of(np.dtype(np.float32)) == 10 and number_of(np.dtype(">f4")) is number_of(np.dtype("M8[s]")) is None
for ask in (lambda: to_numpy("bfloat16"), lambda: NUMPY_DTYPES[12]):
    try:
        ask()
    except mlfc.errors.InstallationError as error:
        print(error)
"""
    text = "the dtype bfloat16 requires the package ml_dtypes, which is not installed. Run: pip install ml_dtypes\n"
    assert run(package, script) == 2 * text


def test_numbers_of_types_outside_numpy() -> None:
    import ml_dtypes

    from mlfc.runtime.executors.vm.native import NUMPY_DTYPES, number_of
    from mlfc.support.executable import DTYPES

    for name in ("float8_e5m2", "bfloat16", "int4"):
        assert number_of(np.dtype(getattr(ml_dtypes, name))) == DTYPES.index(name)
    assert [NUMPY_DTYPES[number].name for number in range(len(DTYPES))] == [*DTYPES]


def test_other_failures_of_imports_stay_what_they_are() -> None:
    with pytest.raises(ImportError, match="broken"), required_for("this"):
        raise ImportError("broken")
    with pytest.raises(InstallationError, match="this requires the package nothing, which"), required_for("this"):
        import nothing.inside  # type: ignore[import-not-found]  # noqa: F401


def test_runtime_is_small() -> None:
    size = size_of(RUNTIME)
    assert size is not None
    assert 500_000 < size < 1_500_000


def test_page_of_indexes_has_no_links_to_files() -> None:
    text = hook("readme.py")["for_index"]((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "](" not in re.sub(r"\]\(https?:", "", text)
    assert "pip install mlfc\n" in text
    assert {"## From your model to code", "## Measured"} <= {*re.findall(r"^## .*$", text, re.MULTILINE)}


def test_licence_of_the_runtime_is_that_of_mlfc() -> None:
    assert (ROOT / "release" / "runtime" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()

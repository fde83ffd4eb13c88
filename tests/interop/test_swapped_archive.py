"""Firmware written for microTVM's archives: the same project builds and runs with TVM's archive and with mlfc's."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.crt import crt_files
from tests.conftest import need

FIRMWARE = Path(__file__).parent / "firmware"


def firmware_outputs(project: Path, archive: Path, executor: str, inputs: bytes) -> bytes:
    """Build the project around an extracted archive, and return its output for given inputs."""
    make = need("make", "make")
    shutil.copytree(FIRMWARE, project)
    with tarfile.open(archive) as tar:
        tar.extractall(project / "model", filter="data")
    if not (project / "model" / "runtime").exists():  # the fixtures do not contain TVM's own runtime
        for name, data in crt_files().items():
            path = project / "model" / "runtime" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    built = subprocess.run([make, executor], cwd=project, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-3000:]
    return subprocess.run([project / executor], cwd=project, input=inputs, capture_output=True, check=True).stdout


@pytest.mark.parametrize("executor", ["aot", "graph"])
def test_the_file_is_swapped_and_nothing_else(shared: Path, models: Path, tmp_path: Path, executor: str) -> None:
    arrays = np.load(shared / "fixtures/tvm-0.14/kws_io.npz")
    inputs = arrays["inputs"].tobytes()
    theirs = shared / f"fixtures/tvm-0.14/kws_{executor}_c.tar.xz"
    assert firmware_outputs(tmp_path / "theirs", theirs, executor, inputs) == arrays["outputs"].tobytes()

    module, params = mlfc.import_model(models / "kws_ref_model.tflite")
    factory = mlfc.build(module, params=params, module_name="kws", executor=executor)
    ours = mlfc.export_model_library_format(factory, tmp_path / "kws.tar")
    interpreter = pytest.importorskip("ai_edge_litert.interpreter").Interpreter(str(models / "kws_ref_model.tflite"))
    interpreter.allocate_tensors()
    expected = []
    for sample in arrays["inputs"]:
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], sample)
        interpreter.invoke()
        expected.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).tobytes())
    assert firmware_outputs(tmp_path / "ours", ours, executor, inputs) == b"".join(expected)

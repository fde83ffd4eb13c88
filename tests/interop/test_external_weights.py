"""Models with weights in a file beside them, as PyTorch's exporter writes them, in every command that reads a model."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import mlfc
from mlfc.errors import MlfcError
from tests.unit.test_cli import DIGITS, Result
from tests.unit.test_cli import mlfc as program

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
pytest.importorskip("onnxruntime", reason='onnxruntime is not installed: pip install "mlfc[verify]"')
COMMANDS = {
    "check": (),
    "compile": ("-o", "made.tar"),
    "run": (),
    "verify": ("--layers", "--samples", "1"),
    "quantize": ("--calibrate", "images.npz"),
    "tune": ("--trials", "1", "-o", "log.jsonl"),
    "fit": (),
    "report": ("-o", "report.html"),
    "inspect": (),
    "budget": ("--ram", "64k"),
    "project create": ("firmware", "--template", "makefile", "--board", "host"),
}


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write a model and its weights as ``torch.onnx.export`` does: ``net.onnx`` and ``net.onnx.data``."""
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("external")
    (place / "models").mkdir()
    save(onnx.load(DIGITS), place / "models" / "net.onnx")
    np.savez(place / "images.npz", image=np.random.default_rng(0).random((2, 1, 1, 8, 8), np.float32))
    return place


def command(name: str, folder: Path) -> Result:
    return program(*name.split(), "models/net.onnx", *COMMANDS[name], cwd=folder)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_reads_the_weights_beside_the_model(name: str, folder: Path) -> None:
    done = command(name, folder)
    assert done.returncode == 0, done.stderr


def test_the_reference_reads_int8_weights_beside_the_model(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18]>
        products (uint8[2, 4] x) => (int32[2, 3] y)
        <int8[4, 3] w = {127, -128, 3, 127, -5, 6, -7, 127, 9, 10, 11, -128}, uint8 zero = {3}>
        { y = MatMulInteger(x, w, zero) }
    """)
    save(model, tmp_path / "net.onnx")
    assert mlfc.compile(tmp_path / "net.onnx").verify(samples=2, layers=True).is_within


def test_the_default_of_pytorchs_exporter_is_such_a_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'mlfc[torch]'")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'mlfc[torch]'")
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).eval()
    torch.onnx.export(net, (torch.zeros(1, 64),), tmp_path / "net.onnx", verbose=False)
    assert (tmp_path / "net.onnx.data").is_file()
    sets = [{"input": np.full((1, 64), value, np.float32)} for value in (-1, 1)]
    mlfc.quantize(tmp_path / "net.onnx", sets, tmp_path / "int8.onnx")
    assert mlfc.compile(tmp_path / "int8.onnx").verify(samples=1).is_within


@pytest.mark.parametrize("is_linked", [False, True])
def test_weights_elsewhere_are_one_error_with_the_remedy(is_linked: bool, folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "models" / "net.onnx", tmp_path)
    if is_linked:
        (tmp_path / "net.onnx.data").symlink_to(folder / "models" / "net.onnx.data")
    with pytest.raises(MlfcError, match="cp -L" if is_linked else r"net\.onnx\.data' is missing\. Copy it"):
        mlfc.compile(tmp_path / "net.onnx")
    for arguments in (("--layers",), ()):
        done = program("verify", "net.onnx", *arguments, cwd=tmp_path)
        assert (done.returncode, "bug in mlfc" in done.stderr, "net.onnx" in done.stderr) == (2, False, True)

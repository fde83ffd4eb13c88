"""A new kind of device needs only its target, its language and its driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import need_opencl

ROOT = Path(__file__).parents[2]
# Runs in a separate process, because registries are global. OpenCL's compiler and queue stand in for the device's.
CODE = """
import sys
import tarfile
from dataclasses import replace

import numpy as np

import mlfc
from mlfc.codegen.device import DIALECTS
from mlfc.runtime.devices.device import drivers
from mlfc.runtime.drivers.opencl import OpenClDriver, OpenClModule
from mlfc.runtime.modules.device_module import register_device_module
from mlfc.target.features import Features
from mlfc.target.target import add_device_kind

add_device_kind("ext_dev", Features(vector_bytes=0, dot4=False, gpu=True))
DIALECTS.add("ext_dev", replace(DIALECTS.get("opencl"), name="ext_dev", suffix="ext"))
drivers.add("ext_dev", OpenClDriver())


@register_device_module
class ExtDevModule(OpenClModule):
    type_key = "ext_dev"
    text_formats = ("ext",)


path, folder = sys.argv[1:]
on_host, on_device = mlfc.compile(path, "llvm"), mlfc.compile(path, "ext_dev", target_host="llvm")
(info,) = on_host.inputs
data = {info.name: np.random.default_rng(3).standard_normal(info.shape, np.float32)}
library = on_device.export_library(folder + "/model.so", options=["-O0"])
loaded = mlfc.load_module(library)
(module,) = loaded.imported_modules[0].imported_modules
assert (module.type_key, module.format) == ("ext_dev", "ext"), (module.type_key, module.format)
model = loaded["default"](mlfc.cpu(), mlfc.device("ext_dev"))
model.run(**data)
(expected,) = on_host.run(data).values()
np.testing.assert_allclose(model.get_output(0), expected, rtol=1e-5, atol=1e-6)
with tarfile.open(on_device.export(folder + "/model.tar")) as tar:
    assert "./codegen/ext_dev/digits_mod0.ext" in tar.getnames()
assert mlfc.onnx_backend.supports_device("EXT_DEV")
session = mlfc.InferenceSession(path, providers=["ExtDevExecutionProvider"])
np.testing.assert_allclose(session.run(None, data)[0], expected, rtol=1e-5, atol=1e-6)
"""


@pytest.mark.usefixtures("quick_kernels")
def test_a_kind_of_device_is_a_target_a_language_and_a_driver(tmp_path: Path) -> None:
    need_opencl()
    model = ROOT / "examples" / "digits" / "digits.onnx"
    command = [sys.executable, "-c", CODE, str(model), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""Build ResNet-18 for a device, export one library, load it back, and run it: ``python deploy.py [opencl|cuda]``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from write_model import resnet18

import mlfc


def main(target: str) -> None:
    """Deploy the model for one kind of device."""
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(resnet18(), f"{folder}/resnet18.onnx")
        resnet18_mod, resnet18_params = mlfc.import_model(f"{folder}/resnet18.onnx")
        graph_json, resnet18_lib, params = mlfc.build(resnet18_mod, target, params=resnet18_params)

        path_lib = Path(folder) / "deploy.so"
        resnet18_lib.export_library(path_lib)
        loaded_lib = mlfc.load_module(path_lib)
        assert loaded_lib.type_key == "library"
        assert loaded_lib.imported_modules[0].type_key == target
        print(f"{path_lib.name}: {path_lib.stat().st_size:,} bytes, imports {loaded_lib.imported_modules[0].type_key}")

        device = mlfc.device(target, 0)
        if not device.exists:
            print(f"no {device} here to run it")
            return
        executor = mlfc.runtime.GraphExecutor(graph_json, loaded_lib, device)
        executor.set_input(**params)
        executor.run(data=np.zeros((1, 3, 224, 224), np.float32))
        print(f"{device.name}: class {executor.get_output(0).argmax()}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "opencl")

"""Architectures from the onnx wheel, with seeded random weights, compared with ONNX Runtime.

The other four in the wheel have no more operators: AlexNet, zfnet512 and vgg19, with more than a gigabyte of weights,
and Inception v2. Inception v1 has local response normalization, concatenated branches and large dense layers,
DenseNet batch normalization, ShuffleNet grouped convolutions. The benchmarks compare them.
"""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest

import mlfc
from tests.harness import assert_close, loaded_by_llvm, seeded_inputs

NAMES = ("squeezenet", "shufflenet", "densenet121", "inception_v1")


@pytest.fixture(scope="module")
def zoo(shared: Path) -> ModuleType:
    """Return the tool that replaces the weights, which are constant in the wheel, by noise."""
    spec = spec_from_file_location("onnx_zoo", shared / "tools" / "onnx_zoo.py")
    assert spec is not None
    assert spec.loader is not None
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


@pytest.mark.parametrize("name", NAMES)
def test_architecture_agrees_with_onnx_runtime(name: str, zoo: ModuleType) -> None:
    """Compare both the input of the final softmax, which saturates, and its output.

    The models are compiled by LLVM, which needs neither an archive nor a compiler; other tests of whole models run C.
    """
    wheel = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    data = with_logits(zoo.randomized(onnx.load(wheel / f"light_{name}.onnx")))
    mod, params = mlfc.import_model(data)
    ours = loaded_by_llvm(mod, params)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    inputs = seeded_inputs(ours.inputs, 0)
    expected = session.run(None, {info.name: inputs[info.name] for info in ours.inputs})
    values = ours.run(inputs)
    for info, reference in zip(session.get_outputs(), expected, strict=True):
        assert np.ptp(reference) > 0
        if len(expected) == 2 and reference is expected[0]:
            assert np.max(np.abs(values[info.name] - reference)) <= 1e-6, name
        else:
            assert_close(values[info.name], reference, 1e-5, f"{name}, {info.name}")


def with_logits(model: onnx.ModelProto) -> bytes:
    """Return a model whose second output is the input of a final softmax."""
    last = model.graph.node[-1]
    if last.op_type == "Softmax":
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(last.input[0]))
    data: bytes = model.SerializeToString()
    return data

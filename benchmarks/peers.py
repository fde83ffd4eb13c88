"""The runtimes that are compared with: each runs a model file on a number of threads, or says that it cannot."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Inputs = Mapping[str, np.ndarray]
Runner = Callable[[], object]


@dataclass(frozen=True)
class Peer:
    """A runtime of a package, the kinds of files that it reads, and what prepares a run on fixed inputs."""

    name: str
    package: str
    suffixes: tuple[str, ...]
    prepare: Callable[[Path, Inputs, int], Runner]

    @property
    def version(self) -> str | None:
        """The version that is installed; None where it is not."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None


def _litert(path: Path, inputs: Inputs, threads: int) -> Runner:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=threads)
    interpreter.allocate_tensors()
    for detail, value in zip(interpreter.get_input_details(), inputs.values(), strict=True):
        interpreter.set_tensor(detail["index"], value)
    return interpreter.invoke  # type: ignore[no-any-return]


def _onnxruntime(path: Path, inputs: Inputs, threads: int) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    # arrays that stay in place, as ours do
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_cpu_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return lambda: session.run_with_iobinding(binding)


def _openvino(path: Path, inputs: Inputs, threads: int) -> Runner:
    import openvino

    asked: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",  # bfloat16 is not the model's arithmetic
    }
    model = openvino.Core().read_model(path)
    model.reshape({port: list(value.shape) for port, value in zip(model.inputs, inputs.values(), strict=True)})
    request = openvino.compile_model(model, "CPU", asked).create_infer_request()
    for index, value in enumerate(inputs.values()):
        request.set_input_tensor(index, openvino.Tensor(value))
    return request.infer  # type: ignore[no-any-return]


PEERS = (
    Peer("LiteRT", "ai-edge-litert", (".tflite",), _litert),
    Peer("ONNX Runtime", "onnxruntime", (".onnx",), _onnxruntime),
    Peer("OpenVINO", "openvino", (".onnx", ".tflite"), _openvino),
)


def runners(path: Path, inputs: Inputs, threads: int = 1) -> dict[str, Runner]:
    """Return what runs a model file, by the peer's name: of those that are installed and accept it."""
    found = {}
    for peer in PEERS:
        if peer.version is not None and path.suffix in peer.suffixes:
            try:
                found[peer.name] = peer.prepare(path, inputs, threads)
            except (RuntimeError, ValueError) as error:  # what they raise for operators that they lack
                print(f"{path.name}: {peer.name} declines: {str(error).splitlines()[0][:150]}")
    return found

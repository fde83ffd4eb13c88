"""The other runtimes: each runs a model file on a number of threads, or reports that it does not support it.

IREE and Apache TVM take hundreds of MB and packages of different versions, so they have their own environments, in
which `peer_worker` runs:

    python -m venv iree && iree/bin/pip install iree-base-compiler[onnx] iree-base-runtime
    python -m venv tvm && tvm/bin/pip install apache-tvm onnx
    MLFC_BENCH_IREE=iree/bin/python MLFC_BENCH_TVM=tvm/bin/python python -m benchmarks latency --models resnet50

ExecuTorch is not included: it runs PyTorch modules, and reads neither ONNX nor TFLite files.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

Inputs = Mapping[str, np.ndarray]
Runner = Callable[[], object]
_WORKER = Path(__file__).with_name("peer_worker.py")


@dataclass(frozen=True)
class Peer:
    """A runtime: its package, the suffixes of files it reads, and a function that prepares a run on fixed inputs."""

    name: str
    package: str
    suffixes: tuple[str, ...]
    prepare: Callable[[Path, Inputs, int], Runner]
    environment: str | None = None  # name of its environment, if it requires a separate one

    @cached_property
    def version(self) -> str | None:
        """The installed version; None if it is not installed."""
        if self.environment is not None:
            return _version_elsewhere(self.environment, self.package)
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
    # fixed arrays, as for mlfc
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


@dataclass(frozen=True)
class _Elsewhere:
    """A runtime in a process with another Python; calls block until its runs end."""

    process: subprocess.Popen[str]

    def timed(self, count: int) -> float:
        """Make `count` runs; return their seconds without the communication."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(count, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def __call__(self) -> None:
        self.timed(1)


def _python(name: str) -> str | None:
    return os.environ.get(f"MLFC_BENCH_{name.upper()}")


def _elsewhere(name: str) -> Callable[[Path, Inputs, int], Runner]:
    def prepare(path: Path, inputs: Inputs, threads: int) -> Runner:
        python = _python(name)
        assert python is not None
        with tempfile.TemporaryDirectory() as folder:
            np.savez(Path(folder) / "inputs.npz", *inputs.values())
            command = [python, str(_WORKER), name, str(path), f"{folder}/inputs.npz", str(threads)]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert process.stdout is not None
            answer = process.stdout.readline().strip()
        if answer != "ready":
            process.wait()
            raise RuntimeError(answer or f"it ended with status {process.returncode}")
        return _Elsewhere(process)

    return prepare


def _version_elsewhere(name: str, package: str) -> str | None:
    python = _python(name)
    if python is None:
        return None
    code = f"import importlib.metadata; print(importlib.metadata.version('{package}'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


PEERS = (
    Peer("LiteRT", "ai-edge-litert", (".tflite",), _litert),
    Peer("ONNX Runtime", "onnxruntime", (".onnx",), _onnxruntime),
    Peer("OpenVINO", "openvino", (".onnx", ".tflite"), _openvino),
    Peer("IREE", "iree-base-compiler", (".onnx",), _elsewhere("iree"), "iree"),
    Peer("TVM, not tuned", "apache-tvm", (".onnx",), _elsewhere("tvm"), "tvm"),
)


def runners(path: Path, inputs: Inputs, threads: int = 1) -> dict[str, Runner]:
    """Return the runner of a model file for each installed runtime that supports it, by the runtime's name."""
    found = {}
    for peer in PEERS:
        if peer.version is not None and path.suffix in peer.suffixes:
            try:
                found[peer.name] = peer.prepare(path, inputs, threads)
            except (RuntimeError, ValueError) as error:  # raised for unsupported operators
                print(f"{path.name}: {peer.name} declines: {(str(error).splitlines() or ['?'])[0][:150]}")
    return found

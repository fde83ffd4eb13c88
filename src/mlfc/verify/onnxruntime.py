"""Reference results of ONNX models: ONNX Runtime with its graph optimizations off."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.errors import InputError, MlfcError, ModelError, ToolchainError
from mlfc.verify.staged import ONNX_RUNTIME, StagedSession, node_session, staged

# On x86 processors without VNNI, ONNX Runtime's products of uint8 data and int8 weights saturate sums of two at 16
# bits, unless its optimizer converts the weights to uint8. The reference runs without the optimizer, so the weights are
# converted here: adding 128 to both weight and zero point does not change the result as the operators define it. These
# are the indices of a weight and its zero point among the inputs.
_PLACES = {"QLinearConv": (3, 5), "QLinearMatMul": (3, 5), "ConvInteger": (1, 3), "MatMulInteger": (1, 3)}
_CHUNK = 1 << 24
_FOLDER = "session.model_external_initializers_file_folder_path"


class OnnxRuntimeReference:
    """An ONNX model opened by ONNX Runtime; `run` may be called many times.

    `layers`: whether `run` returns every node's results, not the model's outputs alone.
    `changed`: modifies the ``onnx.ModelProto`` in place before it is opened.
    """

    def __init__(
        self, model: str | Path, *, layers: bool = False, changed: Callable[[object], None] | None = None
    ) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise ToolchainError(
                "ONNX Runtime is not installed", next_step='Install it in a checkout of mlfc: pip install ".[verify]"'
            ) from None
        options = onnxruntime.SessionOptions()
        # optimized graphs round differently, and lack the tensors that fusion removed
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        # with more threads, some operators quantize each thread's part by a separate range
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        # an arena would keep the memory of all tensors between runs, in each session
        options.enable_cpu_mem_arena = False
        # the folder of weights in external files, which ONNX Runtime cannot derive from bytes
        options.add_session_config_entry(_FOLDER, str(Path(model).parent.resolve()))
        opened = partial(onnxruntime.InferenceSession, sess_options=options, providers=["CPUExecutionProvider"])
        try:
            other = layers or changed or multiplies_integers(Path(model))
            self._opened = opened
            source = _other_model(Path(model), changed, layers=layers) if other else str(model)
            try:
                self.session, self._source = opened(source), source
            except Exception:
                self.session = staged(source, opened)
                if self.session is None:
                    raise
        except MlfcError:
            raise
        except Exception as error:  # those of ONNX Runtime, onnx and protobuf have no common class
            raise ModelError(f"ONNX Runtime cannot open the model: {error}", place=str(model)) from error
        self.title = getattr(self.session, "title", ONNX_RUNTIME)
        self._model = str(model)
        self.input_names = frozenset(item.name for item in self.session.get_inputs())
        self._names = [output.name for output in self.session.get_outputs()]
        self.output_names = frozenset(self._names)
        # with all layers, added outputs are not the model's
        if layers:
            self.output_names = frozenset(output.name for output in _loaded(Path(model)).graph.output)
        has_maps = any(output.type.startswith("seq(map(") for output in self.session.get_outputs())
        self._classes = _classes(Path(model)) if has_maps else {}

    def begin(self) -> None:
        """Do nothing: the model has no variables."""

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the results by tensor name; sequences are lists of arrays, optionals without a value None.

        A sequence of maps, from classes to scores, is an array with a row for each map.
        """
        missing = sorted(self.input_names - set(inputs))
        if missing:
            raise InputError(
                f"the compiled model has no input '{missing[0]}', but the original model has one",
                place=self._model,
                next_step=f"Set the value that it was compiled with: --value {missing[0]}=...",
            )
        try:
            values = self.session.run(self._names, dict(inputs))
        except MlfcError:
            raise
        except Exception as error:  # as above
            raise ModelError(
                f"ONNX Runtime cannot run the model with these inputs: {error}", place=self._model
            ) from error
        results = dict(zip(self._names, values, strict=True))
        for name, classes in self._classes.items():
            if name in results:
                results[name] = np.array([[row[key] for key in classes] for row in results[name]], np.float32)
        found = {}
        for name, value in results.items():  # tensors, sequences of tensors, optionals without a value
            items = value if isinstance(value, list) else [value]
            if value is None or all(isinstance(item, np.ndarray) for item in items):
                found[name] = value
        return found

    def node(self, tensor: str, known: Collection[str]) -> tuple[StagedSession, Sequence[str]]:
        """Return a session that computes a layer from the nearest known tensors, and those that it reads."""
        return node_session(self._model_proto, tensor, known, self._opened)

    @cached_property
    def _model_proto(self) -> Any:
        import onnx

        return onnx.ModelProto.FromString(self._source)


def _loaded(path: Path) -> Any:
    import onnx

    return onnx.load(path, load_external_data=False)


def _classes(path: Path) -> dict[str, list[int]]:
    """Return the classes of each output that is a sequence of maps, in the order of their scores."""
    nodes = [node for node in _loaded(path).graph.node if node.op_type == "ZipMap"]
    return {
        node.output[0]: [key for item in node.attribute if item.name == "classlabels_int64s" for key in item.ints]
        for node in nodes
    }


def _other_model(path: Path, changed: Callable[[object], None] | None, *, layers: bool) -> bytes:
    import onnx

    model = onnx.load(path, load_external_data=changed is not None)
    widen_weights(model, path.parent)
    if changed is not None:
        changed(model)
    outputs = {output.name for output in model.graph.output}
    for node in model.graph.node if layers else ():
        for name in node.output:
            if name and name not in outputs:
                outputs.add(name)
                # ONNX Runtime infers the type
                model.graph.output.append(onnx.ValueInfoProto(name=name))
    data: bytes = model.SerializeToString()
    return data


def multiplies_integers(path: Path) -> bool:
    """Return whether the model file contains the name of an operator that multiplies integers.

    Other text in the file may match, too; then `widen_weights` changes nothing.
    """
    names = [name.encode() for name in _PLACES]
    longest = max(map(len, names))
    tail = b""
    with path.open("rb") as file:
        while data := file.read(_CHUNK):
            if any(name in tail + data for name in names):
                return True
            tail = data[-longest:]
    return False


def widen_weights(model: Any, folder: Path) -> None:
    """Convert int8 weights of integer products to uint8, in place; `folder` has those in external files."""
    from onnx import numpy_helper

    known = {tensor.name: tensor for tensor in model.graph.initializer}

    def shifted(name: str, source: Any) -> str:
        title = f"{name} as uint8"
        if title not in known:
            tensor = numpy_helper.from_array((source.astype(np.int16) + 128).astype(np.uint8), title)
            known[title] = tensor
            model.graph.initializer.append(tensor)
        return title

    for node in model.graph.node:
        if node.op_type not in _PLACES or node.domain not in ("", "ai.onnx"):
            continue
        weight, zero = _PLACES[node.op_type]
        zero_name = node.input[zero] if len(node.input) > zero else ""
        if node.input[weight] not in known or (zero_name and zero_name not in known):
            continue
        values = numpy_helper.to_array(known[node.input[weight]], str(folder))
        if values.dtype != np.int8:
            continue
        point = numpy_helper.to_array(known[zero_name], str(folder)) if zero_name else np.zeros((), np.int8)
        node.input.extend([""] * (zero + 1 - len(node.input)))
        node.input[zero] = shifted(zero_name or "zero", point)
        node.input[weight] = shifted(node.input[weight], values)

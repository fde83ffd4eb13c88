"""Quantization of float models to int8 by ONNX Runtime's quantizer, with the error of each layer.

Calibration data are input sets from files, folders of files or images, or an iterable.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.errors import InputError, MlfcError, ModelError, OptionError, ProblemsError, ToolchainError, unknown
from mlfc.frontend import Model, import_for_run, model_bytes, model_name
from mlfc.options import ImportOptions
from mlfc.quantize.interface import FLOAT, set_integer_inputs, set_integer_outputs
from mlfc.relay.ir import TensorType, Type
from mlfc.support.atomic import check_writable, write_bytes
from mlfc.support.dims import Dim
from mlfc.support.progress import reported, stage
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.tensor_info import Array, TensorInfo
from mlfc.support.text import Displayed, html_table, sets_of_inputs
from mlfc.support.user_files import load_user_files
from mlfc.support.version import __version__
from mlfc.verify.difference import Accuracy, Labels
from mlfc.verify.inputs import iter_sets, read_labels
from mlfc.verify.media import ImageScaling
from mlfc.verify.onnxruntime import OnnxRuntimeReference
from mlfc.verify.staged import has_custom

Sets = Sequence[Mapping[str, Array]]
_SHOWN_PROBLEMS = 20
METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
"""Methods for deriving ranges from calibration data, with the names of ONNX Runtime's quantizer."""
ACTIVATIONS = {"int8": "QInt8", "uint8": "QUInt8", "int16": "QInt16"}
PRODUCER = "mlfc"
_OPSET_OF_INT16 = 21  # since this opset ONNX's QuantizeLinear supports int16; before, ONNX Runtime's operator does
_SAMPLES = 100
_COMPARED = 16  # number of input sets for which layers are compared
_DEQUANTIZED = ("_DequantizeLinear_Output", "_DequantizeLinear_Output_1")


def calibration_sets(
    data: Any, infos: Sequence[TensorInfo], samples: int | None, scaling: ImageScaling
) -> Iterator[Mapping[str, Array]]:
    """Yield at most `samples` input sets, all if None.

    Parameters
    ----------
    data : path, or iterable of mapping
        A file or folder as for ``mlfc verify --inputs``, or any iterable of arrays by input name, such as a generator.
    infos : sequence of TensorInfo
        The model's inputs, with static shapes.
    samples : int or None
    scaling : ImageScaling
        Of images and sound.

    Raises
    ------
    InputError or ProblemsError
        For data that do not match the shapes and dtypes of the inputs, or if there are none.
    """
    place = str(data) if isinstance(data, (str, Path)) else None
    found: Iterator[Mapping[str, Array]]
    if place is not None:
        found = islice((given for _, given in iter_sets(Path(place), infos, scaling)), samples)
    elif isinstance(data, Iterable) and not isinstance(data, (Mapping, np.ndarray, bytes)):
        found = iter(_checked(islice(data, samples), infos))
    else:
        raise InputError(
            f"expected a path or an iterable of arrays by input name, got {type(data).__name__}",
            place="calibration data",
            next_step="Example: [{'input': x} for x in batches]",
        )
    first = next(found, None)
    if first is None:
        raise InputError("no calibration samples found", place=place, next_step="Provide a hundred typical inputs")
    return chain((first,), found)


def _checked(sets: Iterable[Any], infos: Sequence[TensorInfo]) -> list[Mapping[str, Array]]:
    """Return sets as arrays; raise all problems at once if sets do not match the inputs."""
    problems: list[MlfcError] = []
    found: list[Mapping[str, Array]] = []
    known = {info.name: info for info in infos}
    for index, given in enumerate(sets):
        place = f"calibration set {index}"
        if not isinstance(given, Mapping):
            problems.append(InputError(f"expected arrays by input name, got {type(given).__name__}", place=place))
            continue
        problems += [InputError(unknown("input", str(name), known), place=place) for name in given if name not in known]
        arrays = {}
        for name, info in known.items():
            if name not in given:
                problems.append(InputError(f"has no input '{name}'", place=place))
                continue
            array = np.asarray(given[name])
            if array.shape != info.shape or array.dtype != info.numpy_dtype:
                problems.append(InputError(f"expected {info}, got {array.dtype}{list(array.shape)}", place=place))
            arrays[name] = array
        found.append(arrays)
        if len(problems) >= _SHOWN_PROBLEMS:
            break
    if problems:
        raise problems[0] if len(problems) == 1 else ProblemsError(problems)
    return found


@dataclass(frozen=True)
class LayerError:
    """Differences of one tensor between both models.

    Attributes
    ----------
    tensor, node, operator : str
        The name of the tensor, and the name and operator of the node that computes it.
    largest : float
        The largest magnitude in the float model.
    largest_error : float
        The largest absolute difference.
    noise_db : float
        The ratio of signal to noise in decibels, ``10 log10(sum x^2 / sum (x - y)^2)``; infinite if the tensors are
        equal.
    """

    tensor: str
    node: str
    operator: str
    largest: float
    largest_error: float
    noise_db: float


@dataclass(frozen=True, repr=False)
class QuantizedModel(Displayed):
    """The result of `quantize`.

    Attributes
    ----------
    path : Path
        The int8 model, ONNX with QuantizeLinear and DequantizeLinear.
    samples : int
        Number of input sets used for calibration.
    bytes_before, bytes_after : int
        File sizes.
    layers : tuple of LayerError
        All tensors that both models have, in the order of computation.
    outputs : tuple of LayerError
        The model's outputs among them.
    accuracy : Accuracy or None
        Only with `labels`: ``compiled`` is the int8 model, ``reference`` the float one.
    """

    path: Path
    samples: int
    bytes_before: int
    bytes_after: int
    layers: tuple[LayerError, ...]
    outputs: tuple[LayerError, ...]
    accuracy: Accuracy | None = None

    def _facts(self) -> Mapping[str, object]:
        return {"path": str(self.path), "samples": self.samples, "bytes": self.bytes_after}

    def _repr_html_(self) -> str:
        rows = [(item.tensor, item.largest, item.largest_error, item.noise_db) for item in self.layers]
        return html_table(str(self.path), ("tensor", "largest value", "largest error", "signal to noise, dB"), rows)


def quantize(
    model: Model,
    calibrate: Any,
    output: str | os.PathLike[str],
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    samples: int = _SAMPLES,
    method: str = "minmax",
    activations: str = "int8",
    per_channel: bool = True,
    exclude: Sequence[str] = (),
    inputs_dtype: str = FLOAT,
    outputs_dtype: str = FLOAT,
    evaluate: Any = None,
    labels: str | os.PathLike[str] | None = None,
    scaling: ImageScaling | None = None,
    operators: Sequence[str | os.PathLike[str]] = (),
    progress: Callable[[str], None] | bool | None = None,
) -> QuantizedModel:
    """Quantize a trained float model.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
        An ONNX model of float32.
    calibrate : path or iterable of mapping
        Typical inputs: a ``.npz`` or ``.npy`` file, a folder of such files or of images, or any iterable of arrays by
        input name.
    output : path
        The file to write.
    shapes : mapping, optional
        Shapes of dynamic inputs. A dynamic first dimension is 1 by default.
    samples : int
        Maximum number of input sets to use.
    method : str
        Method for deriving ranges from the data: ``minmax``, ``entropy`` or ``percentile``.
    activations : str
        ``int8``, ``uint8``, or ``int16``, which needs twice the memory and loses little accuracy. Weights are int8.
    per_channel : bool
        Use a scale per output channel for weights.
    exclude : sequence of str
        Nodes that stay float.
    inputs_dtype, outputs_dtype : str
        ``float32``, or the dtype of `activations`: callers then convert, ``real = scale * (value - zero_point)``.
    evaluate : path or iterable of mapping, optional
        Held-out inputs to measure the accuracy of both models, in the forms of `calibrate`. Default: `calibrate`, of
        a path all input sets.
    labels : path, optional
        The class of each of these input sets, as for `verify`; required to measure the accuracy.
    scaling : ImageScaling, optional
        Normalization of images; default: 0 to 1.
    operators : sequence of path
        Python files that declare the model's own operators, which stay float and need a NumPy reference.
    progress : callable or bool, optional
        Called with a line of text at the start of each step. True: show these on a terminal or in a notebook.

    Returns
    -------
    QuantizedModel

    Raises
    ------
    MlfcError
        If the model cannot be read, is not float or not ONNX, or the data do not fit it.

    Examples
    --------
    >>> made = mlfc.quantize("resnet.onnx", ({"input": x} for x in images), "resnet_int8.onnx")  # doctest: +SKIP
    >>> made.outputs[0].noise_db                                                                 # doctest: +SKIP
    38.2
    """
    _check_options(method, activations, (inputs_dtype, outputs_dtype), samples, (evaluate, labels))
    import onnx

    check_writable(output)
    load_user_files(operators)
    with reported(progress, partial(stage, f"quantizing {model_name(model)}")) as say:
        say("reading the model")
        data = _onnx_bytes(model)
        place = "the model" if isinstance(data, bytes) else str(data)
        infos, nodes, has_own = _examined(data, shapes, place)
        for name in exclude:
            if name not in nodes:
                raise OptionError(unknown("node", name, nodes), place="exclude")
        read = partial(calibration_sets, infos=infos, scaling=scaling or ImageScaling())
        sets = list(read(calibrate, samples=samples))
        with TemporaryFolder() as folder:
            source, prepared, made = (Path(folder, f"{title}.onnx") for title in ("model", "prepared", "int8"))
            with _named(place, "read"):
                if isinstance(data, bytes):
                    source.write_bytes(data)
                else:  # external weights may be in files beside it
                    onnx.save(onnx.load(data), source)
            say("folding constants")
            with _named(place, "prepare"):
                _prepare(source, prepared, activations, has_own=has_own)
            say(f"calibrating with {sets_of_inputs(len(sets))}")
            with _named(place, "quantize"):
                _quantize(prepared, made, sets, (method, activations, per_channel), exclude, has_own=has_own)
            say("comparing every layer")
            layers, outputs = _layer_errors(prepared, made, sets)
            accuracy = None
            if labels is not None:
                say("measuring the accuracy")
                held_out = calibrate if evaluate is None and isinstance(calibrate, (str, Path)) else evaluate
                given = sets if held_out is None else read(held_out, samples=None)
                accuracy = _accuracy(prepared, made, given, Path(labels))
            content = _with_interface(made, activations, inputs_dtype, outputs_dtype, place)
            write_bytes(output, content)
            return QuantizedModel(
                Path(output), len(sets), source.stat().st_size, len(content), layers, outputs, accuracy
            )


def _check_options(
    method: str, activations: str, dtypes: tuple[str, str], samples: int, evaluated: tuple[Any, Any]
) -> None:
    for name, value, known in (("method", method, METHODS), ("activations", activations, ACTIVATIONS)):
        if value not in known:
            raise OptionError(unknown(name, value, known), place=name)
    for name, value in zip(("inputs_dtype", "outputs_dtype"), dtypes, strict=True):
        if value not in (FLOAT, activations):
            raise OptionError(f"expected {FLOAT} or {activations}, the dtype of activations, got '{value}'", place=name)
    if samples < 1:
        raise OptionError(f"expected at least one sample, got {samples}", place="samples")
    if evaluated[0] is not None and evaluated[1] is None:
        raise OptionError(
            "option evaluate requires labels",
            place="evaluate",
            next_step="Add the class of each input set: --labels FILE",
        )


def _onnx_bytes(model: Model) -> bytes | Path:
    """Return an ONNX model's bytes or file; raise OptionError for a TFLite model."""
    data = model_bytes(model)
    found = Path(model) if data is None else data  # type: ignore[arg-type]  # a path
    start = data or b""
    if isinstance(found, Path) and found.is_file():
        with found.open("rb") as file:
            start = file.read(8)
    if start[4:8] == b"TFL3":
        raise OptionError(
            "quantizing requires an ONNX model; TensorFlow's converter quantizes for TFLite",
            place=str(found) if isinstance(found, Path) else None,
            next_step="Set converter.optimizations = [tf.lite.Optimize.DEFAULT] and converter.representative_dataset",
        )
    return found


def _examined(
    model: bytes | Path, shapes: Mapping[str, Sequence[int]] | None, place: str
) -> tuple[list[TensorInfo], list[str], bool]:
    """Return the inputs of a model with static shapes, its nodes' names, and whether one is of an own operator."""
    import onnx

    module, params = import_for_run(model, ImportOptions(shapes=shapes, dynamic=True))
    infos = [_fixed(var.name, var.type, place) for var in module.main.params if var.name not in params]
    if not any(np.dtype(array.dtype).kind == "f" and array.ndim > 1 for array in params.values()):
        raise InputError(
            "the model has no float weights to quantize",
            place=place,
            next_step="Compile it without quantization",
        )
    known = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model, load_external_data=False)
    return infos, [node.name for node in known.graph.node if node.name], has_custom(known)


def _fixed(name: str, kind: Type, place: str) -> TensorInfo:
    if not isinstance(kind, TensorType):
        raise InputError(f"expected inputs that are tensors, got '{name}' of {kind}", place=place)
    extents = tuple(1 if axis == 0 and isinstance(extent, Dim) else extent for axis, extent in enumerate(kind.shape))
    if any(isinstance(extent, Dim) for extent in extents):
        shown = ",".join("N" if isinstance(extent, Dim) else str(extent) for extent in extents)
        raise InputError(
            f"the shape of the input '{name}' is dynamic: {', '.join(map(str, kind.shape))}",
            place=place,
            next_step=f"Specify the shape of the calibration data: --shape {name}={shown}",
        )
    return TensorInfo(name, tuple(int(extent) for extent in extents), kind.dtype)


def _prepare(source: Path, path: Path, activations: str, *, has_own: bool) -> None:
    """Write the model in the form that the quantizer requires: constants and normalization folded, shapes inferred.

    ONNX Runtime cannot fold in a model that has own operators.
    """
    import onnx
    from onnx import version_converter

    _quantizer().shape_inference.quant_pre_process(
        str(source), str(path), skip_optimization=has_own, skip_symbolic_shape=True
    )
    if activations != "int16":
        return
    known = onnx.load(path)
    if next(item.version for item in known.opset_import if item.domain in ("", "ai.onnx")) < _OPSET_OF_INT16:
        onnx.save(version_converter.convert_version(known, _OPSET_OF_INT16), path)


@contextmanager
def _named(place: str, work: str) -> Iterator[None]:
    """Convert exceptions of ONNX Runtime to ModelError, with the user's name of the model."""
    try:
        yield
    except MlfcError:
        raise
    except Exception as error:  # exceptions of ONNX Runtime, onnx and protobuf have no common class
        raise ModelError(f"ONNX Runtime cannot {work} the model: {error}", place=place) from error


def _quantizer() -> Any:
    try:
        import onnxruntime.quantization
        import onnxruntime.quantization.shape_inference
    except ImportError as error:
        raise ToolchainError(
            f"ONNX Runtime's quantizer is not installed: {error}",
            next_step='Install it in a checkout of mlfc: pip install ".[quantize]"',
        ) from None
    return onnxruntime.quantization


def _quantize(
    source: Path, path: Path, sets: Sets, how: tuple[str, str, bool], exclude: Sequence[str], *, has_own: bool
) -> None:
    quantization = _quantizer()
    method, activations, per_channel = how
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # its advice has already been followed
    base = quantization.calibrate.CalibraterBase
    opens = base.create_inference_session

    def opened(calibrator: Any) -> None:
        calibrator.infer_session = OnnxRuntimeReference(calibrator.augmented_model_path).session

    if has_own:
        base.create_inference_session = opened
    try:
        quantization.quantize_static(
            str(source),
            str(path),
            _reader(quantization, sets),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=per_channel,
            activation_type=getattr(quantization.QuantType, ACTIVATIONS[activations]),
            weight_type=quantization.QuantType.QInt8,
            nodes_to_exclude=list(exclude),
            calibrate_method=getattr(quantization.CalibrationMethod, METHODS[method]),
            extra_options={"ActivationSymmetric": activations == "int16", "DefaultTensorType": 1},
        )
    finally:
        base.create_inference_session = opens
        logger.setLevel(level)


def _reader(quantization: Any, sets: Sets) -> Any:
    class CalibrationReader(quantization.CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        def __init__(self) -> None:
            self._left = iter(sets)

        def get_next(self) -> Any:
            given = next(self._left, None)
            return None if given is None else dict(given)

    return CalibrationReader()


@dataclass
class _Sums:
    largest: float = 0.0
    error: float = 0.0
    signal: float = 0.0
    noise: float = 0.0

    def add(self, ours: Array, exact: Array) -> None:
        x, y = exact.astype(np.float64), ours.astype(np.float64)
        if x.size:
            self.largest = max(self.largest, float(np.abs(x).max()))
            self.error = max(self.error, float(np.abs(x - y).max()))
            self.signal += float(np.square(x).sum())
            self.noise += float(np.square(x - y).sum())

    def result(self, node: Any, name: str) -> LayerError:
        ratio = self.signal / self.noise if self.noise else math.inf
        noise_db = 10 * math.log10(ratio) if ratio else -math.inf
        return LayerError(name, node.name, node.op_type, self.largest, self.error, noise_db)


def _with_interface(made: Path, activations: str, inputs_dtype: str, outputs_dtype: str, place: str) -> bytes:
    """Return the quantized model with the dtypes of its inputs and outputs, and mlfc as its producer."""
    import onnx

    model = onnx.load(made)
    if inputs_dtype != FLOAT:
        set_integer_inputs(model, activations, place)
    if outputs_dtype != FLOAT:
        set_integer_outputs(model, activations, place)
    model.producer_name, model.producer_version = PRODUCER, __version__
    data: bytes = model.SerializeToString()
    return data


def _layer_errors(
    float_model: Path, int8_model: Path, sets: Sets
) -> tuple[tuple[LayerError, ...], tuple[LayerError, ...]]:
    """Run both models; return the differences of all layers and of the outputs."""
    import onnx

    graph = onnx.load(float_model, load_external_data=False).graph
    makers = {name: node for node in graph.node for name in node.output if name}
    outputs = [item.name for item in graph.output]
    sums: dict[str, _Sums] = {}
    exact, ours = (OnnxRuntimeReference(path, layers=True) for path in (float_model, int8_model))
    for given in sets[:_COMPARED]:
        wanted, found = exact.run(given), ours.run(given)
        for name, value in wanted.items():
            other = _dequantized(found, name)
            if other is not None and other.shape == value.shape and value.dtype.kind == "f":
                sums.setdefault(name, _Sums()).add(other, value)
    ordered = [name for name in makers if name in sums]
    layers = tuple(sums[name].result(makers[name], name) for name in ordered)
    return layers, tuple(item for item in layers if item.tensor in outputs)


def _accuracy(float_model: Path, int8_model: Path, sets: Iterable[Mapping[str, Array]], labels: Path) -> Accuracy:
    """Run both models on input sets whose classes are in the file `labels`."""
    import onnx

    outputs = onnx.load(float_model, load_external_data=False).graph.output
    if not outputs:
        raise InputError("the model has no output that could be a class", place=str(labels))
    counted, count = Labels(read_labels(labels), outputs[0].name), 0
    exact, ours = OnnxRuntimeReference(float_model), OnnxRuntimeReference(int8_model)
    for given in sets:
        counted.count(ours.run(given), exact.run(given))
        count += 1
    read_labels(labels, count)  # one for each input set
    return counted.accuracy


def _dequantized(found: Mapping[str, Array], name: str) -> Array | None:
    """Return a tensor as later layers read it: quantized and dequantized if the model does that."""
    return next((found[key] for key in (*(f"{name}{end}" for end in _DEQUANTIZED), name) if key in found), None)

"""Importers from all supported model formats to a Relay module and its parameters."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from mlfc.errors import InputError, LimitError, MlfcError, ModelError, OptionError, ProblemsError, unknown
from mlfc.frontend.shapes import has_open_extents, leaves_to_run
from mlfc.frontend.torch import Captured, is_torch_model
from mlfc.objfile.head import machine_code
from mlfc.options import ImportOptions
from mlfc.support.cost import limited
from mlfc.support.keywords import with_keywords
from mlfc.support.plain_file import open_plain
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.text import model_title
from mlfc.support.user_files import load_user_files
from mlfc.target.target import PORTABLE, parse_target

if TYPE_CHECKING:
    from mlfc.frontend.common import Census, Params, Values
    from mlfc.relay.ir import IRModule

__all__ = ["Model", "import_for_run", "import_model", "model_bytes", "model_file", "model_name", "opened", "read_model"]


@runtime_checkable
class Message(Protocol):
    """A protobuf message, such as ``onnx.ModelProto``."""

    def SerializeToString(self) -> bytes:  # noqa: N802
        """Return the serialized bytes."""


class TorchModel(Protocol):
    """A ``torch.nn.Module``, ``torch.export.ExportedProgram`` or ``torch.onnx.ONNXProgram``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""


Model: TypeAlias = "str | Path | bytes | Message | TorchModel | Captured"

Options = TypeVar("Options", bound=ImportOptions)
NUMERICS = ("litert", "tflm")
_SIZE_LIMIT = (1 << 31) - 1
_RELAY_TEXT = b"#[version"
_TAR_MAGIC = slice(257, 262)
_COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ\x00")
# Files of other frameworks are recognized but never opened: PyTorch's and Keras's readers can run code in a file.
_ZIP, _PICKLE, _HDF5 = b"PK\x03\x04", b"\x80", b"\x89HDF\r\n\x1a\n"
_ORT = b"ORTM"  # the identifier of ONNX Runtime's flatbuffers
_PICKLE_PROTOCOLS = range(2, 6)
_SAFETENSORS_HEAD = 8
# bytes to search for member names of a zip file: the first name is at the start, the directory is at the end
_HEAD, _TAIL = 4096, 1 << 20

_MODULE = "In Python, pass the module itself: mlfc.compile(module, example_inputs=(x,))"
_LOAD_WEIGHTS = f"Load them into their module, module.load_state_dict(weights). {_MODULE}"
_KERAS = "Export it from Keras: model.export('model.onnx', format='onnx')"
_SKLEARN = "Convert it where it was trained: skl2onnx.to_onnx(model, x[:1]), with its first input x"
# of files whose content is not recognized
_STEPS = {
    **dict.fromkeys((".joblib", ".pkl", ".pickle"), _SKLEARN),
    **dict.fromkeys((".pt", ".pth", ".safetensors"), _LOAD_WEIGHTS),
    **dict.fromkeys((".h5", ".hdf5", ".keras"), _KERAS),
    ".pb": "Convert it to TFLite (tf.lite.TFLiteConverter.from_saved_model) or ONNX (tf2onnx)",
}
_MEMBERS = (
    (
        (b"/archive_format", b"/models/"),
        "a program that torch.export saved, which is not opened: reading one can run code that it contains",
        "If you trust it, load it in Python: mlfc.compile(torch.export.load('model.pt2'))",
    ),
    (
        (b"/code/__torch__",),
        "a TorchScript module, which torch.export does not take",
        f"Use the module that it was made from. {_MODULE}",
    ),
    ((b"/data.pkl",), "a file of torch.save: weights or pickled objects, without a graph", _LOAD_WEIGHTS),
    ((b"model.weights.h5",), "a Keras model", _KERAS),
)


@with_keywords(ImportOptions)
def import_model(model: Model, options: ImportOptions) -> tuple[IRModule, Params]:
    """Import a TFLite, ONNX or Relay text model, whose format is detected from its content, or a PyTorch module.

    Parameters
    ----------
    model : str, Path, bytes, onnx.ModelProto, torch.nn.Module, ExportedProgram or ONNXProgram
        A file, its content, a model loaded by the onnx package, or a PyTorch module or program. Only a model passed as
        a file may refer to other files beside it. A module is captured in inference mode and is not modified; buffers
        that its ``forward`` writes become states.

    Returns
    -------
    module : IRModule
        The parameters of its ``main`` are the model's inputs, followed by its weights.
    params : dict of str to ndarray
        The weights by parameter name.

    Raises
    ------
    ModelError
        If the file cannot be read as a model.
    UnsupportedError
        If the model contains something that cannot be compiled.
    LimitError
        If compiling it would exceed the cost limits.
    ProblemsError
        If it has several such faults.

    Examples
    --------
    >>> import_model(b"")
    Traceback (most recent call last):
    ...
    mlfc.errors.ModelError: model: the file is empty
    """
    return read_model(model, options)


def read_model(model: Model, options: ImportOptions, census: Census | None = None) -> tuple[IRModule, Params]:
    """Import a model as `import_model` does. `census` counts its nodes even if the import fails."""
    if options.numerics not in NUMERICS:
        raise OptionError(unknown("numerics", options.numerics, NUMERICS))
    load_user_files(options.operators)
    model, options = opened(model, options)
    given = model_bytes(model)
    path = Path(cast("str | Path", model)) if given is None else None
    data, title = _content(path) if path else given or b"", options.name or model_name(model)
    try:
        with limited(len(data), 0, options.limit_factor):
            module, params = _dispatch(data, title, path.parent if path else None, options, census)
            if options.states or options.state_init is not None:
                from mlfc.frontend.common import tie_states

                module = tie_states(module, params, options.states, options.state_init)
            return replace(module, numerics=options.numerics, byoc=tuple(options.byoc)), params
    except MlfcError as error:
        if path:
            # show the user's path instead of the title, the only name that importers know
            place = (error.place or title).removeprefix(f"{title}, ").removeprefix(f"{title}:")
            error.place = str(model) if place == title else f"{model!s}: {place}"
            if "not an ONNX model" in error.cause:
                error.next_step = _STEPS.get(path.suffix.lower(), error.next_step)
        raise


def import_for_run(
    model: Model, options: ImportOptions, executor: str | None = None, census: Census | None = None
) -> tuple[IRModule, Params]:
    """Import a model as dynamic if the executor and target support that, and as static if the dynamic import fails.

    If both fail, the error is that of the static import, which suggests shapes, and its cause is that of the dynamic
    one. Where static shapes cannot help (an input is a sequence, or none of the shapes tried fits), the error is that
    of the dynamic import, which names the node.
    """
    model, options = opened(model, options)
    if not (options.dynamic or leaves_to_run(executor, options.target or PORTABLE, options.shapes)):
        return read_model(model, options, census)
    counted = None if census is None else replace(census)
    try:
        found = read_model(model, replace(options, dynamic=True), counted)
        if census is not None:
            vars(census).update(vars(counted))
        return found
    except (OptionError, LimitError):
        raise
    except MlfcError as refusal:
        given = (options.shapes or {}).values()
        # the options contain dynamic dimensions, so a static import is not possible
        if refusal.remedies or any(not isinstance(extent, int) for shape in given for extent in shape):
            raise
        try:
            return read_model(model, replace(options, dynamic=False), census)
        except MlfcError as error:
            from mlfc.frontend.common import NoFittingShapesError, NoTensorError

            problems = error.problems if isinstance(error, ProblemsError) else (error,)
            if any(isinstance(problem, (NoTensorError, NoFittingShapesError)) for problem in problems):
                if census is not None:
                    vars(census).update(vars(counted))
                raise refusal from error
            raise error from refusal


def opened(model: Model, options: Options) -> tuple[Model, Options]:
    """Capture a PyTorch model, and add its shapes and states to the options; return other models unchanged.

    Raises
    ------
    OptionError
        For example inputs of a model that is not from PyTorch, or packages that are not installed.
    """
    examples = [name for name in ("example_inputs", "dynamic_shapes") if getattr(options, name) is not None]
    if is_torch_model(model):
        try:
            from mlfc.frontend.torch.capture import capture
        except ModuleNotFoundError as error:
            raise OptionError(
                f"compiling PyTorch models requires the package {error.name}, which is not installed",
                next_step="Install it in a checkout of mlfc: pip install '.[torch]'",
            ) from error
        model = capture(model, options.example_inputs, options.dynamic_shapes)
        options = replace(options, example_inputs=None, dynamic_shapes=None)
    elif examples:
        raise OptionError(
            f"option {examples[0]} requires a torch.nn.Module, got {_kind(model)}",
            next_step=f"Remove {examples[0]}; shapes={{'input': (1, 3, 224, 224)}} fixes dynamic dimensions of a file",
        )
    if isinstance(model, Captured):
        options = replace(options, shapes={**model.shapes, **(options.shapes or {})})
    if isinstance(model, Captured) and model.states:
        initial = options.state_init
        begin = initial if isinstance(initial, str) else {**model.state_init, **(initial or {})}
        options = replace(options, states={**model.states, **(options.states or {})}, state_init=begin or None)
    return model, options


def model_bytes(model: Model) -> bytes | None:
    """Return the bytes of an in-memory model, or None for a path.

    Raises
    ------
    InputError
        For an object that is neither.
    """
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model)
    if isinstance(model, (str, os.PathLike)):
        return None
    if isinstance(model, Captured):
        return model.data
    if isinstance(model, Message):
        try:
            return model.SerializeToString()
        except Exception as error:  # the exception type depends on protobuf's version and implementation
            raise ModelError(
                f"the onnx.ModelProto cannot be written: {error}",
                place="model",
                next_step="Pass a file with external data: onnx.save(model, path, save_as_external_data=True)",
            ) from error
    step = "Pass a file, or a torch.nn.Module with example_inputs"
    if isinstance(model, Mapping):
        step = "Load the weights into their module with module.load_state_dict(weights), and pass the module"
    elif callable(model):
        step = "Of PyTorch, pass a torch.nn.Module with example_inputs; of JAX and Keras, export to ONNX first"
    raise InputError(
        f"expected a path, bytes, an onnx.ModelProto or a torch.nn.Module, got {_kind(model)}", next_step=step
    )


@contextmanager
def model_file(model: Model) -> Iterator[Path]:
    """Yield the path of a model's file; an in-memory model is written to a temporary file.

    Errors name an in-memory model by its title, not by the temporary path.
    """
    content = model_bytes(model)
    if content is None:
        yield Path(cast("str | Path", model))
        return
    name = model_name(model)
    with TemporaryFolder() as folder:
        path = Path(folder, f"{name}.{'tflite' if content[4:8] == b'TFL3' else 'onnx'}")
        path.write_bytes(content)
        try:
            yield path
        except MlfcError as error:
            for item in (error, *getattr(error, "problems", ())):
                item.cause = item.cause.replace(str(path), name)
                item.place = item.place and item.place.replace(str(path), name)
            raise


def _kind(model: object) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"


def model_name(model: Model) -> str:
    """Return the default name of a model: its file name without the suffix, the class of a module, else ``model``."""
    if isinstance(model, Captured):
        return model.name
    return model_title(model) if isinstance(model, (str, os.PathLike)) else "model"


def _content(path: Path) -> bytes:
    """Return the bytes of a file; raise ModelError with the reason if it cannot be read."""
    place = str(path)
    try:
        if path.is_dir():
            step = "Convert a SavedModel first: tf.lite.TFLiteConverter.from_saved_model(folder).convert()"
            is_saved = (path / "saved_model.pb").is_file()
            raise ModelError("expected a model file, got a folder", place=place, next_step=step if is_saved else None)
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > _SIZE_LIMIT:
                raise ModelError(
                    f"the file has {size} bytes, more than the {_SIZE_LIMIT} that a model file can have",
                    place=place,
                    next_step="Save ONNX weights as external data",
                )
            return file.read()
    except FileNotFoundError:
        raise ModelError("file not found", place=place) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ModelError(f"the file cannot be read: {reason}", place=place[:200]) from None


def _dispatch(
    data: bytes, name: str, folder: Path | None, options: ImportOptions, census: Census | None
) -> tuple[IRModule, Params]:
    dynamic = options.dynamic or has_open_extents(options.shapes or {})
    common: dict[str, Any] = {"shapes": options.shapes, "values": options.values, "census": census, "dynamic": dynamic}
    if not data:
        raise ModelError("the file is empty", place=name)
    if data[4:8] == b"TFL3":
        from mlfc.frontend.tflite import import_tflite

        return import_tflite(data, name, numerics=options.numerics, signature=options.signature, **common)
    if options.signature is not None:
        raise OptionError("only TFLite models have signatures", place="signature")
    if data.lstrip().startswith(_RELAY_TEXT):
        return _relay_text(data, name, options.values or {})
    if data[_TAR_MAGIC] == b"ustar" or data.startswith(_COMPRESSED):
        raise ModelError(
            "expected a model, got an archive or a tar of objects",
            place=name,
            next_step="Run it directly, or recompile an archive with: mlfc compile ARCHIVE",
        )
    code = machine_code(data)
    if code is not None:
        raise ModelError(f"expected a model, got {code}", place=name, next_step="Use the model it was compiled from")
    if (foreign := _recognized(data)) is not None:
        cause = f"expected a TFLite, ONNX or Relay text model, got {foreign[0]}"
        raise ModelError(cause, place=name, next_step=foreign[1])
    from mlfc.frontend.onnx import import_onnx

    on_host = options.target is None or not parse_target(options.target).features.is_microcontroller
    external = "onnxruntime" in options.byoc
    return import_onnx(data, name, folder=folder, external=external, on_host=on_host, **common)


def _recognized(data: bytes) -> tuple[str, str] | None:
    """Return the description of a recognized framework file, and the next step for the user."""
    if data.startswith(_ZIP):
        names = data[:_HEAD] + data[-_TAIL:]
        for marks, what, step in _MEMBERS:
            if all(mark in names for mark in marks):
                return what, step
        return "a zip file", "Unpack it, and use the model that it contains"
    if data.startswith(_PICKLE) and data[1:2] and data[1] in _PICKLE_PROTOCOLS:
        step = _SKLEARN if b"sklearn" in data else _LOAD_WEIGHTS
        return "a Python pickle, which is not opened: reading one can run code that it contains", step
    if data.startswith(_HDF5):
        return "an HDF5 file, such as Keras writes", _KERAS
    if data[4:8] == _ORT:
        return "a model in ONNX Runtime's own format", "Use the ONNX model that it was converted from"
    length = int.from_bytes(data[:_SAFETENSORS_HEAD], "little")
    if data[_SAFETENSORS_HEAD : _SAFETENSORS_HEAD + 2] == b'{"' and length <= len(data) - _SAFETENSORS_HEAD:
        return "a safetensors file: weights without a graph", _LOAD_WEIGHTS
    return None


def _relay_text(data: bytes, name: str, values: Values) -> tuple[IRModule, Params]:
    from mlfc.frontend.common import frozen_input
    from mlfc.relay.ir import tensor_type
    from mlfc.relay.text import from_text

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"Relay text must be UTF-8: {error.reason} at byte {error.start}", place=name) from None
    module = from_text(text, name)
    known = {param.name: tensor_type(param) for param in module.main.params} if values else {}
    missing = sorted(set(values) - set(known))
    if missing:
        raise OptionError(unknown("input", missing[0], known), place="values")
    frozen = {item: frozen_input(value, item, known[item].dtype, known[item].shape) for item, value in values.items()}
    return replace(module, frozen=frozen), frozen

"""Importers: a model file, whatever its format, becomes a Relay module and its parameters."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

from mlfc.errors import (
    InputError,
    LimitError,
    MlfcError,
    ModelError,
    OptionError,
    ProblemsError,
    unknown,
)
from mlfc.frontend.captured import Captured
from mlfc.frontend.foreign import check_foreign
from mlfc.frontend.shapes import has_open_extents
from mlfc.frontend.torch import is_torch_model
from mlfc.objfile.head import machine_code
from mlfc.support.cost import limited
from mlfc.support.plain_file import open_plain
from mlfc.support.temporary import TemporaryFolder
from mlfc.target.target import parse_target

if TYPE_CHECKING:
    import numpy.typing as npt

    from mlfc.frontend.common import Census, Params, Values
    from mlfc.relay.ir import IRModule

__all__ = ["Model", "import_for_run", "import_model", "model_bytes", "model_file", "model_name", "opened"]


@runtime_checkable
class Message(Protocol):
    """A protobuf message: an ``onnx.ModelProto``."""

    def SerializeToString(self) -> bytes:  # noqa: N802
        """Return its bytes."""


class TorchModel(Protocol):
    """A ``torch.nn.Module``, ``torch.export.ExportedProgram`` or ``torch.onnx.ONNXProgram``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it."""


Model: TypeAlias = "str | Path | bytes | Message | TorchModel | Captured"

NUMERICS = ("litert", "tflm")
_SIZE_LIMIT = (1 << 31) - 1
_RELAY_TEXT = b"#[version"
_TAR_MAGIC = slice(257, 262)
_COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ\x00")


def import_model(
    model: Model,
    *,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, npt.ArrayLike] | None = None,
    states: Mapping[str, str] | None = None,
    state_init: Mapping[str, npt.ArrayLike] | str | None = None,
    numerics: str = "litert",
    signature: str | None = None,
    name: str | None = None,
    byoc: Sequence[str] = (),
    target: str | None = None,
    limit_factor: float = 1.0,
    census: Census | None = None,
    dynamic: bool = False,
) -> tuple[IRModule, Params]:
    """Import a TFLite, ONNX or Relay text model, whose content says which it is, or a PyTorch module.

    Parameters
    ----------
    model : str, Path, bytes, onnx.ModelProto, torch.nn.Module, ExportedProgram or ONNXProgram
        A file, its content, what the onnx package loaded, or a module or program of PyTorch. Only a model given as a
        file may refer to other files beside it. A module is captured as it infers, and left as it was; buffers that its
        ``forward`` writes become states.
    example_inputs : tuple, mapping, Tensor or ndarray, optional
        What the ``forward`` of a PyTorch module takes, by position or by name: shapes and dtypes of the inputs.
    dynamic_shapes : tuple or mapping, optional
        Dimensions of a PyTorch module's inputs that stay open, as `torch.export.export` takes them; names and bounds of
        each ``torch.export.Dim`` are kept. Only the executor ``vm`` runs such a module.
    shapes : dict of str to sequence of int, optional
        Shapes of inputs whose dimensions the model leaves open.
    values : dict of str to array_like, optional
        Inputs that are known now: each becomes a constant of its dtype, and what follows from it alone is computed at
        once. One number fills an input, a list has its elements in order. Of a quantized input: its integers.
    states : dict of str to str, optional
        Inputs, and for each the output that is its value in the next run: ``{"h_in": "h_out"}``. The compiled model
        keeps them to itself. Variables of TFLite models are states without being named.
    state_init : dict of str to array_like, or ``zeros``, optional
        What states begin with, by the names of the inputs or variables. Default: what the model says, or zeros.
    numerics : str
        Whose integer rounding TFLite models follow: ``litert`` or ``tflm``.
    signature : str, optional
        The signature of a TFLite model to import; default: the first subgraph.
    name : str, optional
        What to call the model; default: the file's name without suffix, or ``model``.
    byoc : sequence of str
        External code generators that take what they can of the model before the compiler does, in this order. With
        ``onnxruntime``, ONNX nodes that cannot be compiled are kept for it.
    target : str, optional
        What the model is to be compiled for, if that is known: messages then offer only what works there.
    limit_factor : float
        Multiplies the limits of what a model may cost beyond the size of its file; see `mlfc.support.cost`.
    census : Census, optional
        Counts the model's nodes, also where the import fails.
    dynamic : bool
        Leave to the run what only it decides: dimensions that an ONNX model leaves open, shapes that follow from data,
        branches and loops. Only the executor ``vm`` runs such a module. `shapes` may have an `mlfc.Dim`, or (name, low,
        high), in the place of a number; then this need not be set.

    Returns
    -------
    module : IRModule
        Its ``main`` takes the model's inputs, then its weights.
    params : dict of str to ndarray
        The weights by parameter name.

    Raises
    ------
    ModelError
        If the file cannot be read as a model.
    UnsupportedError
        If the model asks for something that cannot be compiled.
    LimitError
        If it costs more than the limits allow.
    ProblemsError
        If there are several such faults.

    Examples
    --------
    >>> import_model(b"")
    Traceback (most recent call last):
    ...
    mlfc.errors.ModelError: model: the file is empty
    """
    if numerics not in NUMERICS:
        raise OptionError(unknown("numerics", numerics, NUMERICS))
    model = opened(model, example_inputs, dynamic_shapes)
    if isinstance(model, Captured):
        states, state_init = model.with_own(states, state_init)
        shapes, dynamic = {**model.shapes, **(shapes or {})}, dynamic or bool(model.shapes)
    dynamic = dynamic or has_open_extents(shapes or {})
    given = model_bytes(model)
    path = Path(cast("str | Path", model)) if given is None else None
    data, title = _content(path) if path else given or b"", name or model_name(model)
    try:
        with limited(len(data), 0, limit_factor):
            folder = path.parent if path else None
            options = {"shapes": shapes, "values": values, "census": census, "dynamic": dynamic}
            module, params = _dispatch(data, title, folder, numerics, signature, byoc, target, options)
            if states or state_init is not None:
                from mlfc.frontend.states import tie_states

                module = tie_states(module, params, states, state_init)
            return replace(module, numerics=numerics, byoc=tuple(byoc)), params
    except MlfcError as error:
        if path:
            error.place = _place_in_file(error.place, title, str(model))
        raise


def import_for_run(
    model: Model, *, dynamic: bool, census: Census | None = None, **options: Any
) -> tuple[IRModule, Params]:
    """Import a model with what only the run decides, or with fixed shapes where it is refused otherwise.

    `dynamic` and `options` are as for `import_model`. An error is that of static shapes, which suggests shapes that
    fit; its cause is that of dynamic ones. Where static shapes do not help, because a sequence has none or none that
    was tried fits, the error is that of dynamic shapes, which names the node.
    """
    if not dynamic:
        return import_model(model, census=census, **options)
    counted = None if census is None else replace(census)
    try:
        found = import_model(model, dynamic=True, census=counted, **options)
        if census is not None:
            vars(census).update(vars(counted))
        return found
    except (OptionError, LimitError):
        raise
    except MlfcError as refusal:
        given = (options.get("shapes") or {}).values()
        # what only the run knows of a sequence has no fixed shape
        if refusal.remedies or any(not isinstance(extent, int) for shape in given for extent in shape):
            raise
        try:
            return import_model(model, census=census, **options)
        except MlfcError as error:
            from mlfc.frontend.common import NoFittingShapesError, NoTensorError

            problems = error.problems if isinstance(error, ProblemsError) else (error,)
            if any(isinstance(problem, (NoTensorError, NoFittingShapesError)) for problem in problems):
                if census is not None:
                    vars(census).update(vars(counted))
                raise refusal from error
            raise error from refusal


def opened(model: Model, example_inputs: Any = None, dynamic_shapes: Any = None) -> Model:
    """Return what was captured of a PyTorch model; any other model as it is.

    Raises
    ------
    OptionError
        For example inputs of what is no PyTorch module, or packages that are not installed.
    """
    if is_torch_model(model):
        try:
            from mlfc.frontend.torch.capture import capture
        except ModuleNotFoundError as error:
            raise OptionError(
                f"compiling PyTorch models requires the package {error.name}, which is not installed",
                next_step="Install it: pip install 'mlfc[torch]'",
            ) from error
        return capture(model, example_inputs, dynamic_shapes)
    if example_inputs is not None or dynamic_shapes is not None:
        option = "example_inputs" if example_inputs is not None else "dynamic_shapes"
        raise OptionError(
            f"option {option} requires a torch.nn.Module, got {_kind(model)}",
            next_step=f"Remove {option}; shapes={{'input': (1, 3, 224, 224)}} fixes shapes that a file leaves open",
        )
    return model


def model_bytes(model: Model) -> bytes | None:
    """Return the bytes of a model that is not in a file; None for a path.

    Raises
    ------
    InputError
        For what is neither.
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
        except Exception as error:  # of several kinds, by protobuf's version and implementation
            raise ModelError(
                f"the onnx.ModelProto cannot be written: {error}",
                place="model",
                next_step="Pass a file with external data: onnx.save(model, path, save_as_external_data=True)",
            ) from error
    step = "Pass a file, or a torch.nn.Module with example_inputs"
    if isinstance(model, Mapping):
        step = "Weights alone are no model: load them into their module, module.load_state_dict(weights), and pass that"
    elif callable(model):
        step = "Of PyTorch, pass a torch.nn.Module with example_inputs; of JAX and Keras, export to ONNX first"
    raise InputError(
        f"expected a path, bytes, an onnx.ModelProto or a torch.nn.Module, got {_kind(model)}", next_step=step
    )


@contextmanager
def model_file(model: Model) -> Iterator[Path]:
    """Yield a model's file; of one that is in memory a temporary one, which errors call by the model's name."""
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
    """Return what a model is called by default: its file's name without suffix, a module's class, else ``model``."""
    if isinstance(model, Captured):
        return model.name
    return Path(model).stem if isinstance(model, (str, os.PathLike)) else "model"


def _place_in_file(place: str | None, title: str, path: str) -> str:
    """Return where a fault is by the path that the user gave; importers know only the model's title."""
    if place is None or place == title:
        return path
    for mark in (", ", ":"):
        place = place.removeprefix(f"{title}{mark}")
    return f"{path}: {place}"


def _content(path: Path) -> bytes:
    """Return the bytes of a file; raise ModelError that says why it cannot be read."""
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
    data: bytes,
    name: str,
    folder: Path | None,
    numerics: str,
    signature: str | None,
    byoc: Sequence[str],
    target: str | None,
    options: Mapping[str, Any],
) -> tuple[IRModule, Params]:
    if not data:
        raise ModelError("the file is empty", place=name)
    if data[4:8] == b"TFL3":
        from mlfc.frontend.tflite import import_tflite

        return import_tflite(data, name, numerics=numerics, signature=signature, **options)
    if signature is not None:
        raise OptionError("only TFLite models have signatures", place="signature")
    if data.lstrip().startswith(_RELAY_TEXT):
        return _relay_text(data, name, options["values"] or {})
    if data[_TAR_MAGIC] == b"ustar" or data.startswith(_COMPRESSED):
        raise ModelError(
            "expected a model, got an archive or a tar of objects",
            place=name,
            next_step="Run it directly, or recompile an archive with: mlfc compile ARCHIVE",
        )
    code = machine_code(data)
    if code is not None:
        raise ModelError(f"expected a model, got {code}", place=name, next_step="Use the model it was compiled from")
    check_foreign(data, name)
    from mlfc.frontend.onnx import import_onnx

    on_host = target is None or not parse_target(target).features.is_microcontroller
    external = "onnxruntime" in byoc
    return import_onnx(data, name, folder=folder, external=external, on_host=on_host, **options)


def _relay_text(data: bytes, name: str, values: Values) -> tuple[IRModule, Params]:
    import mlfc.ops  # noqa: F401  (registers the operators)
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

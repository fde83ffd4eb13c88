"""A PyTorch module in, the bytes of an ONNX model out, with the module's own names."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

import numpy as np
import onnxscript  # noqa: F401  (PyTorch's exporter requires it: one that is not installed is found here)
import torch

from mlfc.errors import MlfcError, ModelError, OptionError
from mlfc.frontend.captured import Captured
from mlfc.frontend.torch import naming
from mlfc.frontend.torch.decompositions import decomposed
from mlfc.frontend.torch.dynamic_shapes import by_argument, input_shapes, program_shapes
from mlfc.frontend.torch.refusal import check_effects, check_outputs, not_convertible, not_exportable

# the first opset with an operator for attention, which keeps its parts together
OPSET = 23
# protobuf's limit of 2 GiB, less what the rest of a graph may take
_WEIGHTS_LIMIT = (1 << 31) - (1 << 24)


def capture(model: Any, example_inputs: Any = None, dynamic_shapes: Any = None) -> Captured:
    """Capture a module as it infers; leave it as it was.

    Parameters
    ----------
    model : torch.nn.Module, torch.export.ExportedProgram or torch.onnx.ONNXProgram
    example_inputs : tuple, mapping, Tensor or ndarray, optional
        What `forward` takes, for a module only: by position, by name, or one tensor. Their shapes and dtypes become
        those of the compiled model; what is no tensor becomes a constant.
    dynamic_shapes : tuple or mapping, optional
        Dimensions that stay open, for a module only, as `torch.export.export` takes them.

    Raises
    ------
    UnsupportedError
        For what PyTorch cannot export, with the module and the line that stand in the way.
    OptionError
        For a module without example inputs, or with some of another kind.
    """
    if isinstance(model, torch.nn.Module):
        return _module(model, *_arguments(model, example_inputs), dynamic_shapes)
    if example_inputs is not None or dynamic_shapes is not None:
        option = "example_inputs" if example_inputs is not None else "dynamic_shapes"
        raise OptionError(
            f"option {option} requires a torch.nn.Module, got {type(model).__name__}",
            next_step=f"Remove {option}: the program has inputs of its own",
        )
    if isinstance(model, torch.onnx.ONNXProgram):
        if model.exported_program is not None:
            check_effects(model.exported_program, "the program")
        return Captured(_serialized(model), "model")
    check_outputs(model)
    program = _converted(model)
    check_effects(program.exported_program, "the program")
    shapes = program_shapes(model) if isinstance(model, torch.export.ExportedProgram) else {}
    return Captured(_serialized(_named(program, model)), "model", shapes=shapes)


def _module(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any = None
) -> Captured:
    name = type(module).__name__
    arguments = by_argument(module, args, kwargs, dynamic_shapes) if dynamic_shapes is not None else {}
    with _inferring(module):
        exported = _exported(module, args, kwargs, module, dynamic_shapes)
        shapes = input_shapes(exported, arguments) if arguments else {}
        check_outputs(exported)
        program = _converted(exported)
        buffers = list(dict.fromkeys(program.exported_program.graph_signature.buffers_to_mutate.values()))
        check_effects(program.exported_program, "forward", may_write_buffers=True)
        if not buffers:
            return Captured(_serialized(_named(program, exported)), name, shapes=shapes)
        # ONNX has no buffers that are written, and the exporter leaves out what becomes of them
        state = {key: module.get_buffer(key).detach().clone() for key in buffers}
        initial = {key: value.cpu().numpy() for key, value in state.items()}
        explicit = _ExplicitState(module)
        # arguments by name come last
        own = {key: spec for key, (_, spec) in arguments.items()}
        said = None
        if shapes:
            by_name = {key: own[key] for key in kwargs}
            said = (tuple(list(own.values())[: len(args)]), by_name, dict.fromkeys(state))
        exported_again = _exported(explicit, (args, kwargs, {**state}), {}, module, said)
        titles = [*naming.input_titles(exported), *buffers]
        program = _named(_converted(exported_again), exported_again, titles, buffers)
        outputs = [value.name for value in program.model.graph.outputs][-len(buffers) :]
    return Captured(
        _serialized(program),
        name,
        dict(zip(buffers, outputs, strict=True)),
        {key: value for key, value in initial.items() if value.tobytes().strip(b"\0")},
        shapes,
    )


class _ExplicitState(torch.nn.Module):  # type: ignore[misc]  # mypy does not follow imports of torch
    """A module whose buffers are passed in and out."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.add_module(naming.WRAPPED, module)
        self.training = module.training

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], state: dict[str, Any]) -> tuple[Any, list[Any]]:
        result = torch.func.functional_call(self.get_submodule(naming.WRAPPED), state, args, kwargs)
        return result, list(state.values())


def _arguments(module: torch.nn.Module, example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the named arguments of `forward`."""
    if example_inputs is None:
        raise OptionError(
            f"the torch module {type(module).__name__} requires example inputs, which fix its shapes and dtypes",
            next_step="Pass what forward takes: example_inputs=(torch.zeros(1, 3, 224, 224),)",
        )
    if isinstance(example_inputs, Mapping):
        return (), {str(key): _tensor(value) for key, value in example_inputs.items()}
    if isinstance(example_inputs, (tuple, list)):
        return tuple(map(_tensor, example_inputs)), {}
    if isinstance(example_inputs, (torch.Tensor, np.ndarray)):
        return (_tensor(example_inputs),), {}
    raise OptionError(
        f"expected example_inputs to be a tuple, a mapping or a tensor, got {type(example_inputs).__name__}",
        next_step="Pass what forward takes: example_inputs=(x, y) or {'x': x, 'y': y}",
    )


def _tensor(value: Any) -> Any:
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value


@contextmanager
def _inferring(module: torch.nn.Module) -> Iterator[None]:
    """Put a module that is in training mode into inference mode meanwhile.

    In a module that is not, parts may be in training mode on purpose.
    """
    modes = {part: part.training for part in module.modules()} if module.training else {}
    if modes:
        module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes.items():
            part.training = mode


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what PyTorch writes to standard error meanwhile: deprecations, and details of what it then raises."""
    loggers = [log for name, log in logging.root.manager.loggerDict.items() if name.partition(".")[0] == "torch"]
    handlers = {handler for log in loggers if isinstance(log, logging.Logger) for handler in log.handlers}
    levels = {handler: handler.level for handler in handlers}
    for handler in handlers:
        handler.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler, level in levels.items():
            handler.setLevel(level)


def _exported(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    user: torch.nn.Module,
    dynamic_shapes: Any = None,
) -> torch.export.ExportedProgram:
    """Return what torch.export captures of a module; `user` is the one that the caller knows."""
    try:
        with _quiet():
            return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes)
    except Exception as error:  # forward is any code
        raise not_exportable(user, error) from error


def _converted(exported: torch.export.ExportedProgram) -> torch.onnx.ONNXProgram:
    try:
        with _quiet():
            program = torch.onnx.export(
                decomposed(exported), opset_version=OPSET, dynamo=True, optimize=False, verbose=False
            )
    except MlfcError:
        raise
    except Exception as error:  # so is the lowering of an operator
        raise not_convertible(exported, error) from error
    if program is None or program.exported_program is None:
        raise ModelError("torch.onnx.export returned no program", place="torch", next_step="Install another torch")
    return program


def _named(
    program: torch.onnx.ONNXProgram,
    exported: torch.export.ExportedProgram,
    inputs: Sequence[str] = (),
    states: Sequence[str] = (),
) -> torch.onnx.ONNXProgram:
    """Give a program names that a user of the module understands, and simplify it.

    Without PyTorch's own simplification, which takes a quarter of the time, ``chunk`` leaves sequences of tensors.
    """
    graph = program.model.graph
    naming.name_inputs(graph, inputs)
    naming.name_weights(graph)
    naming.name_outputs(graph, naming.output_titles(exported, states))
    with _quiet():
        program.optimize()
    naming.name_nodes(program.model)
    return program


def _serialized(program: torch.onnx.ONNXProgram) -> bytes:
    weights = [value.const_value for value in program.model.graph.initializers.values()]
    nbytes = sum(weight.nbytes for weight in weights if weight is not None)
    if nbytes > _WEIGHTS_LIMIT:
        raise ModelError(
            f"the weights have {nbytes} bytes, more than the {_WEIGHTS_LIMIT} that an ONNX model in memory can have",
            next_step="Export it to a file, torch.onnx.export(module, inputs, 'model.onnx', external_data=True)",
        )
    data: bytes = program.model_proto.SerializeToString()
    return data

"""Capture of PyTorch modules as serialized ONNX models, with the module's own names."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import partial
from typing import Any

import numpy as np
import onnxscript  # noqa: F401  (PyTorch's exporter requires it: a missing package is reported here)
import torch
from torch._decomp.decompositions import lstm_impl
from torch.nn import functional as F  # noqa: N812  (its usual name)

from mlfc.errors import MlfcError, ModelError, OptionError, UnsupportedError
from mlfc.frontend.python_trace import line_in_trace
from mlfc.frontend.torch import Captured, naming
from mlfc.frontend.torch.dynamic_shapes import by_argument, input_shapes, program_shapes, traced_shapes
from mlfc.frontend.torch.refusal import check_effects, check_outputs, not_convertible, not_exportable

# the first opset with an attention operator, which keeps its parts together
OPSET = 23
# protobuf's limit of 2 GiB, minus space for the rest of the graph
_WEIGHTS_LIMIT = (1 << 31) - (1 << 24)


def capture(model: Any, example_inputs: Any = None, dynamic_shapes: Any = None) -> Captured:
    """Capture a module in inference mode, without modifying it.

    Parameters
    ----------
    model : torch.nn.Module, torch.export.ExportedProgram or torch.onnx.ONNXProgram
    example_inputs : tuple, mapping, Tensor or ndarray, optional
        Arguments of `forward`, only for a module: by position, by name, or a single tensor. Their shapes and dtypes
        become those of the compiled model; arguments that are not tensors become constants.
    dynamic_shapes : tuple or mapping, optional
        Dynamic dimensions, only for a module, in the format of `torch.export.export`.

    Raises
    ------
    UnsupportedError
        For a model that PyTorch cannot export, with the module and the line that prevent it.
    OptionError
        For a module without example inputs, or with example inputs of another type.
    """
    if isinstance(model, torch.nn.Module):
        return _module(model, *_arguments(model, example_inputs), dynamic_shapes)
    if example_inputs is not None or dynamic_shapes is not None:
        option = "example_inputs" if example_inputs is not None else "dynamic_shapes"
        raise OptionError(
            f"option {option} requires a torch.nn.Module, got {type(model).__name__}",
            next_step=f"Remove {option}: the program defines its inputs",
        )
    if isinstance(model, torch.onnx.ONNXProgram):
        if model.exported_program is not None:
            check_effects(model.exported_program, "the program")
        return Captured(_serialized(model), "model")
    check_outputs(model)
    program = _converted(model)
    check_effects(program.exported_program, "the program")
    return Captured(_serialized(_named(program, model)), "model", shapes=program_shapes(model))


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
        # ONNX has no mutable buffers, and the exporter drops the new values
        state = {key: module.get_buffer(key).detach().clone() for key in buffers}
        initial = {key: value.cpu().numpy() for key, value in state.items()}
        explicit = _ExplicitState(module)
        said = None
        if shapes:  # keyword arguments come last
            own = {key: spec for key, (_, spec) in arguments.items()}
            said = (tuple(own.values())[: len(args)], {key: own[key] for key in kwargs}, dict.fromkeys(state))
        exported_again = _exported(explicit, (args, kwargs, {**state}), {}, module, said)
        titles = [*traced_shapes(exported), *buffers]
        program = _named(_converted(exported_again), exported_again, titles, buffers)
        outputs = [value.name for value in program.model.graph.outputs][-len(buffers) :]
    states = dict(zip(buffers, outputs, strict=True))
    nonzero = {key: value for key, value in initial.items() if value.tobytes().strip(b"\0")}
    return Captured(_serialized(program), name, states, nonzero, shapes)


class _ExplicitState(torch.nn.Module):  # type: ignore[misc]  # mypy does not follow imports of torch
    """A module with its buffers as additional inputs and outputs."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.add_module(naming.WRAPPED, module)
        self.training = module.training

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], state: dict[str, Any]) -> tuple[Any, list[Any]]:
        result = torch.func.functional_call(self.get_submodule(naming.WRAPPED), state, args, kwargs)
        return result, list(state.values())


def _arguments(module: torch.nn.Module, example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments of `forward`."""
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
    """Switch a module in training mode to inference mode temporarily; modes of other modules are left to the user."""
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
    """Suppress PyTorch's output to standard error: deprecations, and details of errors that it raises anyway."""
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
    """Return the program that torch.export captures; `user` is the module to name in errors."""
    try:
        with _quiet():
            return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes)
    except Exception as error:  # forward may run arbitrary code
        raise not_exportable(user, error) from error


def _converted(exported: torch.export.ExportedProgram) -> torch.onnx.ONNXProgram:
    try:
        with _quiet():
            program = torch.onnx.export(
                _decomposed(exported), opset_version=OPSET, dynamo=True, optimize=False, verbose=False
            )
    except MlfcError:
        raise
    except Exception as error:  # the lowering of an operator is arbitrary code, too
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
    """Restore the user's names in a program, and simplify it; otherwise ``chunk`` leaves sequences of tensors."""
    graph = program.model.graph
    for value, title in zip(graph.inputs, inputs, strict=bool(inputs)):
        naming.claim(graph, value, title)
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


# Decompositions of operators that PyTorch's exporter cannot convert. ONNX's LSTM has no projection (``proj_size``).
# ONNX has no adaptive pooling; a window is the product of its ranges, so each dimension is pooled separately.
# torch.compile captures transformers with fused layers, torch.export captures their parts.

_LAYER = torch.ops.aten.lstm.input
# with a projection there is one weight in addition to the input's, the recurrent one and perhaps both biases
_PER_LAYER = {True: 5, False: 3}
_ATEN = torch.ops.aten
_AVERAGES = (
    _ATEN.adaptive_avg_pool1d.default,
    _ATEN.adaptive_avg_pool2d.default,
    _ATEN._adaptive_avg_pool2d.default,
    _ATEN.adaptive_avg_pool3d.default,
    _ATEN._adaptive_avg_pool3d.default,
)
_MAXIMA = (_ATEN.adaptive_max_pool1d.default, _ATEN.adaptive_max_pool2d.default, _ATEN.adaptive_max_pool3d.default)
_DIVIDED = (_ATEN.avg_pool2d.default, _ATEN.avg_pool3d.default)
_DIVISOR_AT = 6  # position in the arguments
# the exporter converts these to formulas that overflow where the operators do not
_OVERFLOWS = (_ATEN.special_erfcx.default, _ATEN.special_log_ndtr.default)
_INDICES = 1  # index in the results of a max pool
_ENCODER_LAYER = _ATEN._transformer_encoder_layer_fwd.default
_ATTENTION = _ATEN._native_multi_head_attention.default


def _decomposed(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program in which layers that PyTorch's exporter does not support are decomposed."""
    nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
    for node in nodes:
        if node.target in _OVERFLOWS:
            raise UnsupportedError(
                f"operator '{node.target}' has no ONNX equivalent that is correct for all numbers",
                place=line_in_trace(node.meta.get("stack_trace") or ""),
                next_step="Replace the operator in forward with others",
            )
    found: dict[Any, Callable[..., Any]] = {}
    if any(_projects(*node.args) for node in nodes if node.target == _LAYER):
        found[_LAYER] = _steps
    fused = {_ENCODER_LAYER: _encoder_layer, _ATTENTION: _attention}
    found |= {node.target: fused[node.target] for node in nodes if node.target in fused}
    found |= {node.target: partial(_pooled, reduce=torch.mean) for node in nodes if node.target in _AVERAGES}
    pools = (node for node in nodes if node.target in _DIVIDED)
    divided = (node for node in pools if len(node.args) > _DIVISOR_AT or "divisor_override" in node.kwargs)
    found |= {node.target: partial(_divided, node.target) for node in divided}
    maxima = [node for node in nodes if node.target in _MAXIMA]
    located = {node.target for node in maxima if any(user.args[1] == _INDICES and user.users for user in node.users)}
    found |= {node.target: _maxima for node in maxima if node.target not in located}
    return exported.run_decompositions(found) if found else exported


def _projects(_data: Any, _states: Any, weights: Any, has_biases: bool, layers: int, *rest: Any) -> bool:
    directions = 2 if rest[2] else 1
    return len(weights) == _PER_LAYER[has_biases] * layers * directions


def _steps(*args: Any) -> Any:
    return lstm_impl(*args) if _projects(*args) else NotImplemented


def _maxima(data: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    values = _pooled(data, sizes, reduce=torch.amax)
    # the indices are not used
    return values, torch.zeros_like(values, dtype=torch.int64)


def _pooled(data: torch.Tensor, sizes: Sequence[int], *, reduce: Callable[..., torch.Tensor]) -> torch.Tensor:
    """Return an adaptive pool over the last dimensions: window i of k over n elements starts at floor(i n / k).

    As in PyTorch it ends at ceil((i + 1) n / k), so that neighbours overlap unless k divides n.
    """
    for dim, count in zip(range(data.dim() - len(sizes), data.dim()), sizes, strict=True):
        extent = data.shape[dim]
        if count == 0:
            data = data.narrow(dim, 0, 0)
            continue
        if extent % count == 0:
            data = reduce(data.unflatten(dim, (count, extent // count)), dim + 1)
            continue
        ranges = [(index * extent // count, -(-(index + 1) * extent // count)) for index in range(count)]
        windows = [reduce(data.narrow(dim, start, end - start), dim, keepdim=True) for start, end in ranges]
        data = torch.cat(windows, dim)
    return data


def _divided(
    pool: Callable[..., torch.Tensor],
    data: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    counts_padding: bool = True,  # noqa: ARG001  (does not affect sums)
    divisor: int | None = None,
) -> Any:
    """Return an average pool with a custom divisor, which the exporter ignores: averages * counts / divisor."""
    if divisor is None:
        return NotImplemented
    sizes = 3 if pool is _DIVIDED[1] else 2
    kernel, padding = ([*item] * (sizes // len(item)) for item in (kernel, padding))
    steps = [*stride] * (sizes // len(stride)) if stride else kernel
    averages = pool(data, kernel, steps, padding, ceil_mode, False, None)
    for axis in range(sizes):
        dim = data.dim() - sizes + axis
        extent, count = data.shape[dim], averages.shape[dim]
        starts = torch.arange(count) * steps[axis] - padding[axis]
        numbers = (starts + kernel[axis]).clamp(max=extent) - starts.clamp(min=0)
        averages = averages * numbers.to(data.dtype).reshape([-1] + [1] * (data.dim() - 1 - dim))
    return averages / divisor


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    width: int,
    heads: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_weights: bool = True,
    mask_type: int | None = None,  # noqa: ARG001  (of the mask)
) -> Any:
    if mask is not None:  # its meaning depends on the kind, and rows that it masks entirely are specific to PyTorch
        return NotImplemented
    weights, biases = weight.split(width), bias.split(width)
    projected = [
        F.linear(data, *each).unflatten(-1, (heads, width // heads)).transpose(1, 2)
        for data, *each in zip((query, key, value), weights, biases, strict=True)
    ]
    scores = torch.matmul(projected[0], projected[1].transpose(-1, -2)) * (width // heads) ** -0.5
    scores = torch.softmax(scores, -1)
    mixed = torch.matmul(scores, projected[2]).transpose(1, 2).flatten(2)
    if not need_weights:
        scores = query.new_zeros(0)
    elif average_weights:
        scores = scores.mean(1)
    return F.linear(mixed, out_weight, out_bias), scores


def _encoder_layer(
    data: torch.Tensor,
    width: int,
    heads: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *rest: Any,
) -> Any:
    norms, ffn, mask = (rest[:2], rest[2:4]), (rest[4:6], rest[6:8]), rest[8:9]
    if mask and mask[0] is not None:
        return NotImplemented

    def feed_forward(given: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(given, *ffn[0])
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), *ffn[1])

    def attend(given: torch.Tensor) -> Any:
        return _attention(given, given, given, width, heads, weight, bias, out_weight, out_bias)[0]

    for part, norm in zip((attend, feed_forward), norms, strict=True):
        if norm_first:
            data = data + part(F.layer_norm(data, (width,), norm[0], norm[1], eps))
        else:
            data = F.layer_norm(data + part(data), (width,), norm[0], norm[1], eps)
    return data

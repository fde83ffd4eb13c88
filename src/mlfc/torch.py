"""The backend ``mlfc`` of ``torch.compile``: graphs captured by TorchDynamo are compiled for inference on this CPU.

A graph is compiled when it first runs with inputs of certain shapes, and kept for these. Weights become constants of
the code, so a graph is compiled again if its weights change. A graph that cannot be compiled runs in PyTorch, with one
warning that contains the reason; the same applies to training.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.fx.traceback import preserve_node_meta
from torch.utils import _pytree as pytree

from mlfc.compiled_model import CompiledModel
from mlfc.compiled_model import compile as compile_model
from mlfc.errors import MlfcError, OptionError, ProblemsError, UnsupportedError
from mlfc.frontend.torch.refusal import not_exportable
from mlfc.runtime.tensor.ndarray import from_dlpack
from mlfc.support.locks import ForkSafeLock

__all__ = ["FallbackWarning", "backend"]

Key: TypeAlias = tuple[object, ...]
_GROUP, _NAME = "torch_dynamo_backends", "mlfc"
_KEPT = 16  # number of versions of a graph, for different shapes and weights
_SHOWN = 3  # number of problems of a graph in a warning
# options that torch.compile determines: shapes and values are those of the inputs
_OWN = ("example_inputs", "dynamic_shapes", "shapes", "values", "states", "state_init", "executor", "specialize")
# arguments of random operators, and the values for which they draw no numbers
_DRAWS_NOTHING = {"train": False, "training": False, "dropout_p": 0.0}


class FallbackWarning(UserWarning):
    """A graph that runs in PyTorch because mlfc does not compile it."""


def backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Return a callable that runs a graph of TorchDynamo: ``torch.compile(module, backend="mlfc")`` calls this.

    Parameters
    ----------
    graph : torch.fx.GraphModule
    example_inputs : sequence
        The graph's arguments: inputs, weights, and sizes.
    options : mapping, optional
        ``fallback=False`` raises an error for graphs that cannot be compiled, instead of running them in PyTorch.
        Others are those of `mlfc.compile`: ``target``, ``tuned``, ... Kernels of larger models run on several threads
        unless ``parallel`` is False.
    mode : str, optional
        Must be None: modes are not supported.

    Raises
    ------
    OptionError
        For unknown options.
    UnsupportedError
        With ``fallback=False``, for training. Other graphs that cannot be compiled are refused when they run.
    """
    if mode is not None:
        raise OptionError(
            f"the backend 'mlfc' has no mode '{mode}'", place="mode", next_step="Omit it; use options= instead"
        )
    given = dict(options or {})
    may_fall_back = bool(given.pop("fallback", True))
    for name in _OWN:
        if name in given:
            raise OptionError(
                f"the backend 'mlfc' does not support the option '{name}', which torch.compile determines",
                place="options",
                next_step="Omit it, or compile the module with mlfc.compile",
            )
    compiled = CompiledGraph(graph, example_inputs, given, may_fall_back=may_fall_back)
    results = pytree.tree_leaves(next(iter(reversed(graph.graph.nodes))).args)
    values = [_value(item) for item in results if isinstance(item, torch.fx.Node)]
    if any(isinstance(value, torch.Tensor) and value.requires_grad for value in values):
        compiled.refuse(
            UnsupportedError(
                "its result requires gradients, but mlfc only compiles inference",
                next_step="Run it under torch.no_grad() or torch.inference_mode()",
            )
        )
        return graph.forward  # type: ignore[no-any-return]  # torch has no types here
    return compiled


class CompiledGraph:
    """A graph of TorchDynamo, compiled for each set of shapes that it runs on.

    Parameters
    ----------
    graph : torch.fx.GraphModule
    example_inputs : sequence
    options : mapping
        Options of `mlfc.compile`.
    may_fall_back : bool
        Run in PyTorch if the graph cannot be compiled.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        options: Mapping[str, Any],
        *,
        may_fall_back: bool,
    ) -> None:
        self._graph = graph
        self._options = dict(options)
        self._may_fall_back = may_fall_back
        self._names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        self._weights = [index for index, value in enumerate(example_inputs) if _is_weight(value)]
        self._inputs = sorted({*range(len(self._names))} - {*self._weights})
        self._own = [*graph.parameters(), *graph.buffers()]
        self._versions: OrderedDict[Key, _Version | None] = OrderedDict()
        self._said: set[str] = set()
        self._lock = ForkSafeLock()

    def __call__(self, *args: Any) -> Any:
        """Run the graph."""
        given = [args[index] for index in self._inputs]
        key = (
            *((value.dtype, *value.shape) if isinstance(value, torch.Tensor) else value for value in given),
            *(_state(args[index]) for index in self._weights),
            *map(_state, self._own),
        )
        with self._lock:
            if key not in self._versions:
                self._versions[key] = self._compiled(args)
                if len(self._versions) > _KEPT:
                    self._versions.popitem(last=False)
            self._versions.move_to_end(key)
            version = self._versions[key]
        return self._graph(*args) if version is None else version(args)

    @property
    def models(self) -> list[CompiledModel]:
        """The compiled models, in the order of their last use."""
        return [version.model for version in self._versions.values() if version is not None]

    def refuse(self, error: MlfcError) -> None:
        """Warn that PyTorch runs the graph, once for each reason; raise the error if falling back is disabled."""
        if not self._may_fall_back:
            raise error
        text = _reason(error)
        if text not in self._said:
            self._said.add(text)
            warnings.warn(f"PyTorch runs a graph that mlfc does not compile: {text}", FallbackWarning, stacklevel=4)

    def _compiled(self, args: Sequence[Any]) -> _Version | None:
        """Return the code for given arguments, or None if PyTorch must run the graph."""
        try:
            with torch.no_grad():
                _check_tensors(args, self._names)
                results = _Results(self._graph)
                if not results.computed:  # it only returns arguments, and views of them
                    return None
                tensors = [index for index in self._inputs if isinstance(args[index], torch.Tensor)]
                part = _CapturedGraph(self._graph, self._names, args, tensors, results.computed)
                program = _exported(part, tuple(args[index].detach() for index in tensors))
                model = compile_model(program, **self._options)
                _check_types(program, model)
                return _Version(model, tensors, results.others(args), [args[index] for index in self._weights])
        except OptionError:
            raise
        except MlfcError as error:
            self.refuse(error)
            return None


class _Version:
    """The code of a graph for given shapes and weights."""

    def __init__(
        self, model: CompiledModel, inputs: Sequence[int], others: Mapping[int, Any], weights: Sequence[Any]
    ) -> None:
        self.model = model
        self._run = model.model.run
        self._inputs = inputs
        self._others = others
        # keeps the weights and their memory alive, because versions are keyed by their addresses
        self._weights = [(weight, weight.detach()) for weight in weights]
        self._count = len(others) + len(model.outputs)

    def __call__(self, args: Sequence[Any]) -> tuple[Any, ...]:
        found = iter(self._run(*(_array(args[index]) for index in self._inputs)).values())
        others = {index: args[value] if is_own else value for index, (is_own, value) in self._others.items()}
        return tuple(others[index] if index in others else _tensor(next(found)) for index in range(self._count))


class _Results:
    """Classification of a graph's results: computed tensors, arguments, and values determined by shapes."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self._graph = graph
        nodes = list(graph.graph.nodes)
        places = {node: index for index, node in enumerate(item for item in nodes if item.op == "placeholder")}
        (self._listed,) = nodes[-1].args
        if not isinstance(self._listed, (tuple, list)):
            raise UnsupportedError(f"expected a graph that returns a tuple, got {type(self._listed).__name__}")
        memories = {_memory(_value(node)) for node in places} - {None}
        self.computed: list[int] = []
        self._sizes: list[int] = []
        views: list[str] = []
        self._others: dict[int, tuple[bool, Any]] = {}
        for index, item in enumerate(self._listed):
            if not isinstance(item, torch.fx.Node):
                self._others[index] = (False, item)
            elif item in places:
                self._others[index] = (True, places[item])
            elif not isinstance(_value(item), torch.Tensor | None):
                self._sizes.append(index)
            elif _memory(_value(item)) in memories:
                views.append(getattr(item.target, "__name__", str(item.target)))
            else:
                self.computed.append(index)
        if views and self.computed:
            raise UnsupportedError("a result shares the memory of an input", place=f"operator '{views[0]}'")

    def others(self, args: Sequence[Any]) -> dict[int, tuple[bool, Any]]:
        """Return each result that is not computed by its index: whether it is an argument, and its index or value.

        The graph must have no side effects, because sizes are taken from a run of it.
        """
        values = self._graph(*args) if self._sizes else ()
        return self._others | {index: (False, values[index]) for index in self._sizes}


class _CapturedGraph(torch.nn.Module):  # type: ignore[misc]  # mypy does not follow imports of torch
    """A graph as a module of its tensor inputs: weights are buffers, and other arguments are constants."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        names: Sequence[str],
        args: Sequence[Any],
        tensors: Sequence[int],
        computed: Sequence[int],
    ) -> None:
        super().__init__()
        self.graph_module = graph
        self._tensors, self._computed = tensors, computed
        others = {index: value for index, value in enumerate(args) if index not in tensors}
        self._buffers_at = {index: names[index] for index, value in others.items() if isinstance(value, torch.Tensor)}
        self._known = {index: value for index, value in others.items() if index not in self._buffers_at}
        for index, name in self._buffers_at.items():
            self.register_buffer(name, args[index].detach())
        self.training = False

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = self._known | dict(zip(self._tensors, given, strict=True))
        values |= {index: getattr(self, name) for index, name in self._buffers_at.items()}
        with preserve_node_meta():  # preserves the user's source lines, for messages
            results = torch.fx.Interpreter(self.graph_module).run(*(values[index] for index in range(len(values))))
        return tuple(results[index] for index in self._computed)


def _exported(part: _CapturedGraph, inputs: tuple[torch.Tensor, ...]) -> torch.export.ExportedProgram:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(part, inputs)
    except Exception as error:  # operators may run arbitrary code
        raise not_exportable(part, error) from error
    for node in program.graph.nodes:
        if node.op == "call_function" and _draws(node):
            raise UnsupportedError(f"operator '{node.target}' draws random numbers", next_step="Call module.eval()")
    return program


def _check_types(program: torch.export.ExportedProgram, model: CompiledModel) -> None:
    """Refuse a model whose types differ from the program's: ONNX represents complex numbers as pairs of floats."""
    nodes = {node.name: node for node in program.graph.nodes}
    signature = program.graph_signature
    for names, infos in ((signature.user_inputs, model.inputs), (signature.user_outputs, model.outputs)):
        values = [nodes[name].meta["val"] for name in names]
        types = [(str(value.dtype).rpartition(".")[2], tuple(value.shape)) for value in values]
        found = [(info.dtype, info.shape) for info in infos]
        if types != found:
            raise UnsupportedError(f"expected tensors of the types {types}, got {found}")


def _draws(node: torch.fx.Node) -> bool:
    """Return whether a call of an operator draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    arguments = node.target._schema.arguments
    given = {item.name: item.default_value for item in arguments}
    given |= dict(zip(given, node.args, strict=False)) | node.kwargs
    return not any(name in given and given[name] == value for name, value in _DRAWS_NOTHING.items())


def _is_weight(value: Any) -> bool:
    """Return whether an argument is a parameter or buffer of a module, which TorchDynamo marks."""
    return isinstance(value, torch.Tensor) and (
        isinstance(value, torch.nn.Parameter) or getattr(value, "_dynamo_static_input_type", None) is not None
    )


def _state(weight: torch.Tensor) -> tuple[int, int, int]:
    """Return a key that changes when a weight does; inference tensors do not count writes."""
    return id(weight), weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _value(node: torch.fx.Node) -> Any:
    """Return TorchDynamo's example of a value: a tensor without memory, a size, or None."""
    return node.meta.get("example_value")


def _memory(value: Any) -> int | None:
    """Return an identifier of the memory of a tensor in the captured graph."""
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _check_tensors(args: Sequence[Any], names: Sequence[str]) -> None:
    for value, name in zip(args, names, strict=True):
        if not isinstance(value, torch.Tensor):
            continue
        if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or value.layout != torch.strided:
            raise UnsupportedError(f"expected a dense tensor, got {type(value).__name__}, {value.layout}", place=name)
        if value.device.type != "cpu":
            raise UnsupportedError(f"expected a tensor on the CPU, got one on {value.device}", place=name)


def _array(value: torch.Tensor) -> Any:
    """Return a tensor as an array over its memory; a numpy array if numpy has the dtype, as that is faster."""
    plain = value.detach()
    try:
        return plain.numpy()
    except TypeError:
        return plain


def _tensor(array: Any) -> torch.Tensor:
    """Return an array as a tensor over its memory."""
    known = np.dtype(array.dtype).isbuiltin == 1 and array.ndim
    return torch.from_numpy(array) if known else torch.from_dlpack(from_dlpack(array))


def _reason(error: MlfcError) -> str:
    problems = error.problems if isinstance(error, ProblemsError) else (error,)
    told = [f"{item.place}: {item.cause}" if item.place else item.cause for item in problems[:_SHOWN]]
    more = len(problems) - len(told)
    return "; ".join([*told, f"and {more} more"] if more else told)


if not entry_points(group=_GROUP, name=_NAME):  # mlfc is not installed, but runs from a source folder
    torch._dynamo.register_backend(backend, name=_NAME)

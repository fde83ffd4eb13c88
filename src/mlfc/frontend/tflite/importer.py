"""TFLite importer: operators are converted in order, each by its converter; problems are collected."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlfc.errors import InputError, MlfcError, ModelError, Remedy, UnsupportedError, unknown
from mlfc.frontend.common import (
    IMAGE_SIZES,
    SEQUENCE_SIZES,
    Census,
    Params,
    Problems,
    Values,
    finish,
    frozen_input,
    numbered,
    unique_name,
)
from mlfc.frontend.dynamic import Dynamic
from mlfc.frontend.shapes import given_extent
from mlfc.frontend.tflite.node import CONVERTERS, SCALED, Batched, Node
from mlfc.frontend.tflite.schema import ModelFile, OperatorRecord, TfliteTensor, guarded, read_model
from mlfc.frontend.tflite.variables import ASSIGN, CALL_ONCE, OPERATORS, READ, Variables
from mlfc.relay.ir import Call, Constant, Expr, IRModule, Quantization, Span, TensorType, Var, tensor_type
from mlfc.relay.visitor import with_span
from mlfc.support import dtypes
from mlfc.support.cost import apart, give_nodes, spend
from mlfc.support.dims import Symbol, symbols_of

_COMPLEX = "COMPLEX64"
_OF_COMPLEX = ("COMPLEX_ABS", "REAL", "IMAG")


def import_tflite(
    data: bytes,
    name: str,
    *,
    shapes: Mapping[str, Sequence[Any]] | None = None,
    values: Values | None = None,
    numerics: str = "litert",
    census: Census | None = None,
    dynamic: bool = False,
    signature: str | None = None,
) -> tuple[IRModule, Params]:
    """Import a TFLite model; return the module, in NHWC layout, and the weights by tensor name.

    The last expression of each operator has the name of its output tensor. `name` is the model's name in messages and
    in the module's `source`. `shapes` are input shapes by name, in which a `Dim` or None is dynamic; without a shape, a
    dynamic dimension has the size in the file. Inputs with `values` become constants. `numerics` selects integer
    rounding: ``litert`` or ``tflm``. `census` counts the operators. With `dynamic`, branches, loops and data-dependent
    shapes are left to run time. `signature` selects a subgraph. Raises ModelError if the file is damaged or
    inconsistent, UnsupportedError for a model that cannot be compiled, and ProblemsError for several such problems.
    """
    problems = Problems()
    try:
        file = read_model(data, signature)
        records = [record for graph in (file, *file.branches.values()) for record in graph.operators]
        give_nodes(sum(len(record.inputs) + len(record.outputs) for record in records))
        conversion = _Conversion(file, dict(shapes or {}), dict(values or {}), numerics, census or Census())
        conversion.dynamic = Dynamic() if dynamic else None
        outputs = conversion.run(problems)
        if len(problems):
            _refuse_examples(conversion)
    except MlfcError as error:
        error.place = f"{name}, {error.place}" if error.place else name
        raise
    problems.raise_if_any(name)
    names = conversion.output_names()
    kept = conversion.variables.states(names)
    results = [*outputs, *(value for _, _, value in kept)]
    variables = [conversion.inputs[index] for index in file.inputs if index in conversion.inputs]
    variables += [begin for begin, _, _ in kept]
    open_values = conversion.dynamic
    defines = open_values.needs(open_values.frame, variables, results, frozenset()).defines if open_values else []
    source = {"format": "tflite", "sha256": hashlib.sha256(data).hexdigest(), "name": name}
    return finish(
        variables,
        results,
        [*names, *(state.output for _, state, _ in kept)],
        conversion.quantization(),
        source,
        conversion.frozen,
        [state for _, state, _ in kept],
        defines,
        open_values.functions if open_values else None,
    )


def _refuse_examples(failed: _Conversion) -> None:
    """Raise an error that suggests shapes for a successful import; exporters write 1 for dynamic dimensions."""
    file = failed.file
    inputs = [file.tensors[index] for index in file.inputs]
    names = numbered([tensor.name for tensor in inputs])
    given = {*failed.shapes, *failed.values}
    still_open = {
        name: tensor for name, tensor in zip(names, inputs, strict=True) if tensor.open_axes and name not in given
    }
    is_image = any(len(tensor.shape) >= 4 for tensor in still_open.values())
    tried = [{name: tuple(tensor.shape) for name, tensor in still_open.items()}]
    for usual in IMAGE_SIZES if is_image else SEQUENCE_SIZES:
        guess = {  # a dynamic batch is 1
            name: tuple(
                extent if axis not in tensor.open_axes else 1 if axis == 0 and len(tensor.shape) > 1 else usual
                for axis, extent in enumerate(tensor.shape)
            )
            for name, tensor in still_open.items()
        }
        if guess in tried:
            continue
        tried.append(guess)
        trial = _Conversion(file, {**failed.shapes, **guess}, failed.values, failed.numerics, Census())
        problems = Problems()
        with apart(), problems.collecting():
            trial.run(problems)
        if not len(problems):
            texts = [f"{name}={','.join(map(str, shape))}" for name, shape in guess.items()]
            remedies = [Remedy("--shape", text, is_example=True) for text in texts]
            raise InputError(
                f"dynamic dimensions of {', '.join(map(repr, guess))} must be given: the sizes in the file do not fit",
                next_step=f"Specify them, for example: {' '.join(map(str, remedies))}",
                remedies=remedies,
            )


@dataclass(eq=False)
class _Conversion:
    """State of one import: the expressions of all tensors so far."""

    file: ModelFile
    shapes: Mapping[str, Sequence[Any]]
    values: Values
    numerics: str
    census: Census
    exprs: dict[int, Expr] = field(default_factory=dict)
    inputs: dict[int, Var] = field(default_factory=dict)
    frozen: Params = field(default_factory=dict)  # inputs with a fixed value
    variables: Variables = field(default_factory=Variables)
    batched: dict[int, Batched] = field(default_factory=dict)  # data that was split into batches, by tensor index
    scope: str = ""  # label prefix of a subgraph's operators
    dynamic: Dynamic | None = None  # None unless branches and loops are left to run time
    opened: set[str] = field(default_factory=set)  # generated names of dynamic dimensions
    running: tuple[int, ...] = ()  # the subgraphs that are being converted
    constants: dict[tuple[int, int], Constant] = field(default_factory=dict)  # by subgraph and tensor index

    def run(self, problems: Problems) -> list[Expr]:
        """Convert all operators; return the expressions of the outputs that could be converted."""
        self._declare_inputs(problems)
        computed = {index for record in self.file.operators for index in record.outputs}
        for tensor in self.file.tensors:
            value = tensor.data
            if 0 in tensor.shape and tensor.dtype and tensor.index not in computed:  # an empty constant has no buffer
                value = np.zeros(tensor.shape, dtypes.to_numpy(tensor.dtype))
            if value is not None and tensor.index not in self.exprs:
                self.exprs[tensor.index] = Constant(value, tensor.name)
        with problems.collecting():
            self.variables = Variables.of(self.file, self.file.once, [var.name for var in self.inputs.values()])
            self.exprs |= self.variables.tensors()
        for record in self.file.operators:
            node, known = self._node(record), len(problems)
            with problems.collecting(), guarded(node.label):
                if record.code in OPERATORS:
                    self._use_variable(record)
                else:
                    self._convert(node)
            self.census.nodes += 1
            if len(problems) > known:
                self.census.refused += 1
                # variables stand in for its outputs, so that later operators are checked, too
                for tensor in (self.file.tensors[index] for index in record.outputs):
                    if tensor.index not in self.exprs and tensor.dtype:
                        self.exprs[tensor.index] = Var(tensor.name, TensorType(tensor.shape, tensor.dtype))
        for tensor in (self.file.tensors[index] for index in self.file.outputs):
            if tensor.type_name == _COMPLEX:
                step, place = "End the model in its real and imaginary parts", f"output '{tensor.name}'"
                problems.add(UnsupportedError("complex outputs are not supported", place=place, next_step=step))
        missing = [index for index in self.file.outputs if index not in self.exprs]
        if missing and not len(problems):
            raise ModelError(f"no operator computes the output '{self.file.tensors[missing[0]].name}'")
        return [self.exprs[index] for index in self.file.outputs if index in self.exprs]

    def _inline(self, node: Node, number: int, role: str, args: Sequence[Expr]) -> list[Expr]:
        """Return the outputs of a subgraph that an operator runs on `args`."""
        graph = self.file.branches.get(number)
        if graph is None or number in self.running:
            raise ModelError(f"unknown subgraph {number}" if graph is None else f"subgraph {number} runs itself")
        if len(args) != len(graph.inputs) or -1 in (*graph.inputs, *graph.outputs):
            raise ModelError(f"subgraph {number} has {len(graph.inputs)} inputs, got {len(args)}")
        if any(tensor.is_variable for tensor in graph.tensors):
            raise UnsupportedError(f"variables in subgraph {number} are not supported")
        spend("operators", 1, node.label)
        part = _Conversion(
            ModelFile(graph.tensors, graph.operators, graph.inputs, graph.outputs, (), self.file.branches),
            self.shapes, {}, self.numerics, Census(), variables=self.variables, scope=f"{node.label}, {role}: ",
            running=(*self.running, number), constants=self.constants, dynamic=self.dynamic,
        )  # fmt: skip
        for tensor in graph.tensors:
            if tensor.data is not None:
                known = self.constants.setdefault((number, tensor.index), Constant(tensor.data, tensor.name))
                part.exprs[tensor.index] = known
        for index, arg in zip(graph.inputs, args, strict=True):
            part._check(graph.tensors[index], arg)
            part.exprs[index] = arg
        for record in graph.operators:
            inner = part._node(record)
            with guarded(inner.label):
                if record.code in OPERATORS:
                    raise UnsupportedError(f"{record.code} is not supported in a subgraph that {node.record.code} runs")
                part._convert(inner)
        missing = [graph.tensors[index].name for index in graph.outputs if index not in part.exprs]
        if missing:
            raise ModelError(f"no operator of subgraph {number} computes its output '{missing[0]}'")
        return [part.exprs[index] for index in graph.outputs]

    def _declare_inputs(self, problems: Problems) -> None:
        tensors = [self.file.tensors[index] for index in self.file.inputs]
        names = numbered([tensor.name for tensor in tensors])
        for what, given in (("shapes", self.shapes), ("values", self.values)):
            for missing in sorted(set(given) - set(names)):
                problems.add(InputError(unknown("input", missing, names), place=what))
        for name, tensor in zip(names, tensors, strict=True):
            with problems.collecting(), guarded(f"input '{name}'"):
                if not tensor.dtype:
                    raise UnsupportedError(f"its type {tensor.type_name} is not supported")
                shape = self._input_shape(name, tensor)
                if name in self.values:
                    self.frozen[name] = frozen_input(self.values[name], name, tensor.dtype, shape)
                    self.exprs[tensor.index] = Constant(self.frozen[name], name)
                    continue
                kind = TensorType(shape, tensor.dtype)
                self.inputs[tensor.index] = Var(name, kind, Span((), tensor.name))
                if self.dynamic is not None:
                    self.dynamic.give([self.inputs[tensor.index]])
                    for symbol in symbols_of(shape):
                        self.dynamic.take(symbol)
                self.exprs[tensor.index] = self.inputs[tensor.index]

    def _input_shape(self, name: str, tensor: TfliteTensor) -> tuple[Any, ...]:
        """Return the shape of an input, with a symbol for each dynamic dimension."""
        taken = {symbol.name for shape in self.shapes.values() for symbol in symbols_of(shape)} | self.opened
        shape: tuple[Any, ...] = ()
        for axis, extent in enumerate(self.shapes.get(name, tensor.shape)):
            known = extent
            if extent is None:
                title = re.sub(r"\W", "_", f"{name}_{axis}", flags=re.ASCII)
                title = unique_name(title if title[0].isalpha() else f"d_{title}", taken)
                self.opened.add(title)
                known = Symbol(title).dim
            shape = (*shape, given_extent(known))
        if len(shape) != len(tensor.shape):
            raise InputError(f"it has {len(tensor.shape)} dimensions, but the given shape {shape} has {len(shape)}")
        if any(extent < 1 for extent in shape if isinstance(extent, int)):
            closed = ",".join(str(max(extent, 1) if isinstance(extent, int) else extent) for extent in shape)
            remedy = Remedy("--shape", f"{name}={closed}", is_example=True)
            raise InputError(
                f"the shape {shape} has a dynamic dimension", next_step=f"Fix it with {remedy}", remedies=[remedy]
            )
        return shape

    def _use_variable(self, record: OperatorRecord) -> None:
        """Track the value of a variable; subgraphs that run once have been evaluated before."""
        if record.outputs and record.code in (ASSIGN, CALL_ONCE):
            raise ModelError(f"{record.code} has no outputs, this has {len(record.outputs)}")
        if record.code == READ:
            value = self.variables.read(record, self.file.tensors)
            self._check_new(record)
            self.exprs[record.outputs[0]] = value
        elif record.code == ASSIGN:
            if len(record.inputs) != 2 or record.inputs[1] not in self.exprs:
                raise ModelError("expected a handle and a value that is computed before")
            value = self.exprs[record.inputs[1]]
            self.variables.assign(self.variables.of_handle(record), value, self.file.tensors[record.inputs[1]].name)

    def _check_new(self, record: OperatorRecord) -> None:
        taken = [index for index in record.outputs if index in self.exprs and index not in self.variables.found]
        if taken:
            raise ModelError(f"it computes tensor '{self.file.tensors[taken[0]].name}', which has a value already")

    def _node(self, record: OperatorRecord) -> Node:
        return Node(
            record, self.file.tensors, self.exprs, self.numerics, variables=self.variables, scope=self.scope,
            inline=self._inline, batched=self.batched, dynamic=self.dynamic,
        )  # fmt: skip

    def _convert(self, node: Node) -> None:
        record = node.record
        if record.code not in CONVERTERS:
            raise UnsupportedError(f"operator {record.code} is not supported", next_step=_instead(record.code))
        for index in record.inputs:
            if index >= 0 and index not in self.exprs:
                if index in self.variables.handles:
                    raise ModelError(
                        f"it reads '{self.file.tensors[index].name}', a handle that only {READ} and {ASSIGN} accept"
                    )
                if any(index in other.outputs for other in self.file.operators):
                    raise ModelError(f"it reads tensor '{self.file.tensors[index].name}' before that is computed")
                raise ModelError(f"no operator computes its input '{self.file.tensors[index].name}'")
            if index >= 0 and self.file.tensors[index].type_name == _COMPLEX and record.code not in _OF_COMPLEX:
                raise UnsupportedError(f"{record.code} of complex numbers is not supported")
        self._check_new(record)
        for tensor in (self.file.tensors[index] for index in (*record.inputs, *record.outputs) if index >= 0):
            if tensor.dtype in SCALED[record.code] and tensor.quantization is None:
                raise ModelError(
                    f"'{tensor.name}' is {tensor.type_name} without a scale, which {record.code} computes with",
                    next_step="Export it with its quantization, or as int32",
                )
        result = CONVERTERS.get(record.code)(node)
        results = result if isinstance(result, list) else [result]
        if len(results) != len(record.outputs):
            raise ModelError(f"it has {len(record.outputs)} outputs where {len(results)} belong")
        for index, expr in zip(record.outputs, results, strict=True):
            self._check(self.file.tensors[index], expr)
            self.exprs[index] = self._named(node, self.file.tensors[index], expr)
        for index, expr in node.assigned.items():
            self.variables.keep(index, expr)
            self.exprs[index] = expr

    def _check(self, tensor: TfliteTensor, expr: Expr) -> None:
        """Check the type of a built expression against the tensor's type in the file."""
        kind = tensor_type(expr)
        if tensor.type_name == _COMPLEX:  # complex numbers have an axis of real and imaginary parts
            kind = TensorType(kind.shape[:-1], kind.dtype if tensor_type(expr).shape[-1:] != (2,) else tensor.dtype)
        if kind.dtype != tensor.dtype:
            raise ModelError(f"output '{tensor.name}' is {tensor.type_name} in the file, but computes as {kind.dtype}")
        if 0 in kind.shape:
            raise UnsupportedError(f"output '{tensor.name}' of shape {kind.shape} has no elements")
        # the shape of a custom operator's result may be missing in the file
        is_fixed = tensor.shape and not tensor.open_axes and not self.shapes and kind.is_static
        if is_fixed and (self.dynamic is None or not self.scope) and kind.shape != tensor.shape:
            raise ModelError(
                f"output '{tensor.name}' has shape {tensor.shape} in the file, but computes as {kind.shape}"
            )

    def _named(self, node: Node, tensor: TfliteTensor, expr: Expr) -> Expr:
        """Return an expression with the tensor's name, if this operator created it."""
        # tensor names of subgraphs are not unique in LiteRT
        if isinstance(expr, Call) and expr.span == node.span and not self.scope and tensor.dtype:
            return with_span(expr, Span(node.span.nodes, tensor.name))
        return expr

    def output_names(self) -> list[str]:
        """Return the names of the outputs, numbered if they are not unique."""
        return numbered([self.file.tensors[index].name for index in self.file.outputs])

    def quantization(self) -> dict[str, Quantization]:
        """Return scale and zero point of the model's quantized inputs, outputs and states."""
        named = [(var.name, index) for index, var in self.inputs.items()]
        named += list(zip(self.output_names(), self.file.outputs, strict=True))
        facts = [(name, self.file.tensors[index].quantization) for name, index in named]
        variables = self.variables.found.values()
        facts += [(item.name, item.facts.quantization) for item in variables if item.begin and item.facts]
        return {
            name: Quantization(float(known.scales[0]), int(known.zero_points[0]))
            for name, known in facts
            if known is not None and len(known.scales) == 1
        }


def _instead(code: str) -> str | None:
    """Return the nearest supported form of an operator."""
    if code.startswith("CUSTOM"):
        near = [name.removeprefix("CUSTOM ") for name in CONVERTERS.near(code)]
        known = f" (near: {', '.join(near)})" if near else ""
        return f"TFLite Micro's custom operators are supported{known}; otherwise export with built-in operators only"
    if code == "CALL":
        return "Inline the called function before the export"
    near = CONVERTERS.near(code)
    return f"Similar supported operators: {', '.join(near)}" if near else "Replace it with supported operators"

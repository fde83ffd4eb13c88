"""Variables of TFLite: resources that operators read and assign, and tensors that operators write.

A variable becomes a state if a run reads the value from an earlier run; one that is never assigned is a constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import ModelError, UnsupportedError
from mlfc.frontend.common import unique_name
from mlfc.frontend.tflite.schema import OperatorRecord, SchemaSubgraph, TfliteTensor, guarded
from mlfc.relay.ir import Constant, Expr, Span, State, TensorType, Var, tensor_type
from mlfc.support import dtypes
from mlfc.support.cost import spend

HANDLE, READ, ASSIGN, CALL_ONCE = "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"
OPERATORS = frozenset((HANDLE, READ, ASSIGN, CALL_ONCE))


@dataclass(eq=False)
class Variable:
    """A value that may persist between runs."""

    name: str
    kind: TensorType | None = None  # None if it is not assigned before the first run
    initial: npt.NDArray[Any] | None = None  # None for zeros
    is_assigned: bool = False  # in every run
    begin: Var | None = None  # its value before a run, if a run reads it
    current: Expr | None = None  # its current value during a run
    facts: TfliteTensor | None = None  # the tensor as which it is first read
    last: str = ""  # name of the tensor assigned last


@dataclass(eq=False)
class Variables:
    """The variables of a model, by resource name or tensor index."""

    found: dict[object, Variable] = field(default_factory=dict)
    handles: dict[int, object] = field(default_factory=dict)  # of the main subgraph's tensors
    _taken: set[str] = field(default_factory=set)  # names of inputs, and of variables

    @classmethod
    def of(cls, main: SchemaSubgraph, once: Iterable[SchemaSubgraph], taken: Iterable[str]) -> Variables:
        """Collect the variables of a model; raise ModelError or UnsupportedError for those that cannot become states.

        `taken` are the names of inputs.
        """
        variables = cls(_taken=set(taken))
        variables.handles = variables._declare(main.operators)
        for graph in once:
            variables._run_once(graph)
        for record in main.operators:
            if record.code == ASSIGN:
                with guarded(f"operator {record.index} ({ASSIGN})"):
                    variables.of_handle(record).is_assigned = True
        read = {index for record in main.operators for index in record.inputs}
        for tensor in main.tensors:
            if tensor.is_variable and tensor.index in read and tensor.index not in main.inputs:
                with guarded(f"variable '{tensor.name[:80]}'"):
                    if not tensor.dtype:
                        raise UnsupportedError(f"its type {tensor.type_name} is not supported")
                    kind = TensorType(tensor.shape, tensor.dtype)
                    known = {"kind": kind, "initial": _zero(tensor, kind), "is_assigned": True, "facts": tensor}
                    variables._add(tensor.index, tensor.name, **known)
        return variables

    def _add(self, key: object, name: str, **known: Any) -> None:
        if key not in self.found:
            self.found[key] = Variable(unique_name(name, self._taken), **known)
            self._taken.add(self.found[key].name)

    def _declare(self, operators: Iterable[OperatorRecord]) -> dict[int, object]:
        """Return the resource keys of variables by the tensor index of their handles."""
        handles: dict[int, object] = {}
        for record in operators:
            if record.code != HANDLE:
                continue
            with guarded(f"operator {record.index} ({HANDLE})"):
                if len(record.outputs) != 1 or record.outputs[0] in handles:
                    raise ModelError("expected one output, which no other operator has")
                options = record.options("VarHandleOptions")
                names = [None, None] if options is None else [options.Container(), options.SharedName()]
                container, name = ((part or b"").decode("utf-8", "replace") for part in names)
                key = (container, name)
                handles[record.outputs[0]] = key
                title = name or f"variable {len(self.found)}"
                self._add(key, f"{container}/{title}" if container else title)
        return handles

    def of_handle(self, record: OperatorRecord, handles: Mapping[int, object] | None = None) -> Variable:
        """Return the variable that an operator reads or assigns; `handles` are those of another subgraph."""
        key = (self.handles if handles is None else handles).get(record.inputs[0]) if record.inputs else None
        if key is None:
            raise ModelError("its first input is not the handle of a variable")
        return self.found[key]

    def _run_once(self, graph: SchemaSubgraph) -> None:
        """Read initial values from a subgraph that assigns constants."""
        handles = self._declare(graph.operators)
        for record in graph.operators:
            with guarded(f"operator {record.index} ({record.code}) of a subgraph that runs once"):
                if record.code == HANDLE:
                    continue
                if record.code != ASSIGN or len(record.inputs) != 2 or record.inputs[1] < 0:
                    raise UnsupportedError(
                        f"{record.code} is not supported there", next_step="Initialize the variables with constants"
                    )
                tensor = graph.tensors[record.inputs[1]]
                if tensor.data is None:
                    raise UnsupportedError("the first value of a variable must be a constant")
                variable = self.of_handle(record, handles)
                variable.initial = tensor.data
                variable.kind = TensorType(tensor.data.shape, dtypes.from_numpy(tensor.data.dtype))

    def read(self, record: OperatorRecord, tensors: tuple[TfliteTensor, ...]) -> Expr:
        """Return the value of a variable for an operator that reads it."""
        if len(record.outputs) != 1:
            raise ModelError("expected one output")
        variable, tensor = self.of_handle(record), tensors[record.outputs[0]]
        variable.facts = variable.facts or tensor
        return self.value(variable, TensorType(tensor.shape, tensor.dtype))

    def value(self, variable: Variable, kind: TensorType) -> Expr:
        """Return the current value of a variable; raise ModelError if it has another type, or no value."""
        if variable.current is None:
            if variable.kind is None:
                raise ModelError(f"variable '{variable.name}' is read before anything is assigned to it")
            if variable.is_assigned:
                variable.begin = Var(variable.name, variable.kind, Span((), variable.name))
                variable.current = variable.begin
            else:
                assert variable.initial is not None, "a tensor that operators write is assigned"
                variable.current = Constant(variable.initial, variable.name)
        found = tensor_type(variable.current)
        if found != kind:
            raise ModelError(f"variable '{variable.name}' has type {found}, but is read as {kind}")
        return variable.current

    def assign(self, variable: Variable, value: Expr, name: str = "") -> None:
        """Assign a new value to a variable; `name` is the tensor's name, if any."""
        known = variable.current.type if variable.current is not None else variable.kind
        if known is not None and known != value.type:
            raise ModelError(f"variable '{variable.name}' has type {known}, but is assigned {value.type}")
        variable.current, variable.last = value, name

    def tensors(self) -> dict[int, Expr]:
        """Return the values before a run of the tensors that operators write, by index."""
        found = {key: item for key, item in self.found.items() if isinstance(key, int)}
        return {index: self.value(item, item.kind) for index, item in found.items() if item.kind is not None}

    def of_operator(self, name: str, kind: TensorType, initial: npt.NDArray[Any] | None = None) -> Expr:
        """Return the internal state of an operator from the last run; `initial` is its first value, zeros if None."""
        variable = Variable(unique_name(name, self._taken), kind, initial, is_assigned=True)
        self._taken.add(variable.name)
        value = self.value(variable, kind)
        self.found[value] = variable
        return value

    def keep(self, key: object, value: Expr) -> None:
        """Assign a variable tensor, by its index, or an operator's internal state, by its current value."""
        variable = self.found.get(key)
        if variable is None:
            raise ModelError("the operator writes a tensor that is not marked as a variable")
        self.assign(variable, value)

    def states(self, outputs: Iterable[str]) -> list[tuple[Var, State, Expr]]:
        """Return the parameter, the `State` and the final value of each state.

        `outputs` are the names of the model's outputs.
        """
        results, found = set(outputs), []
        for variable in self.found.values():
            if variable.begin is None or variable.current is None:
                continue
            result = unique_name(variable.last or f"{variable.name} (next)", results)
            results.add(result)
            first = variable.initial
            state = State(variable.name, result, first if first is not None and first.any() else None)
            found.append((variable.begin, state, variable.current))
        return found


def _zero(tensor: TfliteTensor, kind: TensorType) -> npt.NDArray[Any] | None:
    """Return the initial codes of a variable tensor, which represent zero; None if they are zeros."""
    known = tensor.quantization
    point = int(known.zero_points[0]) if known is not None and kind.dtype == "int8" else 0
    if point == 0:
        return None
    spend("constants", kind.nbytes, tensor.name)
    return np.full(kind.shape, point, dtypes.to_numpy(kind.dtype))

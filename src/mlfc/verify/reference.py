"""Reference implementations, and the choice of one for a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from mlfc.archive.read.load import artifact_kind
from mlfc.errors import OptionError
from mlfc.frontend.common import unique_name
from mlfc.relay.ir import Constant, Expr, GlobalVar, IRModule, TensorType, Tuple, Var, has_trait
from mlfc.relay.op import Trait
from mlfc.relay.visitor import post_order
from mlfc.support.module_info import StateInfo
from mlfc.support.tensor_info import Array

LITERT = "LiteRT"


class Reference(Protocol):
    """An implementation that computes the expected results."""

    @property
    def input_names(self) -> frozenset[str]:
        """The inputs of `run`."""
        ...

    @property
    def output_names(self) -> frozenset[str]:
        """The outputs of the model; `run` may return further tensors."""
        ...

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return tensors by name; sequences are lists of arrays, optionals without a value None."""
        ...

    def begin(self) -> None:
        """Reset the model's variables to their initial values."""
        ...


class WrappedReference:
    """A reference that wraps another one.

    `provided`: the inputs of the other one that the wrapper provides.
    """

    def __init__(self, reference: Reference, provided: Iterable[str] = ()) -> None:
        self._reference, self._provided = reference, frozenset(provided)

    @property
    def input_names(self) -> frozenset[str]:
        """The inputs of `run`."""
        return self._reference.input_names - self._provided

    @property
    def output_names(self) -> frozenset[str]:
        """The outputs of the model."""
        return self._reference.output_names

    def begin(self) -> None:
        """Reset the model's variables to their initial values."""
        self._reference.begin()

    @property
    def node(self) -> Any:
        """The method `OnnxRuntimeReference.node`; None for other references."""
        return getattr(self._reference, "node", None)


class WithFrozen(WrappedReference):
    """A reference of a model with constant values for some inputs."""

    def __init__(self, reference: Reference, frozen: Mapping[str, Array]) -> None:
        super().__init__(reference, frozen)
        self._frozen = frozen

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return tensors by name."""
        return self._reference.run({**self._frozen, **inputs})


class Stepping(WrappedReference):
    """A reference that keeps the states of a compiled model.

    `reference`: keeps the model's own variables; tied states are its inputs and outputs. `states`: of the compiled
        model. `initial`: their initial values, by name.
    """

    def __init__(self, reference: Reference, states: Sequence[StateInfo], initial: Mapping[str, Array]) -> None:
        self._next = {info.name: info.next for info in states if info.name in reference.input_names}
        super().__init__(reference, self._next)
        self._initial = {name: initial[name] for name in self._next}
        self.knows_all = len(self._next) == len(states)  # whether no state is a variable of the reference
        self.begin()

    def begin(self) -> None:
        """Start a new sequence."""
        super().begin()
        self._held = dict(self._initial)

    @property
    def output_names(self) -> frozenset[str]:
        """The outputs of the model, except the next values of states."""
        return self._reference.output_names - set(self._next.values())

    @property
    def held(self) -> Mapping[str, Array]:
        """The values of tied states for the next run, by input name."""
        return self._held

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return tensors by name, and update the states."""
        found = self._reference.run({**inputs, **self._held})
        self._held = {name: found[output] for name, output in self._next.items()}
        return found


def open_reference(path: Path, *, layers: bool, signature: str | None = None) -> tuple[str, Reference]:
    """Return the name of a model's reference, and the reference with the model.

    `layers`: whether to return all tensors, not the model's outputs alone.
    `signature`: of a TFLite model, as for importing it; then only its outputs are returned.

    Raises OptionError if the file is a compiled model; ToolchainError if the reference is not installed; ModelError if
    the reference rejects the model.
    """
    if artifact_kind(path) != "model":
        raise OptionError(
            "expected an original model, got a compiled one",
            place=str(path),
            next_step="Run: mlfc verify MODEL ARTIFACT",
        )
    with path.open("rb") as file:
        start = file.read(8)
    if start[4:] == b"TFL3":
        from mlfc.verify.litert import LiteRtReference as LiteRT

        return LITERT, LiteRT(path, signature)
    from mlfc.verify.onnxruntime import OnnxRuntimeReference as OnnxRuntime

    found = OnnxRuntime(path, layers=layers)
    return found.title, found


def with_all_tensors(module: IRModule) -> IRModule:
    """Return a model whose outputs are all named tensors of `module`, in topological order.

    Parameters
    ----------
    module : IRModule
        From an importer: the last expression of each original node has its tensor's name.

    Returns
    -------
    IRModule
        ``main`` returns a tuple; ``output_names`` are the original tensors' names. The model's own outputs are among
        them under their own names.
    """
    body, heads = module.main.body, module.outputs
    own = dict(zip(module.output_names, heads, strict=True))
    parts = {name for container in module.containers if container.is_output for name in container.parts}
    found: dict[str, Expr] = {}
    for expr in post_order(body):
        if isinstance(expr, (Var, Constant, GlobalVar)) or has_trait(expr, Trait.SHAPE_OF):
            continue
        name = expr.span.tensor
        if name is None or name in parts or not isinstance(expr.type, TensorType):
            continue
        if name not in own or own[name] is expr:
            found.setdefault(name, expr)
    # add outputs that are inputs, or whose nodes lost their names; parts of a sequence stay together
    for name, head in own.items():
        found.setdefault(name, head)
    states = []
    for state in module.states:  # the next value is also compared
        again = unique_name(f"{state.output} (next)", found)
        found[again] = found[state.output]
        states.append(replace(state, output=again))
    defined = body.fields[len(heads) :] if isinstance(body, Tuple) else ()
    main = replace(module.main, body=Tuple((*found.values(), *defined)))
    return replace(module.with_main(main), output_names=tuple(found), states=tuple(states))
